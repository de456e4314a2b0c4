"""Repetition of failed requests with growing, random delays, bounded in time. Pure, with the clock as an argument."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from rstar2_train.storage.store import StorageUnavailable

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Retries:
    """Bounds of the repetition of one operation."""

    patience: float = 600.0
    """Seconds after which the last error is raised. The request in progress then still ends by its own timeout."""
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
        started, delay = self.clock(), self.first_delay
        while True:
            try:
                return operation()
            except StorageUnavailable as error:
                spent = self.clock() - started
                if spent >= self.patience:
                    raise StorageUnavailable(f"{error} (repeated for {spent:.0f} s)") from error
                # Random, so that the ranks of a job do not return to the server together.
                pause = delay * random.uniform(0.5, 1.5)
                self.sleep(min(pause, self.patience - spent))
                delay = min(2 * delay, self.max_delay)
