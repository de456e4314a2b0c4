"""When progress is worth a write, and who may write at all."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from rstar2_train.api.contracts import PROGRESS_KEY, AttemptRecord, Outcome, Progress, outcome_key, write_model
from rstar2_train.api.state_dir import JobState, read_attempt
from rstar2_train.launch.pod import progress_mirror
from rstar2_train.launch.pod.attempt import acquire_attempt
from rstar2_train.launch.pod.progress_mirror import due, write_termination_message
from rstar2_train.tracking.tracker import Tracker

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


class Told:
    """In place of the ConfigMap."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.keys: set[str] = set()
        self.changed = asyncio.Event()

    async def put(self, data: dict[str, str]) -> None:
        self.keys |= set(data)
        if PROGRESS_KEY in data:
            self.steps.append(json.loads(data[PROGRESS_KEY])["step"])
        self.changed.set()


async def test_a_progress_that_cannot_be_read_is_logged_once_and_the_next_one_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks = 0

    async def look(_: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 3:
            write_model(state.progress_file, TOLD)
        await asyncio.sleep(0)

    monkeypatch.setattr(progress_mirror, "asyncio", SimpleNamespace(sleep=look))
    state, attempt, told = JobState(tmp_path), AttemptRecord(attempt=1), Told()
    Tracker(tmp_path, job="demo").close()
    write_model(state.stage("rl").attempt_file, attempt)
    state.progress_file.write_text('{"stage": "rl", "attempt": 1, "metrics": {"loss": NaN}}')
    one = progress_mirror.ProgressMirror(told, state, stage="rl", attempt=attempt)  # type: ignore[arg-type]
    following = asyncio.create_task(one.follow())
    changed = asyncio.create_task(told.changed.wait())
    await asyncio.wait({following, changed}, return_when=asyncio.FIRST_COMPLETED)
    assert not following.done(), following
    following.cancel()
    assert told.steps == [3]
    assert caplog.text.count("the progress cannot be read now") == 1

    state.progress_file.write_text("{")
    await one.conclude(Outcome(stage="rl", attempt=1, outcome="completed", reason="Completed"))
    assert told.keys == {PROGRESS_KEY, outcome_key("rl")}
    assert told.steps == [3]


@pytest.mark.parametrize(
    ("there", "mine", "taken"),
    [
        (None, AttemptRecord(attempt=1, uid="a"), True),
        (AttemptRecord(attempt=1, uid="a"), AttemptRecord(attempt=2, uid="a"), True),
        (AttemptRecord(attempt=2, uid="a"), AttemptRecord(attempt=2, uid="a"), True),  # its pod was started anew
        (AttemptRecord(attempt=3, uid="a"), AttemptRecord(attempt=2, uid="a"), False),
        (
            AttemptRecord(attempt=3, uid="a"),
            AttemptRecord(attempt=1, uid="b"),
            True,
        ),  # the job was deleted and made again
        (AttemptRecord(attempt=3), AttemptRecord(attempt=1, uid="b"), True),
    ],
)
def test_claim(tmp_path: Path, there: AttemptRecord | None, mine: AttemptRecord, taken: bool) -> None:
    file = tmp_path / "attempt.json"
    if there is not None:
        file.write_text(there.model_dump_json(exclude_none=True))
    why_not = acquire_attempt(file, mine)
    assert (why_not == "") is taken
    assert read_attempt(file) == (mine if taken else there)


def test_last_words_are_for_a_kubelet_only(tmp_path: Path) -> None:
    write_termination_message("nobody reads this", tmp_path / "absent")
    assert not (tmp_path / "absent").exists()
    (tmp_path / "log").touch()
    write_termination_message("x" * 5000, tmp_path / "log")
    assert (tmp_path / "log").read_text() == "x" * 4096
