"""The runs of a job and its stages: which of them are open after every order of starts, kills and ends."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Literal

import pytest

from rstar2_train.tracking.journal import read_entries
from rstar2_train.tracking.tracker import JOB, Ending, Tracker, journal_file

Step = Literal["killed", "failed", "suspended", "advanced"]
STEPS: tuple[Step, ...] = ("killed", "failed", "suspended", "advanced")
"""Ends of an attempt; a killed orchestrator writes none."""


def statuses(state: Path) -> dict[str, str]:
    """Return the status of each run, as MLflow has it after the whole journal."""
    result = {}
    for event, _ in read_entries(journal_file(state)):
        if event is not None and event["kind"] in ("start", "end"):
            result[event["run"]] = event.get("status", "RUNNING")
    return result


@pytest.mark.parametrize("ending", ["completed", "failed", "deleted", "suspended"])
def test_end_job_closes_open_stages(ending: Ending, tmp_path: Path) -> None:
    """In every order of kills, restarts and ends, no run of a stage stays open after that of the job."""
    for number, ends in enumerate(itertools.product(STEPS, repeat=2)):
        state = tmp_path / str(number)
        tracker = Tracker(state, job="tiny")
        tracker.start_job({})
        for attempt, end in enumerate(ends, 1):
            tracker.start_stage("sft", type="SFT", attempt=attempt, params={})
            if end != "killed":
                tracker.end_stage("sft", end)
        tracker.start_stage("rl", type="GRPO", attempt=1, params={})
        tracker.close()
        other = Tracker(state, job="tiny")  # the report runs in another process
        other.end_job(ending)
        other.close()
        after = statuses(state)
        assert "RUNNING" not in after.values(), ends
        assert list(after) == [JOB, "sft", "rl"]
        killed = {"completed": "FINISHED", "failed": "FAILED"}.get(ending, "KILLED")
        ended = {"killed": killed, "failed": "FAILED", "suspended": "KILLED", "advanced": "FINISHED"}
        assert (after["sft"], after["rl"]) == (ended[ends[1]], killed), ends


def test_end_job_writes_nothing_about_ended_stages(tmp_path: Path) -> None:
    """A second end, after a retry of the report, adds only an end of the job's own run."""
    tracker = Tracker(tmp_path, job="tiny")
    tracker.start_stage("rl", type="GRPO", attempt=1, params={})
    tracker.end_job("failed")
    size = len(list(read_entries(journal_file(tmp_path))))
    tracker.end_job("failed")
    assert len(list(read_entries(journal_file(tmp_path)))) == size + 1
    tracker.close()


def test_run_of_the_job_is_open_until_its_end(tmp_path: Path) -> None:
    """A launcher that was killed after the last stage leaves it open."""
    tracker = Tracker(tmp_path, job="tiny")
    assert not tracker.is_open()
    tracker.start_job({})
    tracker.start_stage("rl", type="GRPO", attempt=1, params={})
    tracker.end_stage("rl", "completed")
    assert tracker.is_open()
    tracker.end_job("completed")
    assert not tracker.is_open()
    tracker.close()
