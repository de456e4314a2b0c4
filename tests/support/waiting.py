"""Waits for a state, with a deadline that a loaded machine does not reach."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

SECONDS = 300.0


def until(reached: Callable[[], object], goal: str, *, every: float = 0.1) -> None:
    """Return when `reached()` is true. Raises AssertionError with the goal after SECONDS."""
    deadline = time.monotonic() + SECONDS
    while not reached():
        assert time.monotonic() < deadline, f"not reached within {SECONDS:.0f} s: {goal}"
        time.sleep(every)


async def until_async(reached: Callable[[], object], goal: str, *, every: float = 0.05) -> None:
    """Wait as `until` does, while other tasks run."""
    deadline = time.monotonic() + SECONDS
    while not reached():
        assert time.monotonic() < deadline, f"not reached within {SECONDS:.0f} s: {goal}"
        await asyncio.sleep(every)
