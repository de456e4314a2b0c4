"""Children that a killed supervisor left behind, found by its register; and the process that stops them.

    python -m rstar2_train.utils.leftovers REGISTER PID [GRACE]

The kernel sends SIGTERM to the children of a process that dies (PDEATHSIG), but only once. A child that starts at this
moment can lose it: an engine would then hold its GPU until the next run. So each supervisor (`supervisor.py`) starts
this process, and the standard input of this process is a pipe that ends with the supervisor.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

GRACE_SECONDS = 120.0
"""In which the children may end by themselves: an orchestrator writes a checkpoint."""


def guard(register: Path, parent: int, grace: float) -> None:
    """Wait for the end of standard input, then stop the children of `parent` that remain after `grace` seconds."""
    sys.stdin.buffer.read()
    _, remaining = psutil.wait_procs(leftovers(register, parent=parent), timeout=grace)
    stop_processes(remaining)


def leftovers(register: Path, *, parent: int | None = None) -> list[psutil.Process]:
    """Return the processes of the children in a register that still run; `parent`: only those of this process."""
    if not register.exists():
        return []
    processes: list[psutil.Process] = []
    for entry in json.loads(register.read_text(encoding="utf-8")):
        if parent is not None and entry.get("parent") != parent:
            continue
        try:
            process = psutil.Process(entry["pid"])
            if process.create_time() == entry["started"]:
                processes += [process, *process.children(recursive=True)]
        except psutil.NoSuchProcess:  # the kernel does not reuse its pid while its session has a process
            processes += _session(entry["pid"])
    return processes


def stop_leftovers(register: Path) -> int:
    """Stop the children that a killed run left behind; return their number."""
    processes = leftovers(register)
    stop_processes(processes)
    register.unlink(missing_ok=True)
    return len(processes)


def stop_processes(processes: Sequence[psutil.Process]) -> None:
    """Send SIGTERM, wait, then send SIGKILL to those that still run."""
    for process in processes:
        _ignore_missing(process.terminate)
    _, alive = psutil.wait_procs(processes, timeout=10)
    for process in alive:
        _ignore_missing(process.kill)
    psutil.wait_procs(alive, timeout=5)


def _ignore_missing(action: Callable[[], None]) -> None:
    try:
        action()
    except psutil.NoSuchProcess:
        return


def _session(pid: int) -> list[psutil.Process]:
    """Return the processes of the session that `pid` created."""
    members = []
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(process.pid) == pid:
                members.append(process)
    return members


if __name__ == "__main__":
    guard(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]) if len(sys.argv) > 3 else GRACE_SECONDS)
