"""A status is written when it says something new, and as soon as what it says is worth a write."""

from __future__ import annotations

from typing import Any

import pytest

from rstar2_operator import status_writer
from rstar2_operator.status_writer import COUNTS_SECONDS, HOLD_SECONDS, SETTLE_SECONDS, StatusWriter

KEY = ("team", "demo")
BOUND = {"type": "Degraded", "status": "False", "reason": "AsExpected", "message": ""}
UNBOUND = {"type": "Degraded", "status": "True", "reason": "Unschedulable", "message": "no node"}
GONE = {"type": "Degraded", "status": "True", "reason": "ImagePullBackOff", "message": "no image"}


class Api:
    """What is asked of the API server."""

    def __init__(self) -> None:
        self.written: list[dict[str, Any]] = []
        self.notes: list[str] = []

    async def apply(self, body: dict[str, Any], *, subresource: str) -> None:
        assert subresource == "status"
        self.written.append(body["status"])

    async def create(self, body: dict[str, Any]) -> None:
        assert body["kind"] == "Event"
        assert len(body["note"].encode()) <= 1024
        self.notes.append(body["note"])


class Clock:
    """The reporter's time, which moves when it is told to."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1.7e9 + self.now


class Job:
    """A job and its reporter."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.api = Api()
        self.reporter = StatusWriter(self.api, instance="test")  # type: ignore[arg-type]

    async def says(self, degraded: dict[str, str], **fields: Any) -> float | None:
        """What `report` answers to a status with this condition and these fields."""
        old = self.api.written[-1] if self.api.written else {}
        job = {"kind": "AgenticRLJob", "metadata": {"name": "demo", "namespace": "team", "uid": "1"}, "status": old}
        return await self.reporter.report(KEY, job, {"phase": "Running", "conditions": [degraded], **fields})


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    clock = Clock()
    monkeypatch.setattr(status_writer, "time", clock)
    return Job(clock)


async def test_a_trouble_that_goes_away_by_itself_is_not_told(job: Job) -> None:
    await job.says(BOUND)
    assert await job.says(UNBOUND) == SETTLE_SECONDS
    job.clock.now += SETTLE_SECONDS - 1
    assert await job.says(UNBOUND) == 1
    assert await job.says(BOUND) is None
    job.clock.now += 3600
    assert await job.says(UNBOUND) == SETTLE_SECONDS, "another trouble has its own time"
    assert len(job.api.written) == 1


async def test_a_trouble_that_stays_is_told_even_when_its_words_change(job: Job) -> None:
    await job.says(BOUND)
    assert await job.says(UNBOUND) == SETTLE_SECONDS
    job.clock.now += SETTLE_SECONDS
    assert await job.says(GONE) is None
    assert [status["conditions"] for status in job.api.written] == [[BOUND], [GONE]]
    assert await job.says(BOUND) is None
    assert job.api.written[-1]["conditions"] == [BOUND], "that it is over is told at once"


async def test_a_second_cause_waits_no_longer_than_a_first_one(job: Job) -> None:
    await job.says(BOUND)
    await job.says(UNBOUND)
    job.clock.now += SETTLE_SECONDS
    await job.says(UNBOUND)
    job.clock.now += 1
    both = UNBOUND | {"reason": "Unschedulable,ImagePullBackOff", "message": "no node\nno image"}
    assert await job.says(both) == SETTLE_SECONDS
    job.clock.now += SETTLE_SECONDS
    assert await job.says(both) is None
    assert job.api.written[-1]["conditions"] == [both] and job.api.notes == ["no node", "no node\nno image"]
    assert await job.says(GONE) is None
    assert job.api.written[-1]["conditions"] == [GONE], "that one is over is told at once"
    assert len(job.api.notes) == 2, "and what is left was told"


@pytest.mark.parametrize("degraded", [BOUND, UNBOUND])
async def test_another_phase_is_told_at_once(job: Job, degraded: dict[str, str]) -> None:
    await job.says(BOUND)
    assert await job.says(degraded, phase="Failed") is None
    assert job.api.written[-1]["phase"] == "Failed"


async def test_figures_wait_and_counts_wait_longer(job: Job) -> None:
    await job.says(BOUND)
    assert await job.says(BOUND, step=1) == HOLD_SECONDS
    assert await job.says(BOUND, roles=[{"name": "rollout", "ready": 1}]) == COUNTS_SECONDS
    job.clock.now += HOLD_SECONDS
    assert await job.says(BOUND, step=2) is None
    assert job.api.written[-1]["step"] == 2
    assert await job.says(BOUND, step=2) is None
    assert len(job.api.written) == 2


async def test_an_event_fits_into_a_note_which_is_counted_in_bytes(job: Job) -> None:
    await job.says(BOUND, phase="Failed", message="x" + "é" * 1000)
    assert job.api.notes == ["x" + "é" * 511]


async def test_what_happens_again_is_said_again_and_what_recurs_is_not(job: Job) -> None:
    await job.says(BOUND)
    for _ in range(2):
        await job.says(BOUND, phase="Suspended", message="held")
        await job.says(BOUND, phase="Running")
    assert job.api.notes == ["held", "going on where it stopped"] * 2
    job.api.notes.clear()
    for _ in range(2):
        await job.says(UNBOUND)
        job.clock.now += SETTLE_SECONDS
        await job.says(UNBOUND)
        await job.says(BOUND)
    assert len(job.api.notes) == 2, "once that it is in the way, once that it is not"
