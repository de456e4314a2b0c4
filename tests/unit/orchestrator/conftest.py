"""The context of a stage attempt with nothing but its folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rstar2_train.orchestrator.context import StageContext
from tests.support.stage_attempt import NewAttempt, create_attempt


@pytest.fixture
def new_attempt(tmp_path: Path) -> NewAttempt:
    """Return a function that creates the context of an attempt."""
    return partial(create_attempt, tmp_path)


@pytest.fixture
def stage(new_attempt: NewAttempt, tmp_path: Path) -> Callable[..., StageContext]:
    """Return a function that creates an attempt of a stage of four steps."""
    (tmp_path / "rl.jsonl").write_text(
        "".join(json.dumps({"id": f"{n}", "problem": f"{n}", "answer": "1"}) + "\n" for n in range(4))
    )

    def create(stages: str = "g", number: int = 0, *, attempt: int = 1, every: int = 1, **more: Any) -> StageContext:
        settings = {"promptsPerStep": 2, "rolloutsPerPrompt": 2, "keepPerPrompt": 2, **more}
        return new_attempt(
            stages, number, attempt=attempt, checkpoint={"everySteps": every, "keepLast": 10}, grpo=settings
        )

    return create
