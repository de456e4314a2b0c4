"""The clock of the simulated week, and its record of deliveries: errors in them would hide defects of the operator."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from bench.week_clock import Delivery, FakeClock, Times, settle
from bench.week_faults import MAX_COUNTED, Faults
from bench.week_operator import OperatorRun
from rstar2_operator.metrics import Metrics

JOB = ("team-0", "job-0")


def body(version: int, uid: str = "a") -> dict[str, Any]:
    return {"metadata": {"resourceVersion": str(version), "uid": uid}}


def test_clock_jumps_over_hours_in_order() -> None:
    """Timers fire in their order and at their fake time, although no real time passes."""
    fired: list[tuple[str, int]] = []

    async def wait(name: str, hours: float) -> None:
        await asyncio.sleep(hours * 3600)
        fired.append((name, round((time.time() - start) / 3600)))

    async def play() -> None:
        tasks = [asyncio.create_task(wait("late", 30)), asyncio.create_task(wait("early", 2))]
        while not all(task.done() for task in tasks):
            await settle(clock, lambda: False)

    real = time.perf_counter()
    with FakeClock() as clock, asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        start = time.time()
        runner.run(play())
    assert fired == [("early", 2), ("late", 30)]
    assert time.perf_counter() - real < 60
    assert abs(time.time() - start) < 60, "the clock of the process is real again"


def test_clock_waits_while_a_request_is_in_flight() -> None:
    """No timer fires while the API server has an answer to give."""
    requests = 3

    def is_busy() -> bool:
        nonlocal requests
        requests -= 1
        return requests > 0

    async def play() -> None:
        await settle(clock, is_busy)

    with FakeClock() as clock, asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(play())
    assert requests < 0


def test_delivery_waits_for_every_watcher() -> None:
    """A write is delivered when each watcher of its kind has seen its version, or the deletion of its object."""
    delivery = Delivery()
    delivery.start("operator", frozenset({"Pod", "Node"}))
    delivery.start("player", frozenset({"Pod"}))
    delivery.write("Pod", body(5))
    delivery.write("Node", body(6))
    delivery.event("operator", "Node", body(6), gone=False)
    delivery.event("operator", "Pod", body(7), gone=False)
    assert not delivery.is_complete()
    delivery.event("player", "Pod", body(5), gone=False)
    assert delivery.is_complete()
    delivery.delete("Pod", "a")
    assert not delivery.is_complete()
    delivery.event("player", "Pod", body(8), gone=True)
    assert not delivery.is_complete()
    delivery.stop("operator")
    assert delivery.is_complete()


def test_times_are_those_of_the_first_sight() -> None:
    """The API server's times are replaced by the fake time at which the process first saw them, once."""
    times = Times()
    created = {"metadata": {"uid": "a", "creationTimestamp": "2000-01-01T00:00:00Z"}}
    with FakeClock() as clock:
        clock.ahead = 1e6
        first = times.replace(created)["metadata"]["creationTimestamp"]
        clock.ahead = 2e6
        assert times.replace(created)["metadata"]["creationTimestamp"] == first
    assert first > "2020"


def test_operator_lives_in_fake_time() -> None:
    """Its deadlines and backoffs pass when the clock jumps; in real time no attempt would restart."""
    client: Any = None
    with FakeClock() as clock:
        run = OperatorRun(client, Delivery(), Metrics())
        before = run._reconciler._clock()
        clock.ahead = 1e6
        assert run._reconciler._clock() - before >= 1e6


def test_faults_are_repeatable_and_bounded() -> None:
    """Equal seeds draw equal faults; a job gets fewer counted faults than maxRestarts, so none may fail by them."""

    def draw(seed: int) -> list[Any]:
        faults = Faults(seed)
        return [(faults.draw_start(JOB, is_attempt=True), faults.draw_run(JOB, 10)) for _ in range(300)]

    assert draw(1) == draw(1) != draw(2)
    drawn = draw(1)
    kinds = [start for start, _ in drawn] + [run for _, (run, _) in drawn]
    assert {"rejection", "sidecar", "init", "silent", "preemption", "deletion"} <= set(kinds)
    assert sum(kinds.count(kind) for kind in ("crash", "hang", "unreported")) <= MAX_COUNTED + 1
