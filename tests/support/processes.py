"""Processes that may end at any moment, and those of pods: with a disk of their own, and left by a killed pod."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
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


def with_own_disk(folder: Path, command: Sequence[str]) -> list[str]:
    """Return a command with an empty disk at `folder`, which hides that of all other processes. Needs root."""
    return ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs "$0" && exec "$@"', str(folder), *command]
