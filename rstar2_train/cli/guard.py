"""The end of a command: its output is written, and errors that no command handles become one line."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path

from rstar2_train.api.state_files import UnreadableState
from rstar2_train.cli.common import INTERRUPTED

PATH_ERRORS = (errno.ENAMETOOLONG, errno.EACCES, errno.ELOOP, errno.EROFS)
"""Errors of a path that an argument named: no fault of the program."""


def run_guarded(name: str, action: Callable[[], int]) -> int:
    """Run a command, write the rest of its output, and return its exit code. `name`: the command, for messages."""
    try:
        try:
            return action()
        finally:
            sys.stdout.flush()  # also after --help, which ends by SystemExit
    except KeyboardInterrupt:
        return _end(name, "interrupted", code=INTERRUPTED)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("rstar2_"):
            raise
        return _end(name, f"{error.name} is not installed: install rstar2[run], in a clone by `make setup`")
    except UnreadableState as error:
        return _end(name, f"{error}.")
    except OSError as error:
        if error.errno == errno.EPIPE and _is_output_full(error):
            return INTERRUPTED  # the reader, such as head, needs no more
        if message := _message(error):
            return _end(name, message)
        raise


def _end(name: str, message: str, *, code: int = 1) -> int:
    print(f"{name}: {message}", file=sys.stderr)
    return code


def _message(error: OSError) -> str:
    """Return the message for an error that is no fault of the program; an empty text for others."""
    if error.errno == errno.ENOSPC and _is_output_full(error):
        return "standard output: no space left on the device. Pass another file."
    if error.errno == errno.ENOENT and _is_working_folder_deleted():
        return "the working folder was deleted. Change to an existing folder."
    return f"{error.filename}: {error.strerror}. Pass another path." if error.errno in PATH_ERRORS else ""


def _is_output_full(error: OSError) -> bool:
    """Return whether standard output takes nothing more, and discard its unwritten rest and what follows."""
    if isinstance(sys.stdout.buffer, io.RawIOBase):  # PYTHONUNBUFFERED: the failed write has left nothing
        return error.filename is None
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


def _is_working_folder_deleted() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False
