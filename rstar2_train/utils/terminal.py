"""Signals that stop a long command, its output to a closed terminal, and control characters in a live view.

After the terminal was closed, for example by a dropped ssh connection, a long command stops in order, or continues
under nohup. Its later output is lost; nothing else is.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TERMINAL_CLOSED = (errno.EIO, errno.EPIPE)
"""Errors of a write to a closed terminal, or to a pipe without a reader."""


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that ask a long command to stop. SIGHUP is not one of them under nohup, which ignores it."""
    signals = (signal.SIGINT, signal.SIGTERM)
    return signals if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (*signals, signal.SIGHUP)


def replace_closed_streams() -> None:
    """Replace standard streams that were closed at the start (`>&-`) by the null device.

    It takes their descriptors, so that no file gets one and receives the output.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)  # keeps the descriptor open if `name` is replaced again


def ignore_closed_terminal() -> None:
    """Discard later output if the terminal was closed. Otherwise as `buffer_streams`.

    Other errors, such as a full disk, are still raised.
    """
    buffer_streams(_DiscardingStream)


def buffer_streams(raw: type[io.FileIO] = io.FileIO) -> None:
    """Escape characters that the encoding of a standard stream lacks, and keep the output of a failed write.

    Without a buffer (PYTHONUNBUFFERED) that output would be lost, and argparse ignores the error. `raw`: writes to the
    descriptor.
    """
    replace_closed_streams()
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        stream.flush()
        wrapped = io.TextIOWrapper(
            io.BufferedWriter(raw(stream.fileno(), "w", closefd=False)),
            encoding=stream.encoding,
            errors="backslashreplace",  # a terminal of ASCII or Latin-1 has no sign for each character
            line_buffering=stream.line_buffering or stream.write_through,  # the latter with PYTHONUNBUFFERED
        )
        setattr(sys, name, wrapped)


@contextlib.contextmanager
def hidden_control_characters() -> Iterator[None]:
    """Stop the terminal from printing ^C for Ctrl-C: it would move the cursor inside a live view.

    Does nothing without a terminal, or in the background, where a change of the terminal would stop this process.
    """
    settings = _terminal_settings()
    if settings is None:
        yield
        return
    changed = [*settings]
    changed[3] &= ~termios.ECHOCTL
    termios.tcsetattr(sys.stdin, termios.TCSANOW, changed)
    try:
        yield
    finally:
        if _terminal_settings() is not None:
            termios.tcsetattr(sys.stdin, termios.TCSANOW, settings)


def _terminal_settings() -> list[Any] | None:
    """Return the settings of the terminal; None without a terminal or in the background."""
    try:
        if os.tcgetpgrp(sys.stdin.fileno()) != os.getpgrp():
            return None
        return termios.tcgetattr(sys.stdin)
    except (OSError, ValueError, termios.error):
        return None


class _DiscardingStream(io.FileIO):
    def write(self, data: bytes, /) -> int:  # type: ignore[override]
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in TERMINAL_CLOSED:
                raise
            return len(data)
