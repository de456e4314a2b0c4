"""Stops the children of a supervisor that was killed: `python -m rstar2_train.utils.orphan_guard REGISTER PID [GRACE]`.

The kernel sends SIGTERM to the children of a process that dies (PDEATHSIG), but only once. A child that starts at this
moment can lose it: an engine would then hold its GPU until the next run. So each supervisor (`supervisor.py`) starts
this process, and the standard input of this process is a pipe that ends with the supervisor.
"""

from __future__ import annotations

import sys
from pathlib import Path

import psutil

from rstar2_train.utils.supervisor import leftovers, stop_processes

GRACE_SECONDS = 120.0
"""In which the children may end by themselves: an orchestrator writes a checkpoint."""


def main(register: Path, parent: int, grace: float) -> None:
    """Wait for the end of standard input, then stop the children of `parent` that remain after `grace` seconds."""
    sys.stdin.buffer.read()
    _, remaining = psutil.wait_procs(leftovers(register, parent=parent), timeout=grace)
    stop_processes(remaining)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]) if len(sys.argv) > 3 else GRACE_SECONDS)
