"""Reports each callback that holds an event loop, with its stack. For tests and diagnosis.

A process whose environment has RSTAR2_LOOP_WATCH=FILE appends a line of JSON to the file per callback that used more
than LIMIT_SECONDS of the loop's thread. On a busy machine nothing else is reported, because the CPU time of the thread
counts, not the wall-clock time, and no time in which the watch itself had no processor.
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
"""The same for a time without a sample in a callback: on a busy machine, one pass of the loop has many short ones."""
SAMPLE_SECONDS = 0.01
LEAST_RUNS = 6
"""Times that the watch runs while it waits for the GIL, after which another thread keeps it. Else two or three."""
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
        self._seen_at = time.clock_gettime(self._clock)
        """CPU time of the thread at the last beat or sample."""
        self._hidden: list[float] = []
        """Seconds of CPU time that passed without a beat or a sample, and that are not reported yet."""
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
        # Here, not in the thread: on a busy machine it may sleep for several beats.
        self._see()
        self._timer = self._loop.call_later(SAMPLE_SECONDS, self._beat)

    def _sample(self) -> None:
        """Report a callback if all samples in LIMIT_SECONDS of CPU time, without a beat between them, are in it.

        Report also a time without a sample and a beat: a call of C held the GIL. The stack is that of the next line, or
        a later one.
        """
        held: tuple[int, object] | None = None
        start, last, reported = 0.0, 0.0, False
        scheduling = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        runs = 0
        while not self._stopped.wait(SAMPLE_SECONDS):
            now, beats = self._see(), self._beats
            frame = sys._current_frames().get(self._thread_id)
            current = (beats, _callback(frame)) if frame is not None else None
            before, runs = runs, _runs(scheduling)
            has_held_gil = self._report_hidden(frame, runs - before)
            in_loop = frame is not None and _is_in_loop(frame)
            # Between two distant samples of the loop itself, many callbacks may have run.
            if current != held or (in_loop and now - last > 3 * SAMPLE_SECONDS):
                held, start, reported = current, now, has_held_gil
            last = now
            if frame is not None and not reported and now - start > (HIDDEN_SECONDS if in_loop else LIMIT_SECONDS):
                reported = True
                self._report(now - start, frame)
        self._report_hidden(None, _runs(scheduling) - runs)
        os.close(scheduling)

    def _see(self) -> float:
        """Return the CPU time of the thread. Take note of a long time since the last beat or sample."""
        now, before = time.clock_gettime(self._clock), self._seen_at
        if now - before > HIDDEN_SECONDS:
            self._hidden.append(now - before)
        self._seen_at = max(self._seen_at, now)
        return now

    def _report_hidden(self, frame: FrameType | None, runs: int) -> bool:
        """Report the times without a beat and a sample. Return whether there were any.

        `runs`: times that the watch ran since its last sample. If they are few, it had no processor.
        """
        taken, self._hidden = self._hidden, []
        hidden = taken if runs >= LEAST_RUNS else []
        for seconds in hidden:
            self._report(seconds, frame)
        return bool(hidden)

    def _report(self, seconds: float, frame: FrameType | None) -> None:
        stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"pid": os.getpid(), "seconds": round(seconds, 3), "stack": stack}) + "\n")


def _runs(scheduling: int) -> int:
    """Return how often the kernel has run the thread of this open file.

    One system call, because the thread waits for the GIL after each one.
    """
    return int(os.pread(scheduling, 128, 0).split()[2])


def _is_in_loop(frame: FrameType) -> bool:
    """Return whether a sample is in a loop of C itself, such as uvloop, so that no callback was seen."""
    is_handle = frame.f_code is asyncio.Handle._run.__code__  # it runs a callback of C
    return frame.f_code.co_filename.endswith(_LOOP_FILES) and not is_handle


def _callback(frame: FrameType) -> object:
    """Return the callback that runs: asyncio's handle, else the frame that the loop called.

    The object itself, because Python uses the address of a frame that returned again for the next one.
    """
    while frame.f_back is not None and not frame.f_back.f_code.co_filename.endswith(_LOOP_FILES):
        frame = frame.f_back
    caller = frame.f_back
    if caller is not None and caller.f_code is asyncio.Handle._run.__code__:
        return caller.f_locals["self"]
    return frame
