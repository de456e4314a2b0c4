"""Fixtures of a real engine, started once per test session. A `conftest.py` imports them by name.

A test that kills the engine must start it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from rstar2_train.rollout.chat_format import ChatFormat
from tests.support.engine import Engine, engine_job, load_chat_format, memorising_model, missing_packages, random_model


@dataclass(frozen=True)
class Models:
    """Model folders with the same architecture, the same tokenizer and a tied head."""

    boot: Path
    """Random weights; the engine's initial model."""
    other: Path
    """Other random weights."""
    memorising: Path
    """Repeats one conversation (`support.engine.conversation`)."""


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Return the models of the session's engine."""
    if missing := missing_packages():
        pytest.skip(missing)
    folder = tmp_path_factory.mktemp("models")
    boot = random_model(folder / "boot", seed=0)
    other = random_model(folder / "other", seed=1)
    return Models(boot, other, memorising_model(folder / "memorising", base=boot))


@pytest.fixture(scope="session")
def engine_chat_format(models: Models) -> ChatFormat:
    """Return the chat format of these models."""
    return load_chat_format(models.boot)


@pytest.fixture(scope="session")
def engine(models: Models, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Start a real vLLM engine, which can read weights from a bucket as well."""
    folder, job = tmp_path_factory.mktemp("engine"), engine_job()
    job.spec.storage.url = f"file://{folder}/bucket"
    engine = Engine(models.boot, folder=folder, job=job, disk=folder / "disk")
    try:
        engine.start()
        yield engine
    finally:
        engine.kill()
