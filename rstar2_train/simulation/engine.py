"""One simulated engine over time: continuous batching, a paged KV cache, and preemption with recomputation, as vLLM.

Between two events the batch is constant and the cache grows by one token per sequence and step: the time of many steps
has a closed form. All sequences advance together. A prefill holds the batch for its duration. When the cache is full,
the newest request is preempted: it waits, and its tokens are computed again when there is space.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import OrderedDict, deque
from dataclasses import dataclass

from rstar2_train.inference.engine_load import EngineLoad
from rstar2_train.simulation.hardware import Hardware

_NEVER = math.inf
_TOLERANCE = 1e-6


@dataclass(slots=True, eq=False)
class _Request:
    key: int
    context: int
    """Tokens at its start or at its last recomputation."""
    remaining: float
    """Tokens that it samples after `context`."""
    start: float = 0.0
    """Steps of the engine at its start."""
    preempted: bool = False


@dataclass(frozen=True, slots=True)
class EngineSample:
    """The state of an engine at one time."""

    time: float
    sequences: int
    kv_usage: float


class SimulatedEngine:
    """One engine. `advance` moves its time; events are at `next_event`."""

    def __init__(self, name: str, hardware: Hardware) -> None:
        self.name, self.hardware = name, hardware
        self.time = 0.0
        self.busy_seconds = 0.0
        self.preemptions = 0
        self.recomputed_tokens = 0
        self.prefilled_tokens = 0
        self.sampled_tokens = 0.0
        self.samples: list[EngineSample] = []
        self._steps = 0.0
        self._stall = 0.0
        """Seconds of prefill that hold the batch."""
        self._running: dict[int, _Request] = {}
        self._ends: list[tuple[float, int, _Request]] = []
        self._count = itertools.count()
        self._base = 0.0
        """Tokens in the cache = `_base` + `_steps` * number of running requests."""
        self._waiting: deque[_Request] = deque()
        self._cached: OrderedDict[int, int] = OrderedDict()
        """Context of the trajectories whose turn has ended, oldest first; space permitting, it needs no prefill."""
        self._cached_tokens = 0

    @property
    def running(self) -> int:
        """Number of sequences of the batch."""
        return len(self._running)

    @property
    def kv_tokens(self) -> float:
        """Tokens of KV cache in use by the batch, with half a block per sequence."""
        return self._base + (self._steps + self.hardware.block_tokens / 2) * len(self._running)

    @property
    def load(self) -> EngineLoad:
        """Live figures, as an engine's metrics have them."""
        usage = min(1.0, self.kv_tokens / self.hardware.kv_tokens)
        return EngineLoad(usage, len(self._running), len(self._waiting), self.preemptions, round(self.sampled_tokens))

    def add(self, key: int, *, context: int, tokens: int) -> None:
        """Add a request: `tokens` to sample after `context`."""
        self._waiting.append(_Request(key, context, float(tokens)))
        self._admit()

    def abort(self, key: int) -> int | None:
        """Remove a request; return the number of tokens that it still has to sample, None if there is no request."""
        request = self._running.get(key)
        if request is not None:
            rest = request.remaining - (self._steps - request.start)
            self._leave(request)
            self._admit()
            return max(1, math.ceil(rest))
        waiting = [other for other in self._waiting if other.key == key]
        self._waiting = deque(other for other in self._waiting if other.key != key)
        return max(1, math.ceil(waiting[0].remaining)) if waiting else None

    def drop(self, key: int) -> None:
        """Drop the cached context of a finished trajectory."""
        self._cached_tokens -= self._cached.pop(key, 0)

    def next_event(self) -> float:
        """Return the time of the next end of a request, or of the next preemption."""
        if not self._running:
            return _NEVER
        while self._running.get(self._ends[0][2].key) is not self._ends[0][2]:
            heapq.heappop(self._ends)
        steps = max(0.0, self._ends[0][0] - self._steps)
        steps = min(steps, max(0.0, self._space() / len(self._running)))
        return self.time + self._stall + self._seconds(steps)

    def advance(self, time: float) -> list[int]:
        """Move to `time`, which is not after `next_event`. Return the keys whose turn has ended."""
        elapsed = time - self.time
        self.time = time
        if not self._running:
            self._stall = max(0.0, self._stall - elapsed)
            return []
        self.busy_seconds += elapsed
        held = min(self._stall, elapsed)
        self._stall -= held
        steps = self._steps_in(elapsed - held)
        self._steps += steps
        self.sampled_tokens += steps * len(self._running)
        ended: list[int] = []
        while self._ends and self._ends[0][0] <= self._steps + _TOLERANCE:
            _, _, request = heapq.heappop(self._ends)
            key = request.key
            if self._running.get(key) is request:
                context = round(request.context + request.remaining)
                self._leave(request)
                self._cached[key] = context
                self._cached_tokens += context
                ended.append(key)
        if ended:
            self._admit()
        while len(self._running) > 1 and self._space() <= _TOLERANCE:
            self._preempt()
        return ended

    def sample(self) -> None:
        """Record the present state for the picture."""
        self.samples.append(EngineSample(self.time, len(self._running), self.load.kv_usage))

    def _space(self) -> float:
        return self.hardware.kv_tokens - self.kv_tokens if len(self._running) > 1 else _NEVER

    def _seconds(self, steps: float) -> float:
        count = len(self._running)
        first = self.hardware.seconds(count, self._base + self._steps * count)
        return steps * first + self.hardware.token_seconds * count * steps * steps / 2

    def _steps_in(self, seconds: float) -> float:
        count = len(self._running)
        first = self.hardware.seconds(count, self._base + self._steps * count)
        growth = self.hardware.token_seconds * count
        if growth * seconds < 1e-12:
            return seconds / first
        return (math.sqrt(first * first + 2 * growth * seconds) - first) / growth

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self.hardware.max_sequences:
            request = self._waiting[0]
            needed = request.context + self.hardware.block_tokens
            if self._running and self.kv_tokens + needed > self.hardware.kv_tokens:
                return
            self._waiting.popleft()
            cached = min(self._cached.pop(request.key, 0), request.context)
            self._cached_tokens -= cached
            while self._cached and self.kv_tokens + needed + self._cached_tokens > self.hardware.kv_tokens:
                self._cached_tokens -= self._cached.popitem(last=False)[1]
            prefill = request.context - cached
            if request.preempted:
                self.recomputed_tokens += prefill
            self.prefilled_tokens += prefill
            self._stall += prefill * self.hardware.prefill_seconds + self.hardware.request_seconds
            request.start = self._steps
            self._running[request.key] = request
            self._base += request.context - self._steps
            heapq.heappush(self._ends, (self._steps + request.remaining, next(self._count), request))

    def _leave(self, request: _Request) -> None:
        del self._running[request.key]
        self._base -= request.context - request.start

    def _preempt(self) -> None:
        request = next(reversed(self._running.values()))
        self._leave(request)
        done = self._steps - request.start
        again = _Request(request.key, round(request.context + done), request.remaining - done, preempted=True)
        self._waiting.appendleft(again)
        self.preemptions += 1
