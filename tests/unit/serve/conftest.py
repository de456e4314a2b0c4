"""A tokenizer folder for the tests of this room."""

from pathlib import Path

import pytest

from rstar2_train.rollout.protocol import Protocol
from tests.support.engine import load_protocol, random_model


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with random weights."""
    return random_model(tmp_path_factory.mktemp("model") / "tiny", seed=0)


@pytest.fixture(scope="session")
def protocol(model_folder: Path) -> Protocol:
    """Its protocol."""
    return load_protocol(model_folder)
