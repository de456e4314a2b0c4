"""The three policies of the scheduler on a fake clock: progress, fairness, and the rules of Graded."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rstar2_train.inference.engine_load import EngineLoad
from rstar2_train.inference.length_model import LengthModel
from rstar2_train.inference.policies import Graded
from rstar2_train.inference.scheduler import Scheduler


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class NarrowGraded(Graded):
    """Graded with a window that a short test can exceed."""

    WINDOW = 6


def graded(clock: Clock | None = None, *, most: int = 1000) -> Scheduler[str]:
    return Scheduler(policy=Graded(max_in_flight=most), clock=clock or Clock())


def learned(length: int, *, count: int = 400, budget: int = 1000) -> Scheduler[str]:
    """Return a Graded scheduler that has learned `count` trajectories of one length."""
    clock = Clock()
    plan = graded(clock)
    plan.add_engine("teacher", capacity=10**9)
    for at in range(count):
        plan.submit(f"t{at}", tokens=budget, group=f"g{at}")
    plan.assign()
    for at in range(count):
        plan.finish(f"t{at}", tokens=length)
    plan.remove_engine("teacher")
    clock.now += 10  # the forecasts are renewed
    return plan


@settings(max_examples=120, deadline=None)
@given(
    policy=st.sampled_from(["Static", "Reserve", "Graded"]),
    most=st.integers(1, 5),
    sizes=st.lists(st.tuples(st.integers(1, 64), st.integers(0, 3)), min_size=1, max_size=40),
    seed=st.integers(0, 1000),
)
def test_policies_random_events_all_finish(policy: str, most: int, sizes: list[tuple[int, int]], seed: int) -> None:
    """Under starts, turns, ends, losses and live figures, limits hold and every trajectory finishes."""
    source, clock = random.Random(seed), Clock()
    chosen = NarrowGraded(max_in_flight=most) if policy == "Graded" else policy
    plan: Scheduler[int] = Scheduler(policy=chosen, max_in_flight=most, clock=clock)
    capacity = {"a": 70, "b": 128}
    for name, tokens in capacity.items():
        plan.add_engine(name, capacity=tokens, block=7)
    for key, (tokens, group) in enumerate(sizes):
        plan.submit(key, tokens=tokens, prompt_tokens=tokens // 4, group=group)
    unfinished = set(range(len(sizes)))
    for turn in range(50 * len(sizes)):
        clock.now += source.random() * 3
        plan.assign()
        running = [key for name in plan.engines for key in plan.running(name)]
        assert sorted([*running, *plan.waiting]) == sorted(unfinished)
        for name in plan.engines:
            assert len(plan.running(name)) <= most
            if policy == "Reserve":
                assert sum(plan.running(name).values()) <= capacity[name]
        if not unfinished:
            break
        if len(plan.engines) == 2:
            assert running, "an engine without trajectories takes one"
        event = source.random()
        if turn < 10 * len(sizes) and event < 0.2:
            name = source.choice(list(capacity))
            if name in plan.engines:
                plan.remove_engine(name)
            else:
                plan.add_engine(name, capacity=capacity[name], block=7)
        elif event < 0.4 and plan.engines:
            load = EngineLoad(source.random(), running=1, waiting=0, preemptions=turn)
            plan.observe(source.choice(plan.engines), load)
        elif running:
            key = source.choice(running)
            if source.random() < 0.5:
                assert plan.next_turn(key, context=sizes[key][0] // 2) in plan.engines
            else:
                plan.finish(key, tokens=source.choice((None, sizes[key][0])))
                unfinished.remove(key)
        elif len(plan.engines) < 2:
            for name in set(capacity) - set(plan.engines):
                plan.add_engine(name, capacity=capacity[name], block=7)
    assert not unfinished


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), count=st.integers(20, 60))
def test_graded_overtakes_within_its_window(seed: int, count: int) -> None:
    """A trajectory starts before an earlier one only if fewer than `WINDOW` arrivals are between them."""
    source = random.Random(seed)
    plan: Scheduler[int] = Scheduler(policy=NarrowGraded(max_in_flight=2), clock=Clock())
    plan.add_engine("e", capacity=200)
    for key in range(count):
        plan.submit(key, tokens=100, prompt_tokens=10, group=source.randrange(5))
    while plan.waiting or plan.running("e"):
        before = plan.waiting
        started = [key for key, _ in plan.assign()]
        for at, key in enumerate(started):
            assert all(key - NarrowGraded.WINDOW <= other for other in before if other not in started[:at])
        key = source.choice(list(plan.running("e")))
        plan.finish(key, tokens=10 + source.randrange(90))


def test_graded_is_cautious_before_it_has_learned() -> None:
    """Without finished trajectories each is expected to use its whole budget, as with Reserve."""
    plan = graded()
    plan.add_engine("e", capacity=10_000)
    for at in range(20):
        plan.submit(f"k{at}", tokens=1000)
    assert len(plan.assign()) == 9  # half a block each for rounding


def test_graded_admits_by_learned_lengths() -> None:
    """After short trajectories, more start than their budgets allow; the largest number per engine holds."""
    plan = learned(200)
    plan.add_engine("e", capacity=10_000)
    for at in range(100):
        plan.submit(f"k{at}", tokens=1000)
    assert 25 <= len(plan.assign()) <= 50


def test_graded_headroom_grows_after_preemptions() -> None:
    """Each report of new preemptions lets fewer trajectories start; without them the headroom returns."""
    policy = Graded(max_in_flight=10)
    plan: Scheduler[str] = Scheduler(policy=policy, clock=Clock())
    plan.add_engine("e", capacity=100)
    for count in (5, 6, 9, 9):
        plan.observe("e", EngineLoad(0.5, preemptions=count))
    assert policy._headroom["e"] > Graded.HEADROOM + 1.9
    for _ in range(2000):
        plan.observe("e", EngineLoad(0.5, preemptions=9))
    assert policy._headroom["e"] == Graded.HEADROOM


def test_graded_waiting_requests_stop_admission() -> None:
    """An engine that has requests waiting takes nothing new."""
    plan = learned(100)
    plan.add_engine("e", capacity=10_000)
    plan.submit("a", tokens=1000)
    plan.assign()
    plan.observe("e", EngineLoad(0.4, running=1, waiting=3))
    plan.submit("b", tokens=1000)
    assert plan.assign() == []
    plan.observe("e", EngineLoad(0.4, running=1, waiting=0))
    assert plan.assign() == [("b", "e")]


def test_graded_full_engine_loses_its_youngest() -> None:
    """When the cache is nearly full, the trajectories with the fewest tokens leave, and start in another engine."""
    plan = learned(100)
    plan.add_engine("e", capacity=1000)
    contexts = {"old": 500, "middle": 300, "young": 150}
    for key in contexts:
        plan.submit(key, tokens=1000)
    assert len(plan.assign()) == 3
    for key, context in contexts.items():
        plan.next_turn(key, context=context)
    assert plan.observe("e", EngineLoad(0.9)) == []
    assert plan.observe("e", EngineLoad(0.99)) == ["young"]
    plan.add_engine("other", capacity=1000)
    assert plan.assign() == [("young", "other")]
    assert plan.observe("e", EngineLoad(1.0, running=2)) == ["middle"]


def test_graded_stragglers_move_to_the_emptiest_engine() -> None:
    """When nothing waits, a trajectory moves at its next turn; while something waits, it keeps its engine."""
    plan = learned(100)
    plan.add_engine("busy", capacity=100_000)
    for at in range(12):
        plan.submit(f"k{at}", tokens=1000)
    plan.assign()
    plan.add_engine("empty", capacity=100_000)
    moved = [plan.next_turn(f"k{at}", context=100) for at in range(12)]
    assert moved[0] == "empty"
    assert Counter(moved) == {"busy": 7, "empty": 5}
    for at in range(12):
        assert f"k{at}" in plan.running(str(moved[at]))
    plan.submit("waits", tokens=1000)
    plan.add_engine("third", capacity=1)
    assert plan.next_turn("k11", context=200) == moved[11]
    assert plan.next_turn("waits", context=1) is None


def test_graded_last_trajectories_need_less_headroom() -> None:
    """The headroom shrinks with the number of waiting trajectories, from a part of the running ones on."""

    def started(trajectories: int) -> int:
        source, clock = random.Random(1), Clock()
        plan = graded(clock)
        plan.add_engine("teacher", capacity=10**9)
        for at in range(400):
            plan.submit(f"t{at}", tokens=1000)
        plan.assign()
        for at in range(400):
            plan.finish(f"t{at}", tokens=source.randrange(1000))
        plan.remove_engine("teacher")
        clock.now += 10  # the forecasts are renewed
        plan.add_engine("e", capacity=100_000)
        for at in range(trajectories):
            plan.submit(f"k{at}", tokens=1000)
        return len(plan.assign())

    cautious = started(1000)
    assert started(500) == cautious
    assert cautious < started(cautious + 28) < cautious + 28
    assert started(cautious + 10) == cautious + 10


def test_graded_starts_long_prompts_first() -> None:
    """Prompts with a history of long answers start before those with short ones."""
    plan = graded(most=1)
    plan.add_engine("e", capacity=10_000)
    for at in range(6):
        for group, length in (("short", 50), ("long", 900)):
            plan.submit(f"{group}-{at}", tokens=1000, group=group)
            plan.assign()
            plan.finish(f"{group}-{at}", tokens=length)
    for group in ("short", "long"):
        for at in range(10, 13):
            plan.submit(f"{group}-{at}", tokens=1000, group=group)
    started = []
    while plan.waiting or plan.running("e"):
        started += [key for key, _ in plan.assign()]
        plan.finish(started[-1])
    assert started == ["long-10", "long-11", "long-12", "short-10", "short-11", "short-12"]


@pytest.mark.parametrize("observed", [0.3, 0.6])
def test_length_model_corrects_for_running_trajectories(observed: float) -> None:
    """With only the short trajectories finished, the survivors keep the estimate unbiased."""
    source = random.Random(4)
    model = LengthModel()
    model.admit(960)
    lengths = [source.randrange(960) for _ in range(4000)]
    now = int(960 * observed)
    for order, length in enumerate(lengths):
        if length < now:
            model.add(None, length, length_class=2, order=order)
    model.update([(None, 2, now, order) for order, length in enumerate(lengths) if length >= now])
    row = model.survival[2]
    for fraction in (0.1, 0.25):
        assert row[int(LengthModel.BINS * fraction)] == pytest.approx(1 - fraction, abs=0.04)


def test_length_model_late_ends_do_not_count_more() -> None:
    """The long trajectories of a step end last: they do not count more than the short ones for it."""
    source = random.Random(4)
    model = LengthModel()
    model.admit(960)
    lengths = [source.randrange(960) for _ in range(LengthModel.MEMORY)]
    for length, order in sorted((length, order) for order, length in enumerate(lengths)):
        model.add(None, length, length_class=2, order=order)
    model.update([])
    for fraction in (0.25, 0.5, 0.75):
        assert model.survival[2][int(LengthModel.BINS * fraction)] == pytest.approx(1 - fraction, abs=0.02)


def test_length_model_unknown_prompt_has_the_lengths_of_all() -> None:
    """Classes that are known to be short or long do not leave the rest to the prompts of which nothing is known."""
    model = LengthModel()
    model.admit(960)
    for length_class, length in ((LengthModel.UNKNOWN, 800), (0, 100), (0, 100), (3, 900)):
        for order in range(500):
            model.add(f"{length}", length, length_class=length_class, order=order)
    model.update([])
    assert model.class_of("new") == LengthModel.UNKNOWN
    unknown, short = model.survival[LengthModel.UNKNOWN], model.survival[0]
    assert unknown[LengthModel.BINS // 2] == pytest.approx(0.5, abs=0.02)
    assert short[LengthModel.BINS // 2] < 0.05


def test_length_model_prompt_that_runs_for_long_is_long() -> None:
    """A prompt with no finished trajectory is long if those that run have many tokens; it is unknown before."""
    model = LengthModel()
    model.admit(960)
    for at in range(100):
        model.add(f"other-{at}", 300, length_class=LengthModel.UNKNOWN, order=at)
    unknown = LengthModel.UNKNOWN
    model.update([("long", unknown, 700.0, 0), ("long", unknown, 700.0, 1), ("young", unknown, 20.0, 2)])
    assert model.relative_length("young") < 1.1 < 1.4 < model.relative_length("long")
    assert (model.class_of("young"), model.class_of("long")) == (unknown, len(LengthModel.CLASSES))
    model.update([])
    assert model.class_of("long") == unknown  # they have left their engines


def test_graded_long_prompt_starts_when_it_is_noticed() -> None:
    """A prompt whose trajectories run for long comes before the others at the next report, without an end."""
    clock = Clock()
    plan = graded(clock, most=4)
    plan.add_engine("e", capacity=10**6)
    for at in range(5):
        for group in ("short", "long"):
            plan.submit(f"{group}-{at}", tokens=1000, group=group)
    assert [key for key, _ in plan.assign()] == ["short-0", "long-0", "short-1", "long-1"]  # two probes of each
    for group, context in (("short", 10), ("long", 900)):
        for at in range(2):
            plan.next_turn(f"{group}-{at}", context=context)
    plan.finish("short-0", tokens=60)
    assert plan.assign() == [("short-2", "e")]  # nothing is known of the others
    clock.now += 10
    plan.observe("e", EngineLoad(0.4, running=4))
    plan.finish("short-1")
    plan.finish("short-2")
    assert [key for key, _ in plan.assign()] == ["long-2", "long-3"]


def test_graded_figures_of_ended_trajectories_do_not_count() -> None:
    """The figures of an engine correct the forecast of their own time, not that of the next step's trajectories."""
    fresh, used = learned(200), learned(200)
    for plan in (fresh, used):
        plan.add_engine("e", capacity=10_000)
    for at in range(30):
        used.submit(f"before-{at}", tokens=1000)
    before = [key for key, _ in used.assign()]
    for key in before:
        used.next_turn(key, context=200)
    used.observe("e", EngineLoad(len(before) * 200 / 10_000, running=len(before)))
    for key in before:
        used.finish(key)
    for plan in (fresh, used):
        for at in range(100):
            plan.submit(f"k{at}", tokens=1000)
    waiting = [plan.waiting for plan in (fresh, used) if plan.assign()]
    assert len(waiting[0]) == pytest.approx(len(waiting[1]), abs=1)
