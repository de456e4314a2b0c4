"""Fixtures of a model folder, for tests that need a tokenizer. A `conftest.py` imports them by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from rstar2_train.rollout.chat_format import ChatFormat
from tests.support.engine import load_chat_format, random_model


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny model with random weights and its tokenizer."""
    return random_model(tmp_path_factory.mktemp("model") / "tiny", seed=0)


@pytest.fixture(scope="session")
def chat_format(model_folder: Path) -> ChatFormat:
    """Return the chat format of `model_folder`."""
    return load_chat_format(model_folder)
