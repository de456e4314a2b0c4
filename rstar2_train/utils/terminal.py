"""Signals that stop a long command, and output to a terminal that was closed, for example by a dropped ssh connection.

A long command then stops in order, or continues under nohup. Its later output is lost; nothing else is.
"""

from __future__ import annotations

import errno
import io
import signal
import sys

TERMINAL_CLOSED = (errno.EIO, errno.EPIPE)
"""Errors of a write to a closed terminal, or to a pipe without a reader."""


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that ask a long command to stop. SIGHUP is not one of them under nohup, which ignores it."""
    signals = (signal.SIGINT, signal.SIGTERM)
    return signals if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (*signals, signal.SIGHUP)


def ignore_closed_terminal() -> None:
    """Discard later output if the terminal was closed. Other errors, such as a full disk, are still raised."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        stream.flush()
        wrapped = io.TextIOWrapper(
            io.BufferedWriter(_DiscardingStream(stream.fileno(), "w", closefd=False)),  # type: ignore[type-var]
            encoding=stream.encoding,
            errors=stream.errors,
            line_buffering=stream.line_buffering,
        )
        setattr(sys, name, wrapped)


class _DiscardingStream(io.FileIO):
    def write(self, data: bytes, /) -> int:  # type: ignore[override]
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in TERMINAL_CLOSED:
                raise
            return len(data)
