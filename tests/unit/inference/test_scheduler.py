"""Who enters which engine: never over capacity, nobody starves, everybody ends."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rstar2_train.inference.scheduler import AdmissionQueue, Scheduler


def scheduler(policy: str = "Reserve", most: int = 100) -> Scheduler[str]:
    return Scheduler(policy=policy, max_in_flight=most)


def test_reserve_holds_the_whole_budget_and_refills_the_moment_one_ends() -> None:
    plan = scheduler()
    plan.add_engine("e", capacity=250)
    for key in "abc":
        plan.submit(key, tokens=100)
    assert plan.place() == [("a", "e"), ("b", "e")]
    assert plan.place() == []
    plan.finish("a")
    assert plan.place() == [("c", "e")]


def test_static_counts_heads_only() -> None:
    plan = scheduler("Static", most=2)
    plan.add_engine("e", capacity=10)
    for key in "abc":
        plan.submit(key, tokens=1000)
    assert [key for key, _ in plan.place()] == ["a", "b"]
    plan.finish("b")
    assert plan.place() == [("c", "e")]


def test_reserve_has_an_upper_bound_beside_the_cache() -> None:
    plan = scheduler(most=1)
    plan.add_engine("e", capacity=1000)
    plan.submit("a", tokens=1)
    plan.submit("b", tokens=1)
    assert plan.place() == [("a", "e")]


def test_room_is_counted_in_whole_blocks() -> None:
    plan = scheduler()
    plan.add_engine("e", capacity=64, block=32)
    plan.submit("a", tokens=33)
    plan.submit("b", tokens=1)
    assert plan.place() == [("a", "e")]
    assert plan.running("e") == {"a": 64}


def test_the_roomiest_engine_is_taken() -> None:
    plan = scheduler()
    plan.add_engine("small", capacity=100)
    plan.add_engine("large", capacity=300)
    for key in "abcd":
        plan.submit(key, tokens=100)
    assert sorted(engine for _, engine in plan.place()) == ["large", "large", "large", "small"]


def test_what_fits_nowhere_yet_is_not_overtaken() -> None:
    plan = scheduler()
    plan.add_engine("e", capacity=100)
    plan.submit("a", tokens=60)
    assert plan.place() == [("a", "e")]
    plan.submit("big", tokens=90)
    plan.submit("small", tokens=10)
    assert plan.place() == []
    plan.finish("a")
    assert plan.place() == [("big", "e"), ("small", "e")]


def test_a_lost_engines_trajectories_wait_where_they_stood() -> None:
    plan = scheduler()
    plan.add_engine("one", capacity=100)
    for key in "abc":
        plan.submit(key, tokens=50)
    plan.place()
    assert sorted(plan.remove_engine("one")) == ["a", "b"]
    assert plan.waiting == ["a", "b", "c"]
    plan.add_engine("two", capacity=100)
    assert [key for key, _ in plan.place()] == ["a", "b"]
    assert plan.remove_engine("unknown") == []


def test_mistakes_are_named() -> None:
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
def test_under_any_events_capacity_holds_order_holds_and_all_end(
    policy: str, most: int, block: int, sizes: list[int], events: list[tuple[str, int]]
) -> None:
    capacity = {"a": 70, "b": 128}
    plan = scheduler(policy, most)
    for name in capacity:
        plan.add_engine(name, capacity=capacity[name], block=block)
    pending = list(range(len(sizes)))
    waiting: set[int] = set()
    ended: list[int] = []

    def place() -> None:
        before = plan.waiting
        placed = [int(key) for key, _ in plan.place()]
        # Strictly in the order of arrival: what enters is the head of the queue.
        assert [str(key) for key in placed] == before[: len(placed)]
        waiting.difference_update(placed)
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
            ended.append(key)
        elif kind == "lose" and plan.engines:
            waiting.update(int(key) for key in plan.remove_engine(plan.engines[pick % len(plan.engines)]))
        elif kind == "return":
            for name in sorted(set(capacity) - set(plan.engines)):
                plan.add_engine(name, capacity=capacity[name], block=block)
        place()
    for name in sorted(set(capacity) - set(plan.engines)):
        plan.add_engine(name, capacity=capacity[name], block=block)
    while pending or waiting or running():
        while pending:
            key = pending.pop(0)
            plan.submit(str(key), tokens=sizes[key])
            waiting.add(key)
        place()
        key = running()[0]  # something always runs: no deadlock
        plan.finish(str(key))
        ended.append(key)
    assert sorted(ended) == list(range(len(sizes)))


async def test_a_ticket_waits_moves_and_leaves() -> None:
    admission = AdmissionQueue(policy="Reserve", max_in_flight=10)
    ticket = admission.enter(tokens=5)
    asking = asyncio.create_task(ticket.engine())
    await asyncio.sleep(0)
    assert not asking.done()
    admission.add_engine("one", capacity=5, block=1)
    assert await asking == "one"
    ticket.request = asyncio.get_running_loop().create_future()
    admission.remove_engine("one")
    assert ticket.request.cancelled()
    admission.add_engine("two", capacity=5, block=1)
    assert await ticket.engine() == "two"
    behind = admission.enter(tokens=5)
    ticket.leave()
    assert await behind.engine() == "two"


async def test_giving_up_fails_those_who_wait_and_they_can_leave() -> None:
    admission = AdmissionQueue(policy="Reserve", max_in_flight=10)
    ticket = admission.enter(tokens=5)
    admission.give_up(RuntimeError("no engine"))
    with pytest.raises(RuntimeError, match="no engine"):
        await ticket.engine()
    ticket.leave()


async def test_one_who_is_cancelled_while_waiting_leaves_no_hole() -> None:
    admission = AdmissionQueue(policy="Reserve", max_in_flight=10)
    first, second = admission.enter(tokens=5), admission.enter(tokens=5)
    asking = asyncio.create_task(first.engine())
    await asyncio.sleep(0)
    asking.cancel()
    admission.add_engine("one", capacity=5, block=1)
    first.leave()
    assert await second.engine() == "one"
