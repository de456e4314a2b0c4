"""Fixtures of the trainer tests: a toy model folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from models import write_model


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder; tests must not change it."""
    return write_model(tmp_path_factory.mktemp("models") / "toy")
