"""What a program does when the terminal that it was started from goes away: an ssh connection that drops, say.

A long command ends in order, or under nohup goes on; what it still has to say is lost, and nothing else is.
"""

from __future__ import annotations

import errno
import io
import signal
import sys

GONE = (errno.EIO, errno.EPIPE)
"""What writing to a terminal, or to a pipe, answers that nobody reads any more."""


def ending_signals() -> tuple[signal.Signals, ...]:
    """The signals that ask a long command to end. A hang-up is none for a program under nohup, which ignores it."""
    asked = (signal.SIGINT, signal.SIGTERM)
    return asked if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (*asked, signal.SIGHUP)


def outlive_terminal() -> None:
    """From now on a print to a terminal that has gone is no error. Other errors, such as a full disk, stay errors."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        stream.flush()
        lasting = io.TextIOWrapper(
            io.BufferedWriter(_SurvivingStream(stream.fileno(), "w", closefd=False)),  # type: ignore[type-var]
            encoding=stream.encoding,
            errors=stream.errors,
            line_buffering=stream.line_buffering,
        )
        setattr(sys, name, lasting)


class _SurvivingStream(io.FileIO):
    def write(self, data: bytes, /) -> int:  # type: ignore[override]
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in GONE:
                raise
            return len(data)
