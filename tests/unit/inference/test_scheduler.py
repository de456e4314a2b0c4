"""Assignment of trajectories to engines: capacity, order, and progress."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rstar2_train.inference.admission import AdmissionQueue
from rstar2_train.inference.engine_load import EngineLoad
from rstar2_train.inference.scheduler import Scheduler


def scheduler(policy: str = "Reserve", most: int = 100) -> Scheduler[str]:
    return Scheduler(policy=policy, max_in_flight=most)


def test_scheduler_reserve_holds_the_whole_budget() -> None:
    """A trajectory reserves its whole budget; when it finishes, the next one starts."""
    plan = scheduler()
    plan.add_engine("e", capacity=250)
    for key in "abc":
        plan.submit(key, tokens=100)
    assert plan.assign() == [("a", "e"), ("b", "e")]
    assert plan.assign() == []
    plan.finish("a")
    assert plan.assign() == [("c", "e")]


def test_scheduler_static_limits_only_the_count() -> None:
    """The policy `Static` ignores the KV cache."""
    plan = scheduler("Static", most=2)
    plan.add_engine("e", capacity=10)
    for key in "abc":
        plan.submit(key, tokens=1000)
    assert [key for key, _ in plan.assign()] == ["a", "b"]
    plan.finish("b")
    assert plan.assign() == [("c", "e")]


def test_scheduler_reserve_respects_max_in_flight() -> None:
    """`Reserve` limits the number of trajectories as well as their tokens."""
    plan = scheduler(most=1)
    plan.add_engine("e", capacity=1000)
    plan.submit("a", tokens=1)
    plan.submit("b", tokens=1)
    assert plan.assign() == [("a", "e")]


def test_scheduler_reserves_whole_blocks() -> None:
    """A reservation is rounded up to whole blocks of KV cache."""
    plan = scheduler()
    plan.add_engine("e", capacity=64, block=32)
    plan.submit("a", tokens=33)
    plan.submit("b", tokens=1)
    assert plan.assign() == [("a", "e")]
    assert plan.running("e") == {"a": 64}


def test_scheduler_prefers_the_engine_with_most_space() -> None:
    """The engine with the most free KV cache gets the next trajectory."""
    plan = scheduler()
    plan.add_engine("small", capacity=100)
    plan.add_engine("large", capacity=300)
    for key in "abcd":
        plan.submit(key, tokens=100)
    assert sorted(engine for _, engine in plan.assign()) == ["large", "large", "large", "small"]


def test_scheduler_does_not_overtake_a_large_trajectory() -> None:
    """A trajectory that does not fit yet is not overtaken by a smaller one."""
    plan = scheduler()
    plan.add_engine("e", capacity=100)
    plan.submit("a", tokens=60)
    assert plan.assign() == [("a", "e")]
    plan.submit("big", tokens=90)
    plan.submit("small", tokens=10)
    assert plan.assign() == []
    plan.finish("a")
    assert plan.assign() == [("big", "e"), ("small", "e")]


def test_scheduler_lost_engine_keys_keep_their_position() -> None:
    """The trajectories of a lost engine wait again before later ones."""
    plan = scheduler()
    plan.add_engine("one", capacity=100)
    for key in "abc":
        plan.submit(key, tokens=50)
    plan.assign()
    assert sorted(plan.remove_engine("one")) == ["a", "b"]
    assert plan.waiting == ["a", "b", "c"]
    plan.add_engine("two", capacity=100)
    assert [key for key, _ in plan.assign()] == ["a", "b"]
    assert plan.remove_engine("unknown") == []


def test_scheduler_held_engine_keeps_keys_and_takes_no_new() -> None:
    """An engine that loads weights keeps its trajectories; new ones wait until it is added again."""
    pool = scheduler()
    pool.add_engine("e", capacity=100)
    pool.submit("a", tokens=10)
    assert pool.assign() == [("a", "e")]
    pool.hold_engine("e")
    pool.submit("b", tokens=10)
    assert (pool.assign(), pool.engines) == ([], [])
    assert pool.running("e") == {"a": 10}
    pool.add_engine("e", capacity=100)
    assert pool.assign() == [("b", "e")]
    pool.hold_engine("e")
    assert pool.remove_engine("e") == ["a", "b"]


def test_scheduler_duplicate_engine_or_key_raises() -> None:
    """A duplicate engine or key is an error."""
    plan = scheduler()
    plan.add_engine("e", capacity=1)
    plan.submit("a", tokens=1)
    with pytest.raises(ValueError, match="already in use"):
        plan.add_engine("e", capacity=1)
    with pytest.raises(ValueError, match="already submitted"):
        plan.submit("a", tokens=1)


@settings(max_examples=150)
@given(
    policy=st.sampled_from(["Static", "Reserve"]),
    most=st.integers(1, 4),
    block=st.sampled_from([1, 7, 32]),
    sizes=st.lists(st.integers(1, 64), min_size=1, max_size=30),
    events=st.lists(
        st.tuples(st.sampled_from(["submit", "finish", "lose", "return"]), st.integers(0, 10)), max_size=60
    ),
)
def test_scheduler_random_events_keep_invariants(
    policy: str, most: int, block: int, sizes: list[int], events: list[tuple[str, int]]
) -> None:
    """Under any events the capacity holds, the order holds, and every trajectory finishes."""
    capacity = {"a": 70, "b": 128}
    plan = scheduler(policy, most)
    for name in capacity:
        plan.add_engine(name, capacity=capacity[name], block=block)
    pending = list(range(len(sizes)))
    waiting: set[int] = set()
    finished: list[int] = []

    def assign() -> None:
        before = plan.waiting
        assigned = [int(key) for key, _ in plan.assign()]
        # Strictly in order of arrival: assigned keys are the head of the queue.
        assert [str(key) for key in assigned] == before[: len(assigned)]
        waiting.difference_update(assigned)
        for name in plan.engines:
            running = plan.running(name)
            assert len(running) <= most
            if policy == "Reserve":
                assert sum(running.values()) <= capacity[name]

    def running() -> list[int]:
        return sorted(int(key) for name in plan.engines for key in plan.running(name))

    for kind, pick in events:
        if kind == "submit" and pending:
            key = pending.pop(0)
            plan.submit(str(key), tokens=sizes[key])
            waiting.add(key)
        elif kind == "finish" and running():
            key = running()[pick % len(running())]
            plan.finish(str(key))
            finished.append(key)
        elif kind == "lose" and plan.engines:
            waiting.update(int(key) for key in plan.remove_engine(plan.engines[pick % len(plan.engines)]))
        elif kind == "return":
            for name in sorted(set(capacity) - set(plan.engines)):
                plan.add_engine(name, capacity=capacity[name], block=block)
        assign()
    for name in sorted(set(capacity) - set(plan.engines)):
        plan.add_engine(name, capacity=capacity[name], block=block)
    while pending or waiting or running():
        while pending:
            key = pending.pop(0)
            plan.submit(str(key), tokens=sizes[key])
            waiting.add(key)
        assign()
        key = running()[0]  # a trajectory always runs: no deadlock
        plan.finish(str(key))
        finished.append(key)
    assert sorted(finished) == list(range(len(sizes)))


async def test_slot_waits_moves_and_is_released() -> None:
    """A slot waits for an engine, moves when the engine is lost, and is free after its release."""
    admission = AdmissionQueue(policy="Reserve", max_in_flight=10)
    slot = admission.request_slot(tokens=5)
    waiting_task = asyncio.create_task(slot.wait_for_engine())
    await asyncio.sleep(0)
    assert not waiting_task.done()
    admission.add_engine("one", capacity=5, block=1)
    assert await waiting_task == "one"
    request = slot.requesting = asyncio.create_task(asyncio.sleep(3600))
    admission.remove_engine("one")
    assert request.cancelling() and slot.requesting is None
    admission.add_engine("two", capacity=5, block=1)
    assert await slot.wait_for_engine() == "two"
    behind = admission.request_slot(tokens=5)
    slot.release()
    assert await behind.wait_for_engine() == "two"


async def test_fail_waiting_raises_in_waiting_slots() -> None:
    """Waiting slots raise the error, and can still be released."""
    admission = AdmissionQueue(policy="Reserve", max_in_flight=10)
    slot = admission.request_slot(tokens=5)
    admission.fail_waiting(RuntimeError("no engine"))
    with pytest.raises(RuntimeError, match="no engine"):
        await slot.wait_for_engine()
    slot.release()


async def test_slots_of_one_iteration_are_ranked_together() -> None:
    """A prompt with long answers starts first, also if its slot is queued after the others of a step."""
    admission = AdmissionQueue(policy="Graded", max_in_flight=1)
    admission.add_engine("e", capacity=10_000, block=1)
    for _ in range(4):
        for group, tokens in (("short", 50), ("long", 900)):
            slot = admission.request_slot(tokens=1000, group=group)
            assert await slot.wait_for_engine() == "e"
            slot.release(tokens=tokens)
    started: list[str] = []

    async def start(group: str) -> None:
        slot = admission.request_slot(tokens=1000, group=group)
        await slot.wait_for_engine()
        started.append(group)
        slot.release()

    await asyncio.gather(*map(start, ["short", "short", "long"]))
    assert started == ["long", "short", "short"]


async def test_slot_cancelled_while_waiting_can_be_released() -> None:
    """A cancelled wait does not occupy the engine after the release."""
    admission = AdmissionQueue(policy="Reserve", max_in_flight=10)
    first, second = admission.request_slot(tokens=5), admission.request_slot(tokens=5)
    waiting_task = asyncio.create_task(first.wait_for_engine())
    await asyncio.sleep(0)
    waiting_task.cancel()
    admission.add_engine("one", capacity=5, block=1)
    first.release()
    assert await second.wait_for_engine() == "one"


async def test_slot_displaced_from_a_full_engine_waits() -> None:
    """With `Graded` the youngest of a full engine loses its request and starts in another engine."""
    admission = AdmissionQueue(policy="Graded", max_in_flight=10)
    admission.add_engine("full", capacity=1000, block=1)
    slots = [admission.request_slot(tokens=400, prompt_tokens=10) for _ in range(2)]
    requests = [asyncio.create_task(asyncio.sleep(3600)) for _ in slots]
    for slot, request, context in zip(slots, requests, (300, 10), strict=True):
        assert await slot.wait_for_engine() == "full"
        await slot.start_turn(context)
        slot.requesting = request
    admission.observe("full", EngineLoad(kv_usage=1.0, running=2))
    admission.add_engine("free", capacity=1000, block=1)
    admission.observe("unknown", EngineLoad(kv_usage=1.0))
    old, young = slots
    assert old.requesting is not None and not old.requesting.cancelling() and not old.is_displaced
    assert young.requesting is None and requests[1].cancelling() and young.is_displaced
    requests[0].cancel()
    assert await young.wait_for_engine() == "free"
    assert await old.wait_for_engine() == "full"
    for slot in slots:
        slot.release(tokens=350)
