"""From how a process ended to the status of a call: pure, and the only place where a status is decided.

Input is what the executor's parent process saw (reason, wait status), never what the snippet printed.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

from rstar2_train.judge.types import CallResult, Status

MEMORY_EXIT = 85
"""Exit status with which the executor's child reports an uncaught MemoryError (as in executor/program.py)."""


@dataclass(slots=True)
class ProcessExit:
    """How a process ended, in the executor's words."""

    reason: str
    """exited | timeout | output_limit | setup_failed | no_session"""
    wait_status: int
    """As wait() gives it."""
    run_seconds: float
    stdout: bytes
    stderr: bytes
    lives: bool = False
    """Of a cell: whether its session goes on."""


def to_result(outcome: ProcessExit) -> CallResult:
    """The answer to a call. `setup_failed` is the judge's own fault: internal."""
    code = os.waitstatus_to_exitcode(outcome.wait_status)
    stderr = outcome.stderr.decode("utf-8", "replace")
    status: Status
    if outcome.reason == "timeout":
        status = "timeout"
    elif outcome.reason == "output_limit":
        status = "output_limit"
    elif outcome.reason == "no_session":
        status = "session_lost"
    elif outcome.reason == "setup_failed":
        status = "internal"
    elif code == 0:
        status = "ok"
    elif code == MEMORY_EXIT:
        status = "memory"
    else:
        status = "error"
        if code < 0:
            stderr += f"ended by signal {-code} ({signal_name(-code)})\n"
    return CallResult(
        status=status,
        stdout=outcome.stdout.decode("utf-8", "replace"),
        stderr=stderr,
        exit_code=code if outcome.reason == "exited" else None,
        run_seconds=outcome.run_seconds,
        session_lives=outcome.lives,
    )


def signal_name(number: int) -> str:
    """SIGSEGV for 11; real-time signals have only a number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return "a real-time signal"
