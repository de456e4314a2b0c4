"""When a status is written, and when an Event is created."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rstar2_operator import status_writer
from rstar2_operator.cache import WatchCache
from rstar2_operator.status_writer import (
    COUNTS_SECONDS,
    HOLD_SECONDS,
    SCALE_SECONDS,
    SETTLE_SECONDS,
    StatusWriter,
    WriteTimes,
)
from tests.support.fake_kube_api import api_error

WELL = {"type": "Degraded", "status": "False", "reason": "AsExpected", "message": ""}
UNBOUND = {"type": "Degraded", "status": "True", "reason": "Unschedulable", "message": "no node"}
NO_IMAGE = {"type": "Degraded", "status": "True", "reason": "ImagePullBackOff", "message": "no image"}
JUDGE = {"type": "JudgeReady", "status": "False", "reason": "Starting", "message": ""}


class FakeClient:
    """Records the requests to the API server."""

    def __init__(self) -> None:
        self.statuses: list[dict[str, Any]] = []
        self.notes: list[str] = []

    async def apply(self, body: dict[str, Any], *, subresource: str) -> dict[str, Any]:
        assert subresource == "status"
        self.statuses.append(body["status"])
        return body

    async def create(self, body: dict[str, Any]) -> None:
        assert body["kind"] == "Event"
        assert len(body["note"].encode()) <= 1024
        self.notes.append(body["note"])


class Clock:
    """The writer's clock; tests move it."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1.7e9 + self.now


class Job:
    """A job and its status writer."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.client = FakeClient()
        self.writer = StatusWriter(self.client, WatchCache(), instance="test")  # type: ignore[arg-type]
        self.times = WriteTimes()

    async def write(self, *conditions: dict[str, str], **fields: Any) -> float | None:
        """Return the result of `write` for a status with these conditions and fields."""
        old = self.client.statuses[-1] if self.client.statuses else {}
        job = {"kind": "AgenticRLJob", "metadata": {"name": "demo", "namespace": "team", "uid": "1"}, "status": old}
        wait, _ = await self.writer.write(self.times, job, {"phase": "Running", "conditions": [*conditions], **fields})
        return wait


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    """Return a job whose status writer has a fake clock."""
    clock = Clock()
    monkeypatch.setattr(status_writer, "time", clock)
    return Job(clock)


async def test_writer_short_problem_is_not_written(job: Job) -> None:
    """A problem that ends within SETTLE_SECONDS is never written; the next problem has its own time."""
    await job.write(WELL)
    assert await job.write(UNBOUND) == SETTLE_SECONDS
    job.clock.now += SETTLE_SECONDS - 1
    assert await job.write(UNBOUND) == 1
    assert await job.write(WELL) is None
    job.clock.now += 3600
    assert await job.write(UNBOUND) == SETTLE_SECONDS
    assert len(job.client.statuses) == 1


async def test_writer_lasting_problem_is_written_once_settled(job: Job) -> None:
    """A lasting problem is written even if its reason changes meanwhile; its end is written immediately."""
    await job.write(WELL)
    assert await job.write(UNBOUND) == SETTLE_SECONDS
    job.clock.now += SETTLE_SECONDS
    assert await job.write(NO_IMAGE) is None
    assert [status["conditions"] for status in job.client.statuses] == [[WELL], [NO_IMAGE]]
    assert await job.write(WELL) is None
    assert job.client.statuses[-1]["conditions"] == [WELL]


async def test_writer_second_problem_settles_like_the_first(job: Job) -> None:
    """A second problem, at another role, waits for SETTLE_SECONDS too, and has an Event of its own."""
    await job.write(JUDGE, UNBOUND)
    job.clock.now += SETTLE_SECONDS
    await job.write(JUDGE, UNBOUND)
    job.clock.now += 1
    both = UNBOUND | {"message": "no node\nno image"}
    judge = JUDGE | {"reason": "ImagePullBackOff", "message": "no image"}
    assert await job.write(judge, both) == SETTLE_SECONDS
    job.clock.now += SETTLE_SECONDS
    assert await job.write(judge, both) is None
    assert job.client.statuses[-1]["conditions"] == [judge, both]
    assert job.client.notes == ["no node", "no image"]


@pytest.mark.parametrize("degraded", [WELL, UNBOUND])
async def test_writer_new_phase_is_written_immediately(job: Job, degraded: dict[str, str]) -> None:
    """A new phase is urgent, even together with a new problem."""
    await job.write(WELL)
    assert await job.write(degraded, phase="Failed") is None
    assert job.client.statuses[-1]["phase"] == "Failed"


async def test_writer_invalid_spec_is_written_immediately(job: Job) -> None:
    """An invalid spec is urgent, though the phase stays."""
    await job.write(WELL)
    stalled = {"type": "Stalled", "status": "True", "reason": "InvalidSpec", "message": "error: spec.seed"}
    assert await job.write(WELL, stalled) is None
    assert job.client.statuses[-1]["conditions"] == [WELL, stalled]


async def test_writer_figures_wait_and_counts_wait_longer(job: Job) -> None:
    """Figures wait for HOLD_SECONDS, pod counts for COUNTS_SECONDS; an equal status is not written."""
    await job.write(WELL)
    assert await job.write(WELL, step=1) == HOLD_SECONDS
    assert await job.write(WELL, roles=[{"name": "rollout", "ready": 1}]) == COUNTS_SECONDS
    job.clock.now += HOLD_SECONDS
    assert await job.write(WELL, step=2) is None
    assert job.client.statuses[-1]["step"] == 2
    assert await job.write(WELL, step=2) is None
    assert len(job.client.statuses) == 2


async def test_writer_scaled_engines_wait_a_second(job: Job) -> None:
    """Autoscalers compute with the number of engines, so it is written soon; start and stop of all engines can wait."""
    await job.write(WELL, rolloutReplicas=0)
    assert await job.write(WELL, rolloutReplicas=2) == HOLD_SECONDS
    job.clock.now += HOLD_SECONDS
    assert await job.write(WELL, rolloutReplicas=2) is None
    assert await job.write(WELL, rolloutReplicas=3) == SCALE_SECONDS
    job.clock.now += SCALE_SECONDS
    assert await job.write(WELL, rolloutReplicas=3) is None
    assert job.client.statuses[-1]["rolloutReplicas"] == 3
    assert await job.write(WELL, rolloutReplicas=0) == HOLD_SECONDS


async def test_writer_pods_with_a_node_wait_as_counts_do(job: Job) -> None:
    """Pods that receive a node shortly after their creation need no write of their own."""
    pending = {"type": "PodsScheduled", "status": "False", "reason": "Pending", "message": "Waiting for a node: a."}
    await job.write(WELL, pending)
    scheduled = {**pending, "status": "True", "reason": "Scheduled", "message": ""}
    assert await job.write(WELL, scheduled) == COUNTS_SECONDS
    assert await job.write(WELL, {**scheduled, "status": "False", "reason": "NoPods"}) == HOLD_SECONDS


async def test_writer_new_leader_does_not_write_counts_first(job: Job) -> None:
    """A new leader does not know the last write, so pod counts wait from its first round."""
    await job.write(WELL)
    job.times = WriteTimes()
    assert await job.write(WELL, roles=[{"name": "rollout", "ready": 1}]) == COUNTS_SECONDS
    assert await job.write(WELL, step=1) == HOLD_SECONDS


async def test_writer_event_note_is_cut_to_1024_bytes(job: Job) -> None:
    """The API server counts bytes, not characters."""
    await job.write(WELL, phase="Failed", message="x" + "é" * 1000)
    assert job.client.notes == ["x" + "é" * 511]


async def test_writer_recurring_event_is_created_once(job: Job) -> None:
    """A repeated transition has an Event each time; a problem that recurs has one, and its end has one."""
    await job.write(WELL)
    for _ in range(2):
        await job.write(WELL, phase="Suspended", message="held")
        await job.write(WELL, phase="Running")
    assert job.client.notes == ["held", "The job resumes from its last checkpoint."] * 2
    job.client.notes.clear()
    for _ in range(2):
        await job.write(UNBOUND)
        job.clock.now += SETTLE_SECONDS
        await job.write(UNBOUND)
        await job.write(WELL)
    assert len(job.client.notes) == 2


async def test_writer_restart_is_written_immediately(job: Job) -> None:
    """A restart is urgent even if the phase is Running before and after it: the backoff may be over already."""
    await job.write(WELL)
    assert await job.write(WELL, restarts=1) is None
    assert job.client.statuses[-1]["restarts"] == 1


async def test_writer_failure_is_written_immediately(job: Job) -> None:
    """The reason of a failed attempt follows the termination of its pods, in the same phase."""
    waiting = {"type": "Training", "status": "False", "reason": "WaitingForPodTermination", "message": ""}
    await job.write(WELL, waiting, phase="Pending")
    failed = {**waiting, "reason": "BackOff", "message": "Stage rl-1 restarts. exit code 1"}
    assert await job.write(WELL, failed, phase="Pending") is None
    assert job.client.statuses[-1]["conditions"] == [WELL, failed]


class Failing(FakeClient):
    """Fails each write of a status."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    async def apply(self, body: dict[str, Any], *, subresource: str) -> dict[str, Any]:
        """Fail."""
        raise self.error


TOO_LARGE = api_error(500, "InternalError", "etcdserver: request is too large")


@pytest.mark.parametrize(
    ("error", "blocks"),
    [
        (api_error(422, "Invalid", "x"), True),
        (api_error(403, "Forbidden", "x"), True),
        (api_error(413, "RequestEntityTooLarge", "x"), True),
        (TOO_LARGE, True),
        (api_error(429, "TooManyRequests", "x"), False),
        (api_error(504, "Timeout", "x"), False),
        (TimeoutError(), False),
    ],
)
def test_rejected_status_blocks_new_attempts_until_it_is_stored(
    error: Exception, blocks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that repeats itself, or lasts, blocks them; a status that needs no write ends the block."""
    clock = Clock()
    monkeypatch.setattr(status_writer, "time", clock)
    times, stored = WriteTimes(), {"phase": "Running", "conditions": []}
    writer = StatusWriter(Failing(error), WatchCache(), instance="test")  # type: ignore[arg-type]
    job = {"kind": "AgenticRLJob", "metadata": {"name": "a", "namespace": "b", "uid": "1"}, "status": stored}
    for expected in (blocks, True):
        with pytest.raises(type(error)):
            asyncio.run(writer.write(times, job, {**stored, "phase": "Failed"}))
        assert times.rejected is expected
        clock.now += 120
    times.wait(stored, stored)
    assert not times.rejected and not times.is_failing()
