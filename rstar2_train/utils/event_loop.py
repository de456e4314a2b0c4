"""The event loop of processes with much network I/O: uvloop, which needs less CPU than asyncio's own."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the constructor of uvloop's event loop; None if it is not installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def run_fast(main: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end, as `asyncio.run` does, in uvloop if it is installed.

    Objects that exist already, such as modules, leave the garbage collector: to scan them holds the loop for 50 ms.
    """
    gc.collect()
    gc.freeze()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main)
