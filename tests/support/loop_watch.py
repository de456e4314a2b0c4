"""Fixtures that fail a test in which a process held its event loop (rstar2_train/utils/loop_watch.py).

`from tests.support.loop_watch import loop_is_never_held, watched_loops` in a conftest watches the tests of its folder.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from rstar2_train.utils.loop_watch import VARIABLE


@cache
def loop_watch_file() -> Path:
    """Return the file to which the processes of this test process report."""
    return Path(tempfile.gettempdir(), f"rstar2-loop-watch-{os.getpid()}.jsonl")


def take_reports() -> str:
    """Return the reports since the last call, and delete them."""
    file = loop_watch_file()
    if not file.exists():
        return ""
    reports = file.read_text(encoding="utf-8")
    file.unlink()
    return reports.replace("\\n", "\n")


async def reports_of(act: Callable[[], Awaitable[object]]) -> str:
    """Return the reports of an action that holds a loop twice: on a busy machine, a cold cache can add to one time."""
    await act()
    if take_reports():
        await act()
    return take_reports()


@pytest.fixture(scope="session", autouse=True)
def watched_loops() -> Iterator[None]:
    """Let the processes that tests start report each callback that holds their loop."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(VARIABLE, str(loop_watch_file()))
        yield


@pytest.fixture(autouse=True)
def loop_is_never_held(watched_loops: None) -> Iterator[None]:
    """Fail a test in which a process held its event loop, with the stack."""
    yield
    reports = take_reports()
    assert not reports, f"an event loop was held:\n{reports}"
