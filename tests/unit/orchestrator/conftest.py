"""An attempt of a stage, with nothing but its folder."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from rstar2_train.orchestrator import trainer_session
from tests.support.stage_attempt import Begin, Group, begin_attempt


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Begin:
    """Makes the context of an attempt; its ranks hold one number."""
    monkeypatch.setattr(trainer_session, "TrainerGroup", Group)
    return partial(begin_attempt, tmp_path)
