"""The faults of a simulated week, drawn from a seed. Pure: bench/week_cluster.py and bench/week.py carry them out."""

from __future__ import annotations

import random
from collections import Counter
from typing import Literal, TypeVar

Key = tuple[str, str]
F = TypeVar("F", bound=str)
T = TypeVar("T")
StartFault = Literal["rejection", "sidecar", "init", "silent", "gate", "unreported"]
RunFault = Literal["crash", "hang", "preemption", "deletion", "configuration"]
START_SHARE = 0.15
"""Share of the batch Jobs that do not start as they should."""
RUN_SHARE = 0.3
"""Share of the attempts that a fault ends."""
COUNTED = frozenset({"crash", "hang", "unreported"})
"""Faults whose restarts count towards maxRestarts."""
MAX_COUNTED = 4
"""Counted faults of one job: fewer than maxRestarts, so that no job may fail by them."""
HOUR = 3600.0


class Faults:
    """Draws faults, and counts them by kind."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self._counted: Counter[Key] = Counter()
        self.misconfigured: set[Key] = set()
        """Jobs that fail by their own fault."""

    def start_seconds(self) -> float:
        """Return the seconds that a pod takes to start."""
        return self._random.uniform(5, 120)

    def steps(self, job: Key, stage: str) -> tuple[int, float]:
        """Return number and seconds of the steps of a stage, the same for all its attempts."""
        own = random.Random(f"{job}{stage}")
        return own.randint(8, 40), own.uniform(200, 900)

    def draw_start(self, job: Key, *, is_attempt: bool) -> StartFault | None:
        """Return what goes wrong when the pods of a batch Job start."""
        if self._random.random() > START_SHARE:
            return None
        kinds: list[StartFault] = ["rejection", "sidecar", "init", "silent", "gate"]
        if not is_attempt:
            kinds.remove("rejection")  # the Job controller would replace the pod
        if is_attempt and self._counted[job] < MAX_COUNTED:
            kinds.append("unreported")
        return self._note(job, self._random.choice(kinds))

    def draw_run(self, job: Key, steps: int) -> tuple[RunFault | None, int]:
        """Return what ends an attempt, and after how many of its steps."""
        if self._random.random() > RUN_SHARE or steps < 1:
            return None, -1
        kinds: list[RunFault] = ["preemption", "deletion"]
        if self._counted[job] < MAX_COUNTED:
            kinds += ["crash", "hang"]
        kind = self._random.choice(kinds)
        if self._random.random() < 0.03:
            kind = "configuration"
            self.misconfigured.add(job)
        return self._note(job, kind), self._random.randrange(steps)

    def _note(self, job: Key, kind: F) -> F:
        self.counts[kind] += 1
        self._counted[job] += kind in COUNTED
        return kind

    def note(self, kind: str) -> None:
        """Count a fault that this class does not draw."""
        self.counts[kind] += 1

    def times(self, every: float, length: tuple[float, float], until: float) -> list[tuple[float, float]]:
        """Return (start, duration) in seconds of faults that come every `every` hours on average."""
        result, at = [], 0.0
        while (at := at + self._random.expovariate(1 / every) * HOUR) < until:
            result.append((at, self._random.uniform(*length)))
        return result

    def choose(self, values: list[T]) -> T:
        """Return one of the values."""
        return self._random.choice(values)

    def uniform(self, low: float, high: float) -> float:
        """Return a number between the two."""
        return self._random.uniform(low, high)
