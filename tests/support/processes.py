"""The state of a process that may end at any moment."""

from __future__ import annotations

import psutil


def has_ended(pid: int) -> bool:
    """Return whether a process has ended. Its parent may not have read its exit code yet."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
