"""A pod of an attempt on a disk without a free byte: it reports to the ConfigMap and the termination message alone.

The orchestrator is played: it fills the disk when it has written, or not written, its outcome.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rstar2_train.api.contracts import AttemptRecord, ExitCode, Outcome, write_model
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.state_dir import JobState
from rstar2_train.launch.pod.attempt import AttemptOptions, _TrainerPod
from tests.support.fake_configmap_server import FakeConfigMapServer
from tests.support.full_disk import fill, small_disk

JOB = {
    "metadata": {"name": "pods", "uid": "11111111-2222-3333-4444-555555555555"},
    "spec": {
        "model": {"source": "m"},
        "accelerator": {"vendor": "None"},
        "trainer": {"replicas": 1, "gpusPerReplica": 0},
        "stages": [{"name": "sft", "type": "SFT", "sft": {"data": "d"}}],
    },
}
Write = Callable[[JobState], int]
"""Writes the files of an orchestrator, before the disk is full; returns its exit code."""


def nothing(state: JobState) -> int:
    """The orchestrator could not write its outcome."""
    return 1


def written(kind: str, reason: str) -> Write:
    """The orchestrator has written an outcome."""

    def write(state: JobState) -> int:
        outcome = Outcome.model_validate({"stage": "sft", "attempt": 1, "outcome": kind, "reason": reason})
        write_model(state.stage("sft").outcome_file, outcome)
        return int(outcome.exit_code)

    return write


def newer_attempt(state: JobState) -> int:
    """Another attempt has taken the stage meanwhile."""
    write_model(state.stage("sft").attempt_file, AttemptRecord(attempt=2, uid=JOB["metadata"]["uid"]))
    return int(ExitCode.RETRYABLE)


@pytest.mark.parametrize(
    ("write", "code", "reason"),
    [
        (None, ExitCode.CONFIGURATION, "StorageFull"),
        (nothing, ExitCode.CONFIGURATION, "StorageFull"),
        (written("completed", "Completed"), ExitCode.DONE, "Completed"),
        (written("suspended", "Suspended"), ExitCode.SUSPENDED, "Suspended"),
        (newer_attempt, ExitCode.RETRYABLE, ""),
    ],
    ids=["full-from-the-start", "no-outcome", "completed", "suspended", "newer-attempt"],
)
async def test_full_disk_is_reported_without_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Write | None, code: int, reason: str
) -> None:
    """A full disk fails the job for good; an outcome that was written before stays; a stale attempt reports nothing."""
    termination_log = tmp_path / "termination-log"
    termination_log.touch()
    with small_disk(tmp_path / "disk", mebibytes=2) as disk, FakeConfigMapServer(tmp_path, name="progress") as api:
        for name, value in {**api.env, "POD_IP": "127.0.0.1"}.items():
            monkeypatch.setenv(name, value)
        state = JobState(disk / "pods")
        state.root.mkdir()

        async def orchestrate(pod: _TrainerPod, address: str | None) -> int:
            assert write is not None
            left = write(state)
            fill(disk)
            return left

        monkeypatch.setattr(_TrainerPod, "_orchestrate", orchestrate)
        monkeypatch.setattr(_TrainerPod, "_run_shipper", lambda pod: pod.stopping.wait())
        options = AttemptOptions(
            job_file=tmp_path / "job.json", state=state.root, stage="sft", attempt=1, nodes=1, subdomain="pods",
            progress="progress", account=api.account, termination_log=termination_log,
        )  # fmt: skip
        if write is None:
            fill(disk)
        assert await _TrainerPod(options, AgenticRLJob.model_validate(JOB)).run_head() == code
    reported = api.data.get("outcome-sft.json")
    assert (Outcome.model_validate_json(reported).reason if reported else "") == reason
    assert (json.loads(termination_log.read_text())["reason"] if reported else "") == reason
