"""Session fixtures of a real engine, for every room that needs one: it is booted once a test session.

A `conftest.py` imports them by name. Whoever kills the engine starts it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from rstar2_train.rollout.chat_format import ChatFormat
from tests.support.engine import Engine, load_chat_format, memorising_model, random_model, why_not


@dataclass(frozen=True)
class Models:
    """Folders of one architecture with one tokenizer, with a tied head."""

    boot: Path
    """Random; what the engine boots with."""
    other: Path
    """Random, other weights."""
    memorising: Path
    """Knows one conversation by heart (`support.engine.conversation`)."""


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """The models of the session's engine."""
    if reason := why_not():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("models")
    boot = random_model(folder / "boot", seed=0)
    other = random_model(folder / "other", seed=1)
    return Models(boot, other, memorising_model(folder / "memorising", base=boot))


@pytest.fixture(scope="session")
def engine_chat_format(models: Models) -> ChatFormat:
    """The chat_format of these models."""
    return load_chat_format(models.boot)


@pytest.fixture(scope="session")
def engine(models: Models, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A real vLLM engine, up."""
    engine = Engine(models.boot, folder=tmp_path_factory.mktemp("engine"))
    try:
        engine.start()
        yield engine
    finally:
        engine.kill()
