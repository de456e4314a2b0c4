"""The policies of the scheduler: which trajectory starts next, in which engine, and which one must leave it. Pure.

A policy has no I/O and reads no clock: the scheduler (`scheduler.py`) passes the time. The rollouts and the simulator
(`rstar2_train/simulation`) run the same objects.

- `Static`   a fixed number of trajectories per engine: the baseline of the paper's §3.2.
- `Reserve`  each trajectory reserves KV cache for its prompt and whole budget. The cache never overflows.
- `Graded`   each trajectory is expected to be as long as those of this job. The expected peak of an engine's cache,
             with headroom, must fit. Live figures of the engine correct it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from rstar2_train.inference.engine_load import EngineLoad
from rstar2_train.inference.length_model import Floats, LengthModel

PolicyName = Literal["Static", "Reserve", "Graded"]


@dataclass(slots=True, eq=False)
class QueuedTrajectory:
    """One trajectory, as the scheduler knows it."""

    key: Hashable
    order: int
    """Number of its arrival."""
    tokens: int
    """Largest number of its tokens: prompt and whole budget."""
    prompt_tokens: int = 0
    group: Hashable = None
    """The prompt that it samples; trajectories of one prompt have similar lengths."""
    context: int = 0
    """Tokens at the start of its current turn, prompt included; 0 before its first turn."""
    since: float = 0.0
    """Time at which the current turn started, or at which its engine changed."""
    in_turn: bool = False
    """Whether the turn that started at `since` runs in its present engine."""
    length_class: int | None = None
    """Class of expected length at its start; None before. A later change of its class would bias the estimates."""

    @property
    def written(self) -> int:
        """Tokens after the prompt at the start of the current turn."""
        return max(0, self.context - self.prompt_tokens)


@dataclass(slots=True, eq=False)
class EngineState:
    """One engine, as the scheduler knows it."""

    name: str
    capacity: int
    """Tokens of KV cache."""
    block: int = 1
    """Tokens per block, the unit in which KV cache is allocated."""
    running: dict[Hashable, QueuedTrajectory] = field(default_factory=dict)
    reserved: int = 0
    """Sum of the largest tokens of its trajectories, each rounded up to whole blocks."""
    rate: float = 0.0
    """Tokens per second of one trajectory, over its last turns; 0 if unknown."""
    load: EngineLoad | None = None

    def rounded(self, tokens: int) -> int:
        """Return tokens, rounded up to whole blocks."""
        return -(-tokens // self.block) * self.block

    def written(self, work: QueuedTrajectory, now: float) -> float:
        """Return the estimated tokens of a trajectory after its prompt, at the present place in its turn."""
        return min(work.written + self.rate * (now - work.since), float(work.tokens - work.prompt_tokens))

    def youngest(self, now: float) -> list[QueuedTrajectory]:
        """Return its trajectories, those with the fewest tokens first."""
        return sorted(self.running.values(), key=lambda work: (self.written(work, now), -work.order))


class SchedulingPolicy(Protocol):
    """The decisions of the scheduler. `now`: seconds on the scheduler's clock."""

    def rank(self, work: QueuedTrajectory) -> float:
        """Return the rank of a waiting trajectory: a smaller one starts first. Within a group, order decides."""

    def choose(
        self, work: QueuedTrajectory, engines: Iterable[EngineState], *, now: float, waiting: int
    ) -> EngineState | None:
        """Return the engine in which a trajectory should start now; None if it must wait."""

    def moved(
        self, work: QueuedTrajectory, engine: EngineState, engines: Sequence[EngineState], *, now: float
    ) -> EngineState:
        """Return the engine of the next turn of a trajectory while nothing waits. Default: it keeps its own."""
        return engine

    def displaced(self, engine: EngineState, *, now: float) -> list[QueuedTrajectory]:
        """Return the trajectories that must leave an engine before it preempts. Default: none."""
        return []

    def entered(self, work: QueuedTrajectory, engine: EngineState, *, now: float) -> None:
        """Take note of a trajectory that starts in an engine or moves to it."""
        return

    def left(self, work: QueuedTrajectory, engine: EngineState, *, now: float) -> None:
        """Take note of a trajectory that finished in an engine or leaves it."""
        return

    def observed(self, engine: EngineState, *, now: float) -> None:
        """Take note of new live figures of an engine."""
        return

    def finished(self, work: QueuedTrajectory, tokens: int) -> None:
        """Take note of the length of a finished trajectory: `tokens` with its prompt."""
        return


class Static(SchedulingPolicy):
    """A fixed number of trajectories per engine; ignores the KV cache."""

    def __init__(self, *, max_in_flight: int) -> None:
        """`max_in_flight`: largest number of trajectories per engine."""
        self.max_in_flight = max_in_flight

    def rank(self, work: QueuedTrajectory) -> float:
        """Return the order of arrival."""
        return work.order

    def choose(
        self, work: QueuedTrajectory, engines: Iterable[EngineState], *, now: float, waiting: int
    ) -> EngineState | None:
        """Return the engine with the fewest trajectories, if it may have one more."""
        able = [engine for engine in engines if len(engine.running) < self.max_in_flight]
        return min(able, key=lambda engine: len(engine.running), default=None)


class Reserve(Static):
    """A trajectory starts where its prompt and whole budget fit into the KV cache that nothing has reserved."""

    def choose(
        self, work: QueuedTrajectory, engines: Iterable[EngineState], *, now: float, waiting: int
    ) -> EngineState | None:
        """Return the engine with the most unreserved tokens, if the trajectory fits there."""
        best: tuple[int, int, EngineState] | None = None
        for engine in engines:
            count = len(engine.running)
            free = engine.capacity - engine.reserved
            if count >= self.max_in_flight or engine.rounded(work.tokens) > free:
                continue
            if best is None or (free, -count) > best[:2]:
                best = (free, -count, engine)
        return best[2] if best else None


@dataclass(slots=True)
class _Forecast:
    """Expected tokens in one engine's cache, and their variance, per number of tokens that each writes from now on."""

    expected: Floats
    variance: Floats
    scale: float
    """Measured tokens / expected tokens, at least 1."""
    time: float


class Graded:
    """Admits by the expected peak of the KV cache, learned from this job's own lengths.

    Trajectories of prompts with long answers start first, within a window of arrivals, so that none starves. At the end
    of a step, when nothing waits, a trajectory moves to an engine with fewer trajectories at its next turn. If the
    cache of an engine is nearly full, the youngest trajectories leave it before it preempts.
    """

    WINDOW = 8192
    """Largest number of arrivals by which a later trajectory may start before an earlier one."""
    PROBES = 2
    """Trajectories per prompt that start early, to learn the length of its answers."""
    HEADROOM, MOST_HEADROOM = 2.0, 8.0
    """Standard deviations between the expected peak and the capacity: at first, and at most after preemptions."""
    LAST = 0.3
    """Waiting / running trajectories below which HEADROOM shrinks: a late start makes the step a trajectory longer."""
    MOST_SCALE = 1.5
    """Largest correction of the expected tokens by the measured ones."""
    FEW = 0.1
    """Fraction of the cache in use below which the estimate is not corrected."""
    FULL, RELIEVED = 0.98, 0.96
    """Fraction of the cache in use at which trajectories leave, and at which no more do."""
    MUCH_FEWER = 0.75
    """Trajectories of an engine / those of another one, below which a trajectory moves at the end of a step."""
    refresh = 2.0
    """Seconds for which an engine's forecast is valid; longer ones take less time to compute."""
    POINTS = 24
    """Number of points of a forecast."""

    def __init__(self, *, max_in_flight: int) -> None:
        """`max_in_flight`: largest number of trajectories per engine."""
        self.max_in_flight = max_in_flight
        self.lengths = LengthModel()
        self._forecasts: dict[str, _Forecast] = {}
        self._headroom: defaultdict[str, float] = defaultdict(lambda: self.HEADROOM)
        self._preemptions: dict[str, int] = {}
        self._scale: defaultdict[str, float] = defaultdict(lambda: 1.0)
        """Measured tokens / estimated tokens of each engine at the last report of its figures, 1 to MOST_SCALE."""
        self._started: defaultdict[Hashable, int] = defaultdict(int)
        self._updated = -np.inf

    def rank(self, work: QueuedTrajectory) -> float:
        """Return the order of arrival, less an advance for the first of a prompt, and for prompts of long answers."""
        self.lengths.admit(work.tokens - work.prompt_tokens)
        if work.context or (self._started[work.group] < self.PROBES and not self.lengths.known(work.group)):
            return work.order - self.WINDOW
        return work.order - self.WINDOW * min(1.0, self.lengths.relative_length(work.group) / 2)

    def choose(
        self, work: QueuedTrajectory, engines: Iterable[EngineState], *, now: float, waiting: int
    ) -> EngineState | None:
        """Return the engine whose expected peak is lowest, if the trajectory fits there. An empty engine takes any."""
        engines = list(engines)
        running = sum(len(engine.running) for engine in engines)
        saved = self.HEADROOM * max(0.0, 1 - waiting / max(1.0, self.LAST * running))
        best: EngineState | None = None
        lowest = 1.0
        for engine in engines:
            if len(engine.running) >= self.max_in_flight or (engine.load and engine.load.waiting):
                continue
            peak = self._peak(engine, work, engines, now=now, saved=saved) if engine.running else 0.0
            if peak < lowest:
                best, lowest = engine, peak
        return best

    def moved(
        self, work: QueuedTrajectory, engine: EngineState, engines: Sequence[EngineState], *, now: float
    ) -> EngineState:
        """Return the engine with the fewest trajectories, if it has much fewer than its own and the trajectory fits."""
        best = min(engines, key=lambda other: len(other.running))
        if len(best.running) + 2 > self.MUCH_FEWER * len(engine.running):
            return engine
        return best if not best.running or self._peak(best, work, engines, now=now) < 1 else engine

    def displaced(self, engine: EngineState, *, now: float) -> list[QueuedTrajectory]:
        """Return the youngest trajectories of an engine whose cache is nearly full; one always stays."""
        if engine.load is None or engine.load.kv_usage < self.FULL:
            return []
        excess = (engine.load.kv_usage - self.RELIEVED) * engine.capacity
        leaving: list[QueuedTrajectory] = []
        for work in engine.youngest(now)[:-1]:
            if excess <= 0:
                break
            leaving.append(work)
            excess -= work.prompt_tokens + engine.written(work, now)
        return leaving

    def entered(self, work: QueuedTrajectory, engine: EngineState, *, now: float) -> None:
        """Add a trajectory to the forecast of its engine."""
        self._started[work.group] += work.length_class is None
        work.length_class = self._class(work)
        self._add(work, engine, now, sign=1)

    def left(self, work: QueuedTrajectory, engine: EngineState, *, now: float) -> None:
        """Remove a trajectory from the forecast of its engine."""
        self._add(work, engine, now, sign=-1)

    def observed(self, engine: EngineState, *, now: float) -> None:
        """Correct the forecast of an engine. After a preemption its headroom grows; then it shrinks slowly."""
        self._forecasts.pop(engine.name, None)
        assert engine.load is not None
        estimated = sum(
            work.prompt_tokens + engine.block / 2 + engine.written(work, now) for work in engine.running.values()
        )
        # A forecast is made for the trajectories of its own time: the correction must not mix them with older figures.
        measured = engine.load.kv_usage * engine.capacity
        is_enough = estimated >= self.FEW * engine.capacity
        self._scale[engine.name] = min(self.MOST_SCALE, max(1.0, measured / estimated)) if is_enough else 1.0
        before = self._preemptions.get(engine.name, engine.load.preemptions)
        self._preemptions[engine.name] = engine.load.preemptions
        if engine.load.preemptions > before:
            self._headroom[engine.name] = min(self.MOST_HEADROOM, self._headroom[engine.name] + 1)
        else:
            self._headroom[engine.name] = max(self.HEADROOM, self._headroom[engine.name] * 0.999)

    def finished(self, work: QueuedTrajectory, tokens: int) -> None:
        """Learn the length of a trajectory."""
        length = max(0, tokens - work.prompt_tokens)
        self.lengths.add(work.group, length, length_class=self._class(work), order=work.order)

    def _class(self, work: QueuedTrajectory) -> int:
        return self.lengths.class_of(work.group) if work.length_class is None else work.length_class

    def _peak(
        self,
        engine: EngineState,
        work: QueuedTrajectory,
        engines: Sequence[EngineState],
        *,
        now: float,
        saved: float = 0.0,
    ) -> float:
        """Return the expected peak of an engine's cache with one more trajectory, as a fraction of its capacity.

        `saved`: standard deviations that are not added.
        """
        forecast = self._forecasts.get(engine.name)
        if forecast is None or now - forecast.time > self.refresh:
            if now - self._updated > self.refresh:
                self._updated = now
                self.lengths.update(
                    [
                        (other.group, self._class(other), state.written(other, now), other.order)
                        for state in engines
                        for other in state.running.values()
                    ]
                )
            forecast = self._forecasts[engine.name] = self._forecast(engine, now)
        expected, variance = self._tokens([work], [float(work.written)], engine.block)
        peak = forecast.expected + expected
        peak += (self._headroom[engine.name] - saved) * np.sqrt(forecast.variance + variance)
        return float(peak.max()) * forecast.scale / engine.capacity

    def _add(self, work: QueuedTrajectory, engine: EngineState, now: float, *, sign: int) -> None:
        forecast = self._forecasts.get(engine.name)
        if forecast is not None:
            expected, variance = self._tokens([work], [engine.written(work, now)], engine.block)
            forecast.expected += sign * expected
            forecast.variance = np.maximum(0, forecast.variance + sign * variance)

    def _forecast(self, engine: EngineState, now: float) -> _Forecast:
        works = list(engine.running.values())
        expected, variance = self._tokens(works, [engine.written(work, now) for work in works], engine.block)
        return _Forecast(expected, variance, self._scale[engine.name], now)

    def _tokens(self, works: Sequence[QueuedTrajectory], written: Sequence[float], block: int) -> tuple[Floats, Floats]:
        """Return the expected tokens of trajectories and their variance, at each point of a forecast."""
        lengths = self.lengths
        ahead = lengths.longest * (np.arange(self.POINTS) / (self.POINTS - 1)) ** 1.5
        rows = np.array([self._class(work) for work in works])[:, None]
        start = np.array(written)[:, None]
        prompts = np.array([work.prompt_tokens + block / 2 for work in works])[:, None]
        scale = lengths.BINS / lengths.longest
        reach = lengths.survival[rows, np.minimum(lengths.BINS, ((start + ahead) * scale).astype(int))]
        alive = reach / np.maximum(1e-9, lengths.survival[rows, np.minimum(lengths.BINS, (start * scale).astype(int))])
        tokens = prompts + start + ahead
        return (alive * tokens).sum(axis=0), (alive * (1 - alive) * tokens**2).sum(axis=0)


POLICIES: dict[PolicyName, type[Static] | type[Graded]] = {"Static": Static, "Reserve": Reserve, "Graded": Graded}


def make_policy(name: PolicyName, *, max_in_flight: int) -> SchedulingPolicy:
    """Return a new policy; `max_in_flight`: largest number of trajectories per engine."""
    return POLICIES[name](max_in_flight=max_in_flight)
