"""The event loop of processes with much network I/O: uvloop, which needs less CPU than asyncio's own."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")
GC_THRESHOLDS = (20_000, 20, 20)
"""New objects before a collection of the youngest generation, and collections before one of the next generation."""

LATE_SECONDS = 0.5
"""Delay of a timer that shows a pause of this process or machine: it fires before what has arrived is read."""


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the constructor of uvloop's event loop; None if it is not installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def shorten_collections() -> None:
    """Keep the garbage collector from holding a loop; call it once, when the lasting objects exist.

    Existing objects, such as modules, leave the collector: to scan them takes 50 to 100 ms. Its usual thresholds are
    for short scripts; a loop creates thousands of objects in a moment, and most end by themselves.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def run_with_uvloop(main: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end, as `asyncio.run` does, in uvloop if it is installed."""
    shorten_collections()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main)
