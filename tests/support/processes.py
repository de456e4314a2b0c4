"""Processes that may end at any moment: their state, and the end of those that a killed test pod leaves."""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil


def has_ended(process: psutil.Process | int) -> bool:
    """Return whether a process, or that with an id, has ended. Its parent may not have read its exit code yet."""
    try:
        process = psutil.Process(process) if isinstance(process, int) else process
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def kill_processes_of(folder: Path) -> None:
    """Kill the processes with a test's folder in their command line. In a real pod they stop with its first process."""
    for process in psutil.process_iter(["cmdline"]):
        if str(folder) in " ".join(process.info["cmdline"] or ()):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
