"""The link between the orchestrator and a rollout worker: slots, versions, and the death of a worker."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from rstar2_train.inference.admission import AdmissionQueue
from rstar2_train.inference.engine_errors import EngineUnavailable
from rstar2_train.inference.engine_load import EngineLoad
from rstar2_train.rollout.workers.link import WorkerLink
from rstar2_train.rollout.workers.remote_pool import RemotePool
from rstar2_train.rollout.workers.worker_process import WorkerProcess


class Linked:
    """A worker's pool in this process, linked with a real admission queue."""

    def __init__(self, policy: Any) -> None:
        self.admission = AdmissionQueue(policy=policy, max_in_flight=10)
        self.failed: list[tuple[str, str]] = []
        pool: Any = SimpleNamespace(
            admission=self.admission,
            version=None,
            push_numbers={},
            mark_failed=lambda url, error: self.failed.append((url, str(error))),
        )
        setup: Any = None
        self.process = WorkerProcess("1/1", pool, setup)

    async def open(self) -> None:
        """Connect both sides."""
        ours, theirs = socket.socketpair()
        self.process._link, self.worker_end = await WorkerLink.open(ours), await WorkerLink.open(theirs)
        unused: Any = None
        self.pool = RemotePool(self.worker_end.send, token="", session=unused, connect=unused)
        self.serving = asyncio.create_task(self.process._serve(self.process._link))
        self.receiving = asyncio.create_task(self._receive())

    async def _receive(self) -> None:
        while (message := await self.worker_end.receive()) is not None:
            assert self.pool.handle(message)

    async def arrived(self) -> None:
        """Return when the orchestrator has handled all that the worker has sent, and the worker all answers."""
        for _ in range(2):
            await self.process.announce("", 0)


@asynccontextmanager
async def linked(policy: str = "Reserve") -> AsyncIterator[Linked]:
    """Yield both sides, connected."""
    both = Linked(policy)
    await both.open()
    try:
        async with asyncio.timeout(120):
            yield both
    finally:
        both.worker_end.close()
        await asyncio.gather(both.serving, both.receiving)


async def test_remote_slot_follows_the_scheduler() -> None:
    """A worker's slot waits for an engine, loses its request with the engine, and is free after its release."""
    async with linked() as both:
        queue = both.pool.admission
        slot = queue.request_slot(tokens=5, group="p")
        await both.arrived()
        both.admission.add_engine("one", capacity=5, block=1)
        assert await slot.wait_for_engine() == "one"
        await slot.start_turn(2)
        request = slot.requesting = asyncio.create_task(asyncio.sleep(3600))
        both.admission.remove_engine("one")
        await asyncio.gather(request, return_exceptions=True)
        assert request.cancelled() and slot.requesting is None and not slot.is_displaced
        both.admission.add_engine("two", capacity=5, block=1)
        assert await slot.wait_for_engine() == "two"
        behind = queue.request_slot(tokens=5)
        await both.arrived()
        assert both.admission._scheduler.running("two") and len(both.admission._scheduler.waiting) == 1
        slot.release(tokens=4)
        assert await behind.wait_for_engine() == "two"
        behind.release()
        await both.arrived()
        assert both.admission._scheduler.running("two") == {} and both.process._slots == {}


async def test_remote_slot_displaced_is_no_failure() -> None:
    """A worker learns that the policy moved a trajectory, which does not count as a failed try."""
    async with linked("Graded") as both:
        both.admission.add_engine("full", capacity=1000, block=1)
        slots = [both.pool.admission.request_slot(tokens=400, prompt_tokens=10) for _ in range(2)]
        requests = [asyncio.create_task(asyncio.sleep(3600)) for _ in slots]
        for slot, request, context in zip(slots, requests, (300, 10), strict=True):
            assert await slot.wait_for_engine() == "full"
            await slot.start_turn(context)
            slot.requesting = request
        both.admission.observe("full", EngineLoad(kv_usage=1.0, running=2))
        both.admission.add_engine("free", capacity=1000, block=1)
        await both.arrived()
        old, young = slots
        assert old.requesting is not None and not old.requesting.cancelling() and not old.is_displaced
        assert young.requesting is None and requests[1].cancelled() and young.is_displaced
        requests[0].cancel()
        assert await young.wait_for_engine() == "free"


async def test_remote_turn_starts_in_the_engine_of_the_policy() -> None:
    """The policy can move a trajectory between two turns; the turn starts only when the worker knows the engine."""
    async with linked("Graded") as both:
        both.admission.add_engine("busy", capacity=10_000, block=1)
        slots = [both.pool.admission.request_slot(tokens=100, prompt_tokens=10) for _ in range(10)]
        assert {await slot.wait_for_engine() for slot in slots} == {"busy"}
        both.admission.add_engine("idle", capacity=10_000, block=1)
        engines = []
        for slot in slots:
            await slot.start_turn(10)
            engines.append(await slot.wait_for_engine())
        running = {engine: len(both.admission._scheduler.running(engine)) for engine in ("busy", "idle")}
        assert running == {engine: engines.count(engine) for engine in running}
        assert running["idle"] > 0


async def test_remote_slot_without_engines_fails() -> None:
    """The orchestrator's patience ends the wait in the worker."""
    async with linked() as both:
        slot = both.pool.admission.request_slot(tokens=5)
        await both.arrived()
        both.admission.fail_waiting(EngineUnavailable("no engine has served for 9 s"))
        with pytest.raises(EngineUnavailable, match="for 9 s"):
            await slot.wait_for_engine()


async def test_remote_pool_knows_a_version_before_its_push() -> None:
    """The push waits for the worker: it would refuse the first tokens of an unknown version."""
    async with linked() as both:
        assert both.pool.version is None
        await both.process.announce("rl/1", 1)
        await both.process.announce("rl/2", 2)
        assert both.pool.version == "rl/2"
        assert [both.pool.push_number(version) for version in ("rl/1", "rl/2", "default")] == [1, 2, None]


async def test_remote_pool_reports_a_failed_engine() -> None:
    """The orchestrator takes it out of use."""
    async with linked() as both:
        both.pool.mark_failed("http://a", EngineUnavailable("refused"))
        await both.arrived()
        assert both.failed == [("http://a", "refused")]


async def test_dead_worker_releases_its_slots() -> None:
    """The trajectories of other workers get the engines; a push does not wait for the dead."""
    async with linked() as both:
        both.admission.add_engine("one", capacity=5, block=1)
        for _ in range(3):
            both.pool.admission.request_slot(tokens=5)
        await both.arrived()
        other = both.admission.request_slot(tokens=5)
        both.receiving.cancel()
        announcing = asyncio.create_task(both.process.announce("rl/1", 1))
        await asyncio.sleep(0)
        both.worker_end.close()
        await both.serving
        both.process._link = None
        both.process._release()
        await announcing
        assert await other.wait_for_engine() == "one"
        assert both.admission._scheduler.waiting == []
        both.receiving = asyncio.create_task(asyncio.sleep(0))
