"""Time for unit tests: a delay of minutes costs nothing, and a slow machine changes no result.

With `virtual_time`, waits end immediately, and work takes no time. With `clock`, which tests with sockets may use, time
passes only when the test sets it.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Sequence

import pytest

from tests.support.clock import Clock


@pytest.fixture
def virtual_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the clocks while an event loop works; when it would wait, set them to its next timer.

    Not for tests with sockets or threads: the loop would not wait for them while a timer runs.
    """
    select, monotonic, now = selectors.DefaultSelector.select, time.monotonic(), time.time()
    passed = 0.0

    def jump(selector: selectors.DefaultSelector, timeout: float | None = None) -> Sequence[object]:
        nonlocal passed
        if timeout is not None and timeout > 0:
            passed, timeout = passed + timeout, 0
        return select(selector, timeout)

    monkeypatch.setattr(selectors.DefaultSelector, "select", jump)
    monkeypatch.setattr(time, "monotonic", lambda: monotonic + passed)
    monkeypatch.setattr(time, "time", lambda: now + passed)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Stop the monotonic clock; timers fire after the test has moved it."""
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    return clock
