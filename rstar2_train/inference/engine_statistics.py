"""Metrics of the engines over a step, from their live figures: KV cache, sequences, preemptions, speed, idle time.

The pool adds the figures every few seconds. Each engine has a number, because the address of a pod changes with every
restart. Prometheus has the same figures per pod (vLLM's own metrics).
"""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Sequence
from statistics import fmean

from rstar2_train.inference.engine_load import EngineLoad, LoadHistory, LoadInterval

_DECODE_SAMPLES = 2000
_IDLE_INTERVALS = 6
"""Below this number of intervals, the share of idle ones is no measurement: of two, it would be 0, 50 or 100 %."""


class EngineStatistics:
    """The intervals between two reports of each engine, since the last `take`."""

    def __init__(self) -> None:
        self._history = LoadHistory()
        self._intervals: defaultdict[int, list[LoadInterval]] = defaultdict(list)
        """By number of the engine."""
        self._numbers: dict[str, int] = {}
        self.decode_samples: deque[tuple[float, float, float]] = deque(maxlen=_DECODE_SAMPLES)
        """Sequences, tokens of KV cache, and seconds per decode step, of the newest intervals of the job."""

    def add(self, engine: str, load: EngineLoad, *, kv_tokens: int, now: float) -> None:
        """Add the figures of an engine with a KV cache of `kv_tokens`; `now`: seconds on any clock."""
        interval = self._history.add(engine, load, now=now)
        if interval is None:
            return
        self._intervals[self._number(engine)].append(interval)
        if interval.running and interval.tokens:
            step_seconds = interval.running * interval.seconds / interval.tokens
            self.decode_samples.append((interval.running, interval.kv_usage * kv_tokens, step_seconds))

    def remove(self, engine: str) -> None:
        """Remove an engine that does not serve: the time until its next report does not count."""
        self._history.remove(engine)

    def drop(self, engine: str) -> None:
        """Release the number of an engine that has left the pool: the next new engine gets it."""
        self.remove(engine)
        self._numbers.pop(engine, None)

    def _number(self, engine: str) -> int:
        if engine not in self._numbers:
            used = set(self._numbers.values())
            self._numbers[engine] = next(number for number in itertools.count() if number not in used)
        return self._numbers[engine]

    def take(self) -> dict[str, float]:
        """Return the metrics since the last call; none without two reports of an engine."""
        engines = {number: self._intervals[number] for number in sorted(self._intervals)}
        self._intervals.clear()
        if not engines:
            return {}
        every = [interval for intervals in engines.values() for interval in intervals]
        own = {number: _figures(intervals) for number, intervals in engines.items()}
        speeds = [figures["tokens_per_second"] for figures in own.values()]
        together = _figures(every)
        del together["tokens_per_second"]
        return {
            "engines/count": float(len(engines)),
            "engines/tokens_per_second_mean": fmean(speeds),
            "engines/tokens_per_second_min": min(speeds),
            "engines/tokens_per_second_max": max(speeds),
            **{f"engines/{name}": value for name, value in together.items()},
            **{f"engines/{number}/{name}": value for number, figures in own.items() for name, value in figures.items()},
        }


def _figures(intervals: Sequence[LoadInterval]) -> dict[str, float]:
    """Return the figures of some intervals; means are over time."""
    seconds = sum(interval.seconds for interval in intervals)

    def time_mean(values: list[float]) -> float:
        return sum(value * interval.seconds for value, interval in zip(values, intervals, strict=True)) / seconds

    idle = time_mean([float(interval.running == 0) for interval in intervals])
    return {
        "kv_usage_mean": time_mean([interval.kv_usage for interval in intervals]),
        "kv_usage_max": max(interval.kv_usage for interval in intervals),
        "running_mean": time_mean([interval.running for interval in intervals]),
        "waiting_mean": time_mean([interval.waiting for interval in intervals]),
        "preemptions": float(sum(interval.preemptions for interval in intervals)),
        **({"idle_ratio": idle} if len(intervals) >= _IDLE_INTERVALS else {}),
        "tokens_per_second": sum(interval.tokens for interval in intervals) / seconds,
    }
