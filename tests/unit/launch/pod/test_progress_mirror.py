"""When progress is written, and which attempt may write."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rstar2_train.api.contracts import PROGRESS_KEY, AttemptRecord, Outcome, Progress, outcome_key, write_model
from rstar2_train.api.state_dir import JobState, read_attempt
from rstar2_train.launch.pod import attempt_record, progress_mirror
from rstar2_train.launch.pod.attempt_record import acquire_attempt, write_outcome
from rstar2_train.launch.pod.progress_config_map import ProgressNotWritten
from rstar2_train.launch.pod.progress_mirror import due, write_termination_message
from rstar2_train.tracking.tracker import Tracker

WRITTEN = Progress(stage="rl", attempt=1, phase="Training", step=3, updated_at=100.0)


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
    """A new stage, attempt or phase is written immediately, other changes every ten seconds."""
    assert due(WRITTEN.model_copy(update=changes), WRITTEN, seconds=seconds) is expected


def test_due_first_progress_is_written() -> None:
    """Without an earlier write, no interval applies."""
    assert due(WRITTEN, None, seconds=0.0)


class FakeConfigMap:
    """Records the written keys and steps."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.keys: set[str] = set()
        self.changed = asyncio.Event()

    async def put(self, data: dict[str, str]) -> None:
        self.keys |= set(data)
        if PROGRESS_KEY in data:
            self.steps.append(json.loads(data[PROGRESS_KEY])["step"])
        self.changed.set()


async def test_mirror_unreadable_progress_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The next readable progress is written; an unreadable one does not stop the outcome."""
    polls = 0

    async def poll(_: float) -> None:
        nonlocal polls
        polls += 1
        if polls == 3:
            write_model(state.progress_file, WRITTEN)
        await asyncio.sleep(0)

    monkeypatch.setattr(progress_mirror, "asyncio", SimpleNamespace(sleep=poll))
    state, attempt, config_map = JobState(tmp_path), AttemptRecord(attempt=1), FakeConfigMap()
    Tracker(tmp_path, job="demo").close()
    write_model(state.stage("rl").attempt_file, attempt)
    state.progress_file.write_text('{"stage": "rl", "attempt": 1, "metrics": {"loss": NaN}}')
    mirror = progress_mirror.ProgressMirror(config_map, state, stage="rl", attempt=attempt)  # type: ignore[arg-type]
    following = asyncio.create_task(mirror.follow())
    changed = asyncio.create_task(config_map.changed.wait())
    await asyncio.wait({following, changed}, return_when=asyncio.FIRST_COMPLETED)
    assert not following.done(), following
    following.cancel()
    assert config_map.steps == [3]
    assert caplog.text.count("cannot read the progress now") == 1

    state.progress_file.write_text("{")
    await mirror.conclude(Outcome(stage="rl", attempt=1, outcome="completed", reason="Completed"))
    assert config_map.keys == {PROGRESS_KEY, outcome_key("rl")}
    assert config_map.steps == [3]


@pytest.mark.parametrize(
    ("current", "attempt", "acquired"),
    [
        (None, AttemptRecord(attempt=1, uid="a"), True),
        (AttemptRecord(attempt=1, uid="a"), AttemptRecord(attempt=2, uid="a"), True),
        (AttemptRecord(attempt=2, uid="a"), AttemptRecord(attempt=2, uid="a"), True),  # its pod was restarted
        (AttemptRecord(attempt=3, uid="a"), AttemptRecord(attempt=2, uid="a"), False),
        (
            AttemptRecord(attempt=3, uid="a"),
            AttemptRecord(attempt=1, uid="b"),
            True,
        ),  # the job was deleted and created again
        (AttemptRecord(attempt=3), AttemptRecord(attempt=1, uid="b"), True),
    ],
)
def test_acquire_attempt(tmp_path: Path, current: AttemptRecord | None, attempt: AttemptRecord, acquired: bool) -> None:
    """Only a later attempt of the same job prevents it."""
    file = tmp_path / "attempt.json"
    if current is not None:
        file.write_text(current.model_dump_json(exclude_none=True))
    error = acquire_attempt(file, attempt)
    assert (error == "") is acquired
    assert read_attempt(file) == (attempt if acquired else current)


def test_acquire_attempt_that_is_delayed_restores_the_later_one(tmp_path: Path, monkeypatch: Any) -> None:
    """An attempt that pauses between its check and its write, on a lost node, takes nothing from the next attempt."""
    file, first, second = (tmp_path / "attempt.json", *(AttemptRecord(attempt=number, uid="a") for number in (1, 2)))
    write = attempt_record.write_model

    def delayed(path: Path, record: AttemptRecord) -> None:
        monkeypatch.setattr(attempt_record, "write_model", write)
        assert acquire_attempt(path, second) == ""
        write(path, record)

    monkeypatch.setattr(attempt_record, "write_model", delayed)
    assert "belongs to attempt 2" in acquire_attempt(file, first)
    assert read_attempt(file) == second


@pytest.mark.parametrize("current", [AttemptRecord(attempt=2, uid="a"), AttemptRecord(attempt=1, uid="b"), None])
def test_write_outcome_of_a_stale_attempt_is_rejected(tmp_path: Path, current: AttemptRecord | None) -> None:
    """An attempt that ends late does not replace the outcome of the attempt that runs now."""
    folder, attempt = JobState(tmp_path).stage("rl"), AttemptRecord(attempt=1, uid="a")
    later = Outcome(stage="rl", attempt=2, outcome="completed", reason="StepsReached")
    write_model(folder.outcome_file, later)
    if current is not None:
        write_model(folder.attempt_file, current)
    late = Outcome(stage="rl", attempt=1, outcome="suspended", reason="Suspended")
    assert "StaleAttempt: attempt 1 is stale" in write_outcome(folder, attempt, late)
    assert folder.outcome() == later
    write_model(folder.attempt_file, attempt)
    assert write_outcome(folder, attempt, late) == "" and folder.outcome() == late


@pytest.mark.parametrize(("deleted", "retries"), [(True, 10), (False, 60)])
async def test_put_deleted_config_map_is_retried_briefly(
    monkeypatch: pytest.MonkeyPatch, deleted: bool, retries: int
) -> None:
    """The pod of a deleted job does not hold its accelerators for a minute."""
    now = 0.0

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    class Missing:
        async def put(self, data: dict[str, str]) -> None:
            raise ProgressNotWritten("404: not found", deleted=deleted)

    monkeypatch.setattr(progress_mirror, "asyncio", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(progress_mirror, "time", SimpleNamespace(monotonic=lambda: now))
    await progress_mirror.put_with_retries(Missing(), {"outcome-rl.json": "{}"})  # type: ignore[arg-type]
    assert retries <= now <= retries + 2


def test_termination_message_needs_the_kubelets_file(tmp_path: Path) -> None:
    """Without the file nothing is written; the message is truncated to 4 KB."""
    write_termination_message("not written", tmp_path / "absent")
    assert not (tmp_path / "absent").exists()
    (tmp_path / "log").touch()
    write_termination_message("x" * 5000, tmp_path / "log")
    assert (tmp_path / "log").read_text() == "x" * 4096
