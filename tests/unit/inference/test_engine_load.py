"""Live figures of engines: an engine that lags behind its peers, and the metrics of a step."""

import pytest

from rstar2_train.inference.engine_load import EngineLoad, LagDetector
from rstar2_train.inference.engine_statistics import EngineStatistics
from rstar2_train.inference.scheduler import Scheduler

INTERVAL = 5.0


def report(engines: dict[str, tuple[int, float]], *, seconds: float, start: float = 0.0) -> LagDetector:
    """Return a detector after reports of engines: name -> (sequences, tokens per second of a sequence)."""
    detector = LagDetector()
    for at in range(int(seconds / INTERVAL) + 1):
        for name, (running, speed) in engines.items():
            load = EngineLoad(running / 100, running, tokens=int(running * speed * at * INTERVAL))
            detector.observe(name, load, now=start + at * INTERVAL)
    return detector


def lagging(detector: LagDetector, *, now: float) -> set[str]:
    return {name for name in "abcd" if detector.lags(name, now=now)}


def test_lag_sustained_slow_engine_is_noticed() -> None:
    """An engine at a quarter of its peers' speed lags after 30 s, not earlier; relief ends when it no longer lags."""
    engines = {"a": (50, 10.0), "b": (50, 40.0), "c": (45, 42.0)}
    assert lagging(report(engines, seconds=30), now=30) == set()
    detector = report(engines, seconds=40)
    assert lagging(detector, now=40) == {"a"}
    assert lagging(detector, now=40 + LagDetector.RELIEF - 1) == {"a"}
    assert lagging(detector, now=40 + LagDetector.RELIEF) == set()


def test_lag_stuck_engine_is_noticed() -> None:
    """An engine that samples nothing lags, even with one trajectory."""
    assert lagging(report({"a": (1, 0.0), "b": (2, 40.0)}, seconds=60), now=60) == {"a"}


def test_lag_busier_engine_is_not_noticed() -> None:
    """A fuller engine is slower: without peers of a similar load it does not lag. Idle engines are no peers."""
    assert lagging(report({"a": (100, 5.0), "b": (20, 40.0), "c": (0, 0.0)}, seconds=120), now=120) == set()


def test_lag_lasts_while_peers_are_idle() -> None:
    """At the end of a step its peers are emptier: it stays relieved until it is idle itself."""
    detector = report({"a": (50, 10.0), "b": (50, 40.0)}, seconds=40)
    detector.observe("b", EngineLoad(0.0, 0), now=45)
    for at in range(10, 60):
        detector.observe("a", EngineLoad(0.4, 40, tokens=400 * at), now=at * INTERVAL)
    assert lagging(detector, now=300) == {"a"}
    detector.observe("a", EngineLoad(0.0, 0, tokens=400 * 60), now=300)
    detector.observe("a", EngineLoad(0.0, 0, tokens=400 * 60), now=305)
    assert lagging(detector, now=300 + LagDetector.RELIEF) == set()


def test_lag_restarted_engine_has_no_past() -> None:
    """A counter that falls is a restart, not a negative speed; a removed engine has no past."""
    detector = report({"a": (50, 10.0), "b": (50, 40.0)}, seconds=40)
    detector.remove("a")
    assert lagging(detector, now=40) == set()
    detector.observe("b", EngineLoad(0.5, 50, tokens=0), now=45)
    detector.observe("b", EngineLoad(0.5, 50, tokens=9000), now=50)
    assert lagging(detector, now=50) == set()


def test_scheduler_lagging_engine_is_relieved() -> None:
    """It takes nothing new, and the younger half of its trajectories moves to engines that have space."""
    now = [0.0]
    plan: Scheduler[str] = Scheduler(policy="Reserve", max_in_flight=100, clock=lambda: now[0])
    for name in ("slow", "fast"):
        plan.add_engine(name, capacity=1000)
    for at in range(8):
        plan.submit(f"k{at}", tokens=100)
    engine_of = dict(plan.assign())
    slow = [key for key, engine in engine_of.items() if engine == "slow"]
    for at, key in enumerate(slow):
        plan.next_turn(key, context=10 * (at + 1))
    for at in range(9):
        now[0] = at * INTERVAL
        for name, speed in (("slow", 5), ("fast", 40)):
            assert plan.observe(name, EngineLoad(0.4, 4, tokens=int(4 * speed * now[0]))) == []
        if at < 8:
            assert plan.relieve("slow") == plan.relieve("fast") == []
    assert plan.relieve("slow") == [(slow[0], "fast"), (slow[1], "fast")]
    assert sorted(plan.running("slow")) == sorted(slow[2:])
    plan.submit("new", tokens=100)
    assert plan.assign() == [("new", "fast")]
    plan.submit("large", tokens=900)
    assert plan.assign() == []
    now[0] += LagDetector.RELIEF
    plan.finish("large")
    plan.submit("later", tokens=100)
    assert plan.assign() == [("later", "slow")]


def test_scheduler_full_peers_take_nothing_of_a_lagging_engine() -> None:
    """Trajectories for which no engine has space stay: slow is better than waiting."""
    now = [0.0]
    plan: Scheduler[str] = Scheduler(policy="Reserve", max_in_flight=100, clock=lambda: now[0])
    for name in ("slow", "fast"):
        plan.add_engine(name, capacity=400)
    for at in range(8):
        plan.submit(f"k{at}", tokens=100)
    plan.assign()
    for at in range(9):
        now[0] = at * INTERVAL
        for name, speed in (("slow", 5), ("fast", 40)):
            plan.observe(name, EngineLoad(0.4, 4, tokens=int(4 * speed * now[0])))
    assert plan.relieve("slow") == []
    assert len(plan.running("slow")) == 4


def test_statistics_take_returns_the_metrics_of_a_step() -> None:
    """Means are over time, extremes over engines; a second call has only what came after the first."""
    statistics = EngineStatistics()
    assert statistics.take() == {}
    for name, speed in (("a", 100), ("b", 50)):
        for at, running in enumerate((4, 4, 0)):
            load = EngineLoad(running / 10, running, waiting=1, preemptions=at, tokens=speed * 10 * at)
            statistics.add(name, load, kv_tokens=1000, now=10.0 * at)
    own = {"kv_usage_mean": 0.3, "kv_usage_max": 0.4, "running_mean": 3, "waiting_mean": 1}
    assert statistics.take() == pytest.approx(
        {f"engines/{name}": value for name, value in own.items()}
        | {f"engines/{number}/{name}": value for number in range(2) for name, value in own.items()}
        | {
            "engines/0/preemptions": 2,
            "engines/1/preemptions": 2,
            "engines/0/tokens_per_second": 100,
            "engines/1/tokens_per_second": 50,
            "engines/count": 2,
            "engines/preemptions": 4,
            "engines/tokens_per_second_mean": 75,
            "engines/tokens_per_second_min": 50,
            "engines/tokens_per_second_max": 100,
        }
    )
    assert statistics.decode_samples[0] == pytest.approx((4, 400, 0.04))
    statistics.remove("a")
    statistics.add("a", EngineLoad(0.0, tokens=2000), kv_tokens=1000, now=90.0)
    assert statistics.take() == {}


def test_statistics_idle_ratio_needs_six_intervals() -> None:
    """The share of the time without a sequence; a short step has too few reports for it."""
    for reports, expected in ((6, None), (7, 4 / 6)):
        statistics = EngineStatistics()
        for at, running in enumerate((4, 4, 0, 0, 0, 0, 0)[:reports]):
            statistics.add("a", EngineLoad(0.0, running, tokens=100 * at), kv_tokens=1000, now=5.0 * at)
        assert statistics.take().get("engines/idle_ratio") == expected


def test_statistics_number_of_an_engine_is_kept_and_reused() -> None:
    """An engine that reloads keeps its number; one that has left the pool gives it to the next new one."""
    statistics = EngineStatistics()

    def numbers(*engines: str) -> set[str]:
        for engine in engines:
            for at in range(2):
                statistics.add(engine, EngineLoad(0.5, 1, tokens=at), kv_tokens=1000, now=float(at))
            statistics.remove(engine)
        return {name.split("/")[1] for name in statistics.take() if name.count("/") == 2}

    assert numbers("a", "b") == {"0", "1"}
    assert numbers("b") == {"1"}
    statistics.drop("a")
    assert numbers("c") == {"0"}
    assert numbers("d") == {"2"}
