"""Measures the lag of an event loop: the time by which a timer fires too late because something holds the loop.

The rollouts of a step report it, and `make bench-rollout` measures it. With a lag of seconds, requests to healthy
engines and judges time out.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import Self

_KEPT = 100_000


class LagSamples:
    """The newest 100,000 samples of the lag of one loop, in seconds."""

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=_KEPT)

    def extend(self, samples: Iterable[float]) -> None:
        """Add samples."""
        self._samples.extend(samples)

    def quantile(self, fraction: float) -> float:
        """Return the lag in seconds that `fraction` of the samples do not exceed; 0 without samples."""
        ordered = sorted(self._samples)
        return ordered[max(0, math.ceil(fraction * len(ordered)) - 1)] if ordered else 0.0

    def take(self, fraction: float) -> float:
        """Return the quantile of the samples since the last call."""
        lag = self.quantile(fraction)
        self._samples.clear()
        return lag

    def take_samples(self) -> list[float]:
        """Return the samples since the last call."""
        samples = list(self._samples)
        self._samples.clear()
        return samples


class LoopLag(LagSamples):
    """Samples the lag of the running loop. Use as `async with`."""

    def __init__(self, *, interval: float = 0.2) -> None:
        """`interval`: seconds between two samples. Each one wakes an idle process."""
        super().__init__()
        self._interval = interval
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._sample())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _sample(self) -> None:
        while True:
            due = time.perf_counter() + self._interval
            await asyncio.sleep(self._interval)
            self._samples.append(max(0.0, time.perf_counter() - due))
