"""Metrics of the engines over a step, from their live figures: KV cache, sequences, preemptions, speed, idle time.

The pool adds the figures every few seconds. Prometheus has the same figures per engine (vLLM's own metrics).
"""

from __future__ import annotations

from collections import defaultdict, deque
from statistics import fmean

from rstar2_train.inference.engine_load import EngineLoad, LoadHistory, LoadInterval

_DECODE_SAMPLES = 2000


class EngineStatistics:
    """The intervals between two reports of each engine, since the last `take`."""

    def __init__(self) -> None:
        self._history = LoadHistory()
        self._intervals: defaultdict[str, list[LoadInterval]] = defaultdict(list)
        self.decode_samples: deque[tuple[float, float, float]] = deque(maxlen=_DECODE_SAMPLES)
        """Sequences, tokens of KV cache, and seconds per decode step, of the newest intervals of the job."""

    def add(self, engine: str, load: EngineLoad, *, kv_tokens: int, now: float) -> None:
        """Add the figures of an engine with a KV cache of `kv_tokens`; `now`: seconds on any clock."""
        interval = self._history.add(engine, load, now=now)
        if interval is None:
            return
        self._intervals[engine].append(interval)
        if interval.running and interval.tokens:
            step_seconds = interval.running * interval.seconds / interval.tokens
            self.decode_samples.append((interval.running, interval.kv_usage * kv_tokens, step_seconds))

    def remove(self, engine: str) -> None:
        """Remove an engine that does not serve: the time until its next report does not count."""
        self._history.remove(engine)

    def take(self) -> dict[str, float]:
        """Return the metrics since the last call; none without two reports of an engine."""
        engines = list(self._intervals.values())
        self._intervals.clear()
        if not engines:
            return {}
        every = [interval for intervals in engines for interval in intervals]
        seconds = sum(interval.seconds for interval in every)
        speeds = [_per_second(intervals) for intervals in engines]

        def time_mean(values: list[float]) -> float:
            return sum(value * each.seconds for value, each in zip(values, every, strict=True)) / seconds

        return {
            "engines/count": float(len(engines)),
            "engines/kv_usage_mean": time_mean([interval.kv_usage for interval in every]),
            "engines/kv_usage_max": max(interval.kv_usage for interval in every),
            "engines/running_mean": time_mean([interval.running for interval in every]),
            "engines/waiting_mean": time_mean([interval.waiting for interval in every]),
            "engines/preemptions": float(sum(interval.preemptions for interval in every)),
            "engines/idle_ratio": time_mean([float(interval.running == 0) for interval in every]),
            "engines/tokens_per_second_mean": fmean(speeds),
            "engines/tokens_per_second_min": min(speeds),
            "engines/tokens_per_second_max": max(speeds),
        }


def _per_second(intervals: list[LoadInterval]) -> float:
    return sum(interval.tokens for interval in intervals) / sum(interval.seconds for interval in intervals)
