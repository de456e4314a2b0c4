"""The rollout simulator: engines against a loop over single steps, and simulations of small steps."""

import random
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rstar2_train.inference.engine_load import LagDetector
from rstar2_train.inference.policies import Graded, PolicyName, make_policy
from rstar2_train.simulation.bound import lower_bound
from rstar2_train.simulation.engine import SimulatedEngine
from rstar2_train.simulation.hardware import Hardware, HardwareError, fit_decode, load_hardware
from rstar2_train.simulation.picture import draw
from rstar2_train.simulation.run import SimulationResult, simulate
from rstar2_train.simulation.workload import LengthStatistics, SimulatedTrajectory, SimulatedTurn, draw_step

HARDWARE = Hardware(
    step_seconds=0.01,
    sequence_seconds=1e-4,
    token_seconds=1e-6,
    prefill_seconds=1e-5,
    kv_tokens=40_000,
    block_tokens=1,
)
SHORT = LengthStatistics(budget=2000, mean=700)


def run(
    policy: PolicyName, *, most: int = 200, steps: int = 1, engines: int = 2, staleness: int = 0
) -> SimulationResult:
    drawn = [draw_step(SHORT, prompts=24, samples=8, seed=1, first=24 * at) for at in range(steps)]
    made = make_policy(policy, max_in_flight=most)
    return simulate(drawn, HARDWARE, made, engines=engines, max_staleness=staleness, update_seconds=5)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 300), st.integers(1, 120)), min_size=1, max_size=6))
def test_engine_equals_a_loop_over_steps(requests: list[tuple[int, int]]) -> None:
    """The closed form ends each request at the time that the sum over its single steps gives."""
    engine = SimulatedEngine("e", HARDWARE)
    for key, (context, tokens) in enumerate(requests):
        engine.add(key, context=context, tokens=tokens)
    ends: dict[int, float] = {}
    while engine.running:
        for key in engine.advance(engine.next_event()):
            ends[key] = engine.time
    time = sum(context for context, _ in requests) * HARDWARE.prefill_seconds
    running = dict(enumerate(requests))
    written = 0
    while running:
        kv = sum(context + written for context, _ in running.values())
        # The cost of the cache grows evenly within a step: half a token per sequence on average.
        time += HARDWARE.seconds(len(running), kv + len(running) / 2)
        written += 1
        for key in [key for key, (_, tokens) in running.items() if tokens == written]:
            assert ends[key] == pytest.approx(time, rel=1e-6)
            del running[key]


def test_engine_full_cache_preempts_the_newest() -> None:
    """When the cache is full, the newest request waits, and its tokens are computed again."""
    engine = SimulatedEngine("e", HARDWARE.model_copy(update={"kv_tokens": 1000}))
    engine.add(1, context=300, tokens=500)
    engine.add(2, context=300, tokens=300)
    ends = []
    while engine.running:
        ends += engine.advance(engine.next_event())
    assert ends == [1, 2]
    assert engine.preemptions == 1
    assert engine.recomputed_tokens == pytest.approx(500, abs=2)


def test_engine_second_turn_needs_no_prefill() -> None:
    """The context of a turn stays cached for the next turn, unless the trajectory finished."""
    engine = SimulatedEngine("e", HARDWARE)
    for key in (1, 2):
        engine.add(key, context=100, tokens=50)
    while engine.running:
        engine.advance(engine.next_event())
    engine.drop(2)
    engine.add(1, context=170, tokens=10)
    engine.add(2, context=170, tokens=10)
    assert engine.prefilled_tokens == 200 + 20 + 170


@pytest.mark.parametrize("policy", ["Static", "Reserve", "Graded"])
def test_simulate_finishes_every_trajectory(policy: PolicyName) -> None:
    """All trajectories finish, not before the lower bound, and the same seed gives the same figures."""
    result = run(policy, steps=2)
    assert len(result.step_seconds) == 2
    assert result.makespan == pytest.approx(sum(result.step_seconds))
    assert result.makespan - 10 >= result.bound
    assert result.figures() == run(policy, steps=2).figures()
    assert 0 <= result.idle_share < 1
    if policy == "Reserve":
        assert result.preemptions == result.displaced == 0


def test_simulate_graded_is_faster_than_reserve() -> None:
    """Graded runs more trajectories at a time than Reserve, with few preemptions."""
    reserve, graded = run("Reserve", steps=3), run("Graded", steps=3)
    assert graded.makespan < 0.97 * reserve.makespan
    assert graded.preempted_share < 0.01


def test_simulate_static_overload_preempts() -> None:
    """Too many trajectories per engine overflow the cache, and cost tokens."""
    result = run("Static", most=150)
    assert result.preemptions > 0
    assert result.recomputed_tokens > 100 * result.preemptions


def test_simulate_staleness_fills_the_tail() -> None:
    """With one update of staleness the next step starts before the update ends: less time in all."""
    assert run("Graded", steps=4, staleness=1).makespan < run("Graded", steps=4).makespan - 10


def test_simulate_slow_engine_is_relieved(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one engine at a tenth of its speed, relief shortens the step; equal engines never lag."""
    step = draw_step(LengthStatistics(budget=16_000, mean=7000), prompts=2, samples=8, seed=1)
    hardware = HARDWARE.model_copy(update={"kv_tokens": 400_000})

    def reserve() -> SimulationResult:
        return simulate([step], hardware, make_policy("Reserve", max_in_flight=200), engines=2)

    assert reserve().displaced == 0
    seconds, steps_in = SimulatedEngine._seconds, SimulatedEngine._steps_in

    def factor(engine: SimulatedEngine) -> float:
        return 10.0 if engine.name == "engine-0" else 1.0

    monkeypatch.setattr(SimulatedEngine, "_seconds", lambda self, steps: factor(self) * seconds(self, steps))
    monkeypatch.setattr(SimulatedEngine, "_steps_in", lambda self, time: steps_in(self, time / factor(self)))
    relieved = reserve()
    monkeypatch.setattr(LagDetector, "SUSTAINED", float("inf"))
    assert relieved.displaced > 0
    assert relieved.makespan < 0.8 * reserve().makespan


def test_simulate_trajectory_beyond_the_cache_raises() -> None:
    """A trajectory that fits in no engine is an error, not an endless simulation."""
    step = [SimulatedTrajectory("g", 10, 50_000, (SimulatedTurn(5),))]
    with pytest.raises(ValueError, match="50010 tokens"):
        simulate([step], HARDWARE, Graded(max_in_flight=1), engines=1)


def test_lower_bound_is_the_longest_trajectory_at_least() -> None:
    """One trajectory alone reaches its bound exactly, tool time included."""
    step = [SimulatedTrajectory("g", 100, 1000, (SimulatedTurn(200, 30, 2.5), SimulatedTurn(100)))]
    result = simulate([step], HARDWARE, make_policy("Reserve", max_in_flight=1), engines=3)
    bound = lower_bound(step, HARDWARE, engines=3)
    assert bound <= result.makespan <= 1.02 * bound


def test_draw_step_has_the_planned_statistics() -> None:
    """Lengths are within the budget and near their mean; samples of one prompt are alike."""
    drawn = draw_step(SHORT, prompts=200, samples=16, seed=0)
    lengths = [trajectory.length for trajectory in drawn]
    assert max(lengths) <= SHORT.budget
    sampled = sum(trajectory.sampled for trajectory in drawn) / len(drawn)
    assert sampled == pytest.approx(SHORT.mean, rel=0.1)
    assert sum(len(trajectory.turns) - 1 for trajectory in drawn) / len(drawn) == pytest.approx(2.75, rel=0.1)
    assert all(turn.tool_tokens == 0 for trajectory in drawn for turn in trajectory.turns[-1:])
    means = [sum(lengths[at : at + 16]) / 16 for at in range(0, len(lengths), 16)]
    overall = sum(lengths) / len(lengths)
    between = sum((mean - overall) ** 2 for mean in means) / len(means)
    total = sum((length - overall) ** 2 for length in lengths) / len(lengths)
    assert 0.4 < between / total < 0.8


def test_fit_decode_recovers_the_model() -> None:
    """A fit finds the coefficients of noisy samples, and none is negative."""
    source = random.Random(0)
    samples = []
    for _ in range(60):
        sequences, tokens = source.randint(1, 64), source.randint(100, 40_000)
        samples.append((sequences, tokens, HARDWARE.seconds(sequences, tokens) * source.uniform(0.98, 1.02)))
    step, sequence, token = fit_decode(samples)
    assert (step, sequence, token) == pytest.approx((0.01, 1e-4, 1e-6), rel=0.1)
    assert fit_decode([(1, 10, 0.01), (2, 20, 0.005), (4, 50, 0.002)]) >= (0, 0, 0)
    with pytest.raises(HardwareError, match="2 samples"):
        fit_decode(samples[:2])


def test_load_hardware_unknown_name_lists_the_names() -> None:
    """An unknown model names the known ones."""
    assert load_hardware("qwen3-14b-h200-tp2").kv_tokens == 1_280_000
    with pytest.raises(HardwareError, match="qwen3-14b-mi300x-tp2"):
        load_hardware("tpu")


def test_draw_is_valid_svg() -> None:
    """The picture has a row per engine and policy."""
    results = {"Reserve": run("Reserve"), "Graded": run("Graded")}
    root = ElementTree.fromstring(draw(results))
    names = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text") if text.get("class") == "name"]
    assert names == ["engine-0", "engine-1"] * 2
