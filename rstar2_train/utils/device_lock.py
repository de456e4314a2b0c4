"""The lock of a device that trainer and engine use by time-sharing: the trainer holds it while it has the device.

A supervisor restarts a killed engine immediately. Its start would fail, repeatedly, because the trainer has the
memory. So an engine waits for the lock before it starts. The lock of a killed trainer is free.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path
from typing import IO


class DeviceLock:
    """The trainer's side."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[str] | None = None

    def acquire(self) -> None:
        """Lock the file; no effect if this object holds it. Waiting engines hold it only for an instant."""
        if self._file is None:
            self._file = self._path.open("a")
            fcntl.flock(self._file, fcntl.LOCK_EX)

    def release(self) -> None:
        """Let the engines start."""
        if self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)  # also for a forked process, which has the same open file
            self._file.close()
            self._file = None


def wait_until_released(path: Path, *, on_wait: Callable[[], None]) -> None:
    """Return when no trainer holds the lock. `on_wait`: called before a wait. Raises OSError."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_SH)
