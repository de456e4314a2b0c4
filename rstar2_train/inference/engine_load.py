"""Live figures of an engine, from its metrics, and the engines that lag behind their peers. Pure.

The pool reads the figures every few seconds. The policies correct their estimates by them, `LagDetector` compares the
engines, and `EngineStatistics` (`engine_statistics.py`) turns them into metrics of a step.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from statistics import median

_FIGURES = (
    "kv_cache_usage_perc",
    "num_requests_running",
    "num_requests_waiting",
    "num_preemptions_total",
    "generation_tokens_total",
)
"""Metrics of vLLM, in the order of the fields of EngineLoad."""
_FIGURE = re.compile(rf"^vllm:({'|'.join(_FIGURES)})(?:\{{[^}}]*\}})? (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """Live figures of one engine, from its metrics."""

    kv_usage: float
    """Fraction of the KV cache in use, 0 to 1."""
    running: int = 0
    waiting: int = 0
    preemptions: int = 0
    """Preemptions since the engine started."""
    tokens: int = 0
    """Sampled tokens since the engine started."""

    @classmethod
    def read(cls, metrics: str) -> EngineLoad | None:
        """Return the figures in the text of vLLM's `/metrics`; None if it has none."""
        if "vllm:kv_cache_usage_perc" not in metrics:
            return None
        figures = dict.fromkeys(_FIGURES, 0.0)
        for name, value in _FIGURE.findall(metrics):
            figures[name] += float(value)
        usage, *counts = figures.values()
        return cls(usage, *map(int, counts))


@dataclass(frozen=True, slots=True)
class LoadInterval:
    """The figures of one engine between two reports."""

    seconds: float
    running: float
    """Mean of both reports."""
    waiting: float
    kv_usage: float
    tokens: int
    """Tokens sampled in the interval."""
    preemptions: int

    @classmethod
    def between(cls, before: EngineLoad, after: EngineLoad, *, seconds: float) -> LoadInterval | None:
        """Return the figures of an interval; None if it is empty, or if the engine restarted in it."""
        tokens, preemptions = after.tokens - before.tokens, after.preemptions - before.preemptions
        if seconds <= 0 or tokens < 0 or preemptions < 0:
            return None
        return cls(
            seconds,
            (before.running + after.running) / 2,
            (before.waiting + after.waiting) / 2,
            (before.kv_usage + after.kv_usage) / 2,
            tokens,
            preemptions,
        )


class LoadHistory:
    """The last report of each engine."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, EngineLoad]] = {}

    def add(self, engine: str, load: EngineLoad, *, now: float) -> LoadInterval | None:
        """Add a report; return the interval since the one before, if there is one."""
        before = self._last.get(engine)
        self._last[engine] = (now, load)
        return None if before is None else LoadInterval.between(before[1], load, seconds=now - before[0])

    def remove(self, engine: str) -> None:
        """Remove an engine: its next report starts a new interval."""
        self._last.pop(engine, None)


class LagDetector:
    """Compares the engines' tokens per second of one sequence.

    A decode step is slower with more sequences and a fuller cache. So an engine is compared only with peers of a
    similar or higher load: they should be as slow.
    """

    SLOW = 0.4
    """Tokens per second of a sequence / median of the peers, below which an engine is slow."""
    PEER_LOAD = 0.7
    """Least load of a peer / load of the engine, in sequences and in KV cache."""
    SUSTAINED = 30.0
    """Seconds for which an engine must be slow before it lags."""
    RELIEF = 60.0
    """Seconds after which an engine that lagged takes trajectories again."""

    def __init__(self) -> None:
        self._history = LoadHistory()
        self._intervals: dict[str, tuple[float, LoadInterval]] = {}
        self._slow_since: dict[str, float] = {}
        self._lagged: dict[str, float] = {}
        """Time at which each engine last lagged."""

    def observe(self, engine: str, load: EngineLoad, *, now: float) -> None:
        """Take note of a report."""
        interval = self._history.add(engine, load, now=now)
        if interval is None or not interval.running:
            self._intervals.pop(engine, None)
            self._slow_since.pop(engine, None)
            return
        self._intervals[engine] = (now, interval)
        is_slow = self._is_slow(engine, interval, now)
        if is_slow is None:
            is_slow = self.lags(engine, now=now)  # at the end of a step its peers have less to do: still the same
        if not is_slow:
            self._slow_since.pop(engine, None)
        elif now - self._slow_since.setdefault(engine, now) >= self.SUSTAINED:
            self._lagged[engine] = now

    def lags(self, engine: str, *, now: float) -> bool:
        """Return whether an engine lags, or lagged a short time ago."""
        return now - self._lagged.get(engine, -self.RELIEF) < self.RELIEF

    def remove(self, engine: str) -> None:
        """Remove an engine that is lost, or whose requests were held."""
        self._history.remove(engine)
        for figures in (self._intervals, self._slow_since, self._lagged):
            figures.pop(engine, None)

    def _is_slow(self, engine: str, own: LoadInterval, now: float) -> bool | None:
        """Return whether an engine is slow; None without peers."""
        peers = [
            peer.tokens / peer.seconds / peer.running
            for name, (time, peer) in self._intervals.items()
            if name != engine
            and now - time < self.SUSTAINED
            and peer.running >= self.PEER_LOAD * own.running
            and peer.kv_usage >= self.PEER_LOAD * own.kv_usage
        ]
        return own.tokens / own.seconds / own.running < self.SLOW * median(peers) if peers else None
