"""Reports each callback that holds an event loop, with its stack. For tests and diagnosis.

A process whose environment has RSTAR2_LOOP_WATCH=FILE appends a line of JSON to the file per callback that used more
than LIMIT_SECONDS of the loop's thread. The CPU time of the thread counts, not the wall-clock time, so that a busy
machine changes nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

VARIABLE = "RSTAR2_LOOP_WATCH"
LIMIT_SECONDS = 0.05
HIDDEN_SECONDS = 0.1
"""The same for a time without a sample: on a busy machine it may hold many short callbacks of one pass of the loop."""
SAMPLE_SECONDS = 0.01
_LOOP_FILES = ("asyncio/events.py", "asyncio/runners.py", "uvicorn/server.py", "uvicorn/_compat.py")
"""Files of the functions that call a callback, or that run a loop in C."""


@contextmanager
def watch_loop() -> Iterator[None]:
    """Watch the running loop, if the environment has a file for the reports."""
    file = os.environ.get(VARIABLE)
    if not file:
        yield
        return
    watch = _LoopWatch(asyncio.get_running_loop(), Path(file))
    try:
        yield
    finally:
        watch.stop()


class _LoopWatch:
    """A timer of the loop shows that the loop is free; a thread samples the callback that runs meanwhile."""

    def __init__(self, loop: asyncio.AbstractEventLoop, file: Path) -> None:
        self._loop = loop
        self._file = file
        self._thread_id = threading.get_ident()
        self._clock = time.pthread_getcpuclockid(self._thread_id)
        self._beats = 0
        self._stopped = threading.Event()
        self._timer = loop.call_later(SAMPLE_SECONDS, self._beat)
        self._sampler = threading.Thread(target=self._sample, name="loop-watch", daemon=True)
        self._sampler.start()

    def stop(self) -> None:
        """End the watch."""
        self._stopped.set()
        self._timer.cancel()
        self._sampler.join()

    def _beat(self) -> None:
        self._beats += 1
        self._timer = self._loop.call_later(SAMPLE_SECONDS, self._beat)

    def _sample(self) -> None:
        """Report a callback if all samples in LIMIT_SECONDS of CPU time, without a beat between them, are in it.

        Report also a time without a sample, and with one beat at most: a call of C held the GIL. The stack is that of
        the next line.
        """
        held: tuple[int, int] | None = None
        start, reported = 0.0, False
        last, last_beats = time.clock_gettime(self._clock), self._beats
        while not self._stopped.wait(SAMPLE_SECONDS):
            now, beats = time.clock_gettime(self._clock), self._beats
            frame = sys._current_frames().get(self._thread_id)
            current = (beats, _callback(frame)) if frame is not None else None
            has_held_gil = now - last > HIDDEN_SECONDS and beats - last_beats <= 1
            if current != held:
                held, start, reported = current, now, False
            if frame is not None and not reported and (has_held_gil or now - start > LIMIT_SECONDS):
                reported = True
                self._report(now - last if has_held_gil else now - start, "".join(traceback.format_stack(frame)))
            last, last_beats = now, beats

    def _report(self, seconds: float, stack: str) -> None:
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"pid": os.getpid(), "seconds": round(seconds, 3), "stack": stack}) + "\n")


def _callback(frame: FrameType) -> int:
    """Return the identity of the callback that runs: of the frame that the loop called."""
    while frame.f_back is not None and not frame.f_back.f_code.co_filename.endswith(_LOOP_FILES):
        frame = frame.f_back
    return id(frame)
