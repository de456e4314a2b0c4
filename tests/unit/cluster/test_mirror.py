"""When progress is worth a write, and who may write at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from rstar2_train.cluster.launch import claim
from rstar2_train.cluster.mirror import due, last_words
from rstar2_train.job.contracts import Attempt, Progress
from rstar2_train.job.state import read_attempt

TOLD = Progress(stage="rl", attempt=1, phase="Training", step=3, updated_at=100.0)


@pytest.mark.parametrize(
    ("changes", "seconds", "expected"),
    [
        ({}, 1000.0, False),  # nothing new
        ({"step": 4, "updated_at": 101.0}, 9.9, False),
        ({"step": 4, "updated_at": 101.0}, 10.0, True),
        ({"phase": "Evaluating", "updated_at": 101.0}, 0.1, True),
        ({"stage": "rl-2", "updated_at": 101.0}, 0.1, True),
        ({"attempt": 2, "updated_at": 101.0}, 0.1, True),
        ({"mlflow_run_id": "abc"}, 9.0, False),
        ({"mlflow_run_id": "abc"}, 11.0, True),
    ],
)
def test_due(changes: dict[str, object], seconds: float, expected: bool) -> None:
    assert due(TOLD.model_copy(update=changes), TOLD, seconds=seconds) is expected


def test_the_first_progress_is_told_at_once() -> None:
    assert due(TOLD, None, seconds=0.0)


@pytest.mark.parametrize(
    ("there", "mine", "taken"),
    [
        (None, Attempt(attempt=1, uid="a"), True),
        (Attempt(attempt=1, uid="a"), Attempt(attempt=2, uid="a"), True),
        (Attempt(attempt=2, uid="a"), Attempt(attempt=2, uid="a"), True),  # its pod was started anew
        (Attempt(attempt=3, uid="a"), Attempt(attempt=2, uid="a"), False),
        (Attempt(attempt=3, uid="a"), Attempt(attempt=1, uid="b"), True),  # the job was deleted and made again
        (Attempt(attempt=3), Attempt(attempt=1, uid="b"), True),
    ],
)
def test_claim(tmp_path: Path, there: Attempt | None, mine: Attempt, taken: bool) -> None:
    file = tmp_path / "attempt.json"
    if there is not None:
        file.write_text(there.model_dump_json(exclude_none=True))
    why_not = claim(file, mine)
    assert (why_not == "") is taken
    assert read_attempt(file) == (mine if taken else there)


def test_last_words_are_for_a_kubelet_only(tmp_path: Path) -> None:
    last_words("nobody reads this", tmp_path / "absent")
    assert not (tmp_path / "absent").exists()
    (tmp_path / "log").touch()
    last_words("x" * 5000, tmp_path / "log")
    assert (tmp_path / "log").read_text() == "x" * 4096
