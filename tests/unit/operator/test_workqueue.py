"""The order in which workers receive keys."""

from __future__ import annotations

import asyncio

from rstar2_operator.workqueue import WorkQueue


async def test_urgent_keys_come_first() -> None:
    """A job with a failure comes before all others, also if it waits already."""
    queue: WorkQueue[str] = WorkQueue()
    for key in ("a", "b", "c"):
        queue.add(key)
    queue.add("failed", urgent=True)
    queue.add("c", urgent=True)  # a waiting key becomes urgent, and is still queued once
    assert len(queue) == 4
    assert [await queue.take() for _ in range(4)] == ["failed", "c", "a", "b"]


async def test_worker_for_urgent_keys_takes_no_others() -> None:
    """A change does not occupy the worker that is there for failures."""
    queue: WorkQueue[str] = WorkQueue()
    urgent = asyncio.create_task(queue.take(urgent_only=True))
    queue.add("changed")
    assert await queue.take() == "changed"
    assert not urgent.done()
    queue.add("failed", urgent=True)
    assert await urgent == "failed"


async def test_taken_key_stays_urgent_when_it_comes_again() -> None:
    """A failure during a reconciliation stays urgent, also after a later change."""
    queue: WorkQueue[str] = WorkQueue()
    queue.add("job")
    assert await queue.take() == "job"
    queue.add("job", urgent=True)
    queue.add("job")
    queue.add("other")
    assert len(queue) == 1  # a taken key waits for `done`
    queue.done("job")
    assert [await queue.take() for _ in range(2)] == ["job", "other"]
