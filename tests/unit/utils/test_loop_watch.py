"""The watch of an event loop."""

import asyncio
import hashlib
import os
import threading
import time
from pathlib import Path

import pytest

from rstar2_train.utils.loop_watch import LIMIT_SECONDS, VARIABLE, watch_loop


def compute(seconds: float) -> None:
    """Use the CPU for this time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(1000))


async def report(monkeypatch: pytest.MonkeyPatch, file: Path, *callbacks: float) -> str:
    """Return the report after callbacks that use the CPU for these times, in one turn of the loop."""
    monkeypatch.setenv(VARIABLE, str(file))
    with watch_loop():
        await asyncio.sleep(0.05)
        for seconds in callbacks:
            asyncio.get_running_loop().call_soon(compute, seconds)
        await asyncio.sleep(0.05)
    return file.read_text() if file.exists() else ""


async def test_loop_held_is_reported_with_the_stack(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The report has the time and the lines of the callback."""
    text = await report(monkeypatch, tmp_path / "lag", 8 * LIMIT_SECONDS)
    assert "in compute" in text and '"seconds": 0.' in text


async def test_loop_held_by_one_call_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A function of C that keeps the GIL, so that no sample can be taken."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "lag"))
    with watch_loop():
        await asyncio.sleep(0.05)
        for _ in range(3):
            sum(range(10_000_000))
            await asyncio.sleep(0.05)
    assert (tmp_path / "lag").read_text().count('"seconds": 0.') == 3


async def test_loop_held_by_callback_of_c_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A function of C that frees the GIL: the samples see the loop's own line, and a callback runs."""
    rounds, seconds = 10_000, 0.0
    while seconds < 4 * LIMIT_SECONDS:  # a short call takes longer per round: its caches are cold
        rounds, start = 2 * rounds, time.thread_time()
        hashlib.pbkdf2_hmac("sha256", b"", b"", rounds)
        seconds = time.thread_time() - start
    monkeypatch.setenv(VARIABLE, str(tmp_path / "lag"))
    with watch_loop():
        await asyncio.sleep(0.05)
        asyncio.get_running_loop().call_soon(hashlib.pbkdf2_hmac, "sha256", b"", b"", rounds)
        await asyncio.sleep(0.05)
    assert (tmp_path / "lag").exists()


async def test_loop_with_short_callbacks_is_not_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Callbacks below the limit, which together exceed it, are none."""
    assert await report(monkeypatch, tmp_path / "lag", *[LIMIT_SECONDS / 5] * 20) == ""


async def test_loop_with_short_tasks_is_not_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Python may use the memory of the frame of a task that ended for the next one."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "lag"))

    async def task() -> None:
        compute(LIMIT_SECONDS / 50)

    with watch_loop():
        await asyncio.gather(*(task() for _ in range(200)))
    assert not (tmp_path / "lag").exists()


async def test_watch_without_processor_reports_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The loop takes the only processor for many short callbacks, and the watch can't run between them."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "lag"))
    processors = os.sched_getaffinity(0)
    with watch_loop():
        (watch,) = (thread.native_id for thread in threading.enumerate() if thread.name == "loop-watch")
        assert watch is not None
        await asyncio.sleep(0.05)
        for thread in (0, watch):
            os.sched_setaffinity(thread, {min(processors)})
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        for _ in range(20):
            asyncio.get_running_loop().call_soon(compute, LIMIT_SECONDS / 5)
        await asyncio.sleep(0.05)
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        os.sched_setaffinity(0, processors)
    assert not (tmp_path / "lag").exists()


async def test_loop_that_waits_is_not_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Wall-clock time does not count: the machine may be busy."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "lag"))
    with watch_loop():
        time.sleep(4 * LIMIT_SECONDS)
        await asyncio.sleep(0.02)
    assert not (tmp_path / "lag").exists()
