"""Runs a coroutine to its end from synchronous code, also when an event loop runs in the calling thread."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")


def run_in_new_loop(work: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of `work`, which runs in an event loop of its own. Blocks. Raises the error of `work`."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
