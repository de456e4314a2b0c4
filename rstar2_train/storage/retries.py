"""Repetition of failed requests with growing, random delays, bounded in time. Pure, with the clock as an argument.

The bound counts from the first failure after the last success: an upload may take longer than an outage.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from rstar2_train.storage.store import StorageUnavailable

Result = TypeVar("Result")

PATIENCE_SECONDS = 900.0
"""How long a bucket may not answer. A job survives an outage of ten minutes, whose last requests time out later."""


class Outage:
    """The failures since the last success."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start without a failure. `clock`: returns seconds that never decrease."""
        self._clock = clock
        self._since: float | None = None

    def fail(self) -> float:
        """Count a failure; return the seconds since the first one after the last success: 0 for the first."""
        now = self._clock()
        if self._since is None:
            self._since = now
        return now - self._since

    def end(self) -> None:
        """Count a success."""
        self._since = None


@dataclass(frozen=True, slots=True)
class Retries:
    """Bounds of the repetition of one operation."""

    patience: float = PATIENCE_SECONDS
    """Seconds since the first failure after which the last error is raised. The request in progress then still ends by
    its own timeout."""
    first_delay: float = 0.1
    """Mean delay in seconds after the first failure; it doubles with each further one."""
    max_delay: float = 15.0
    """Highest mean delay in seconds: a server that is back is used soon."""
    clock: Callable[[], float] = time.monotonic
    """Seconds that never decrease."""
    sleep: Callable[[float], None] = time.sleep
    """Waits some seconds."""

    def run(self, operation: Callable[[], Result]) -> Result:
        """Return the result of an operation; repeat it after StorageUnavailable. Raises the last error."""
        outage, delay = Outage(self.clock), self.first_delay
        while True:
            try:
                return operation()
            except StorageUnavailable as error:
                spent = outage.fail()
                if spent >= self.patience:
                    raise StorageUnavailable(f"{error} (repeated for {spent:.0f} s)") from error
                # Random, so that the ranks of a job do not return to the server together.
                pause = delay * random.uniform(0.5, 1.5)
                self.sleep(min(pause, self.patience - spent))
                delay = min(2 * delay, self.max_delay)
