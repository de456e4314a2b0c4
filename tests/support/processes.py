"""The state of a process that may end at any moment."""

from __future__ import annotations

import psutil


def has_ended(process: psutil.Process | int) -> bool:
    """Return whether a process, or that with an id, has ended. Its parent may not have read its exit code yet."""
    try:
        process = psutil.Process(process) if isinstance(process, int) else process
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
