"""Maps the end of a process to the status of a call. Pure, and the only place where a status is decided.

The input is what the executor's trusted parent process observed (reason, wait status), never the snippet's output.
"""

from __future__ import annotations

import codecs
import os
import signal
from dataclasses import dataclass

from rstar2_train.judge.returned_files import read_files
from rstar2_train.judge.types import CallResult, Status

MEMORY_SIGNAL = 64
"""Signal with which the executor's child reports an uncaught MemoryError (same value in executor/program.py)."""
MEMORY_EXIT = 1
"""Exit status of a fresh interpreter after an uncaught MemoryError."""


@dataclass(slots=True)
class ProcessExit:
    """The end of a call's process, or of a cell, as the executor observed it."""

    reason: str
    """exited | timeout | output_limit | setup_failed | no_session"""
    wait_status: int
    """Status as returned by wait()."""
    run_seconds: float
    stdout: str
    stderr: str
    session_lives: bool = False
    """Of a cell: whether its session continues."""
    files: bytes = b""
    """Stream of the files that the call returns."""


class OutputReader:
    """Decodes the outputs in a response while it arrives: all of them together would hold the event loop."""

    def __init__(self, start: int, out: int, err: int) -> None:
        """`start`: position of stdout in the response. `out`, `err`: bytes."""
        self._position = start
        self._ends = (start + out, start + out + err)
        self._parts: tuple[list[str], list[str]] = ([], [])
        self._decoders = [codecs.getincrementaldecoder("utf-8")("replace") for _ in self._ends]

    def read(self, response: bytearray) -> None:
        """Decode what has arrived since the last call."""
        for end, decoder, parts in zip(self._ends, self._decoders, self._parts, strict=True):
            start = self._position
            if start < end:
                self._position = min(end, len(response))
                parts.append(decoder.decode(response[start : self._position], self._position == end))

    def texts(self) -> tuple[str, str]:
        """Return stdout and stderr."""
        out, err = self._parts
        return "".join(out), "".join(err)


def to_result(process_exit: ProcessExit) -> CallResult:
    """Return the result of a call. `setup_failed` is a failure of the judge and gives status `internal`."""
    code = os.waitstatus_to_exitcode(process_exit.wait_status)
    stderr = process_exit.stderr
    status: Status
    if process_exit.reason == "timeout":
        status = "timeout"
    elif process_exit.reason == "output_limit":
        status = "output_limit"
    elif process_exit.reason == "no_session":
        status = "session_lost"
    elif process_exit.reason == "setup_failed":
        status = "internal"
    elif code == 0:
        status = "ok"
    elif code == -MEMORY_SIGNAL:
        status, code = "memory", MEMORY_EXIT
    else:
        status = "error"
        if code < 0:
            stderr += signal_note(code)
    return CallResult(
        status=status,
        stdout=process_exit.stdout,
        stderr=stderr,
        exit_code=code if process_exit.reason == "exited" else None,
        run_seconds=process_exit.run_seconds,
        session_lives=process_exit.session_lives,
        files=read_files(process_exit.files),
    )


def signal_note(code: int | None) -> str:
    """Return the line that names the signal of this exit code; empty if it is not that of a signal."""
    return f"ended by signal {-code} ({signal_name(-code)})\n" if code is not None and code < 0 else ""


def signal_name(number: int) -> str:
    """Return the name of a signal, such as SIGSEGV for 11. Real-time signals have no name of their own."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return "a real-time signal"
