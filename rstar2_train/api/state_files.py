"""Reads files of a job's state. One that is damaged is an error with its name: without it the state is another one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from rstar2_train.utils.text import reason

Content = TypeVar("Content")


class UnreadableState(ValueError):
    """A file of a job's state is damaged, or of another version. The message, for the user, states what to do."""


def read_state(path: Path, parse: Callable[[str], Content]) -> Content | None:
    """Return the content of a file; None if it does not exist. Raises UnreadableState.

    Other errors of the disk stay OSErrors, because a later attempt may read the file.
    """
    try:
        return parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (IsADirectoryError, NotADirectoryError) as error:
        raise UnreadableState(f"{path}: {reason(error)}. Restore the file from a copy of the state") from error
    except ValueError as error:
        raise UnreadableState(
            f"{path} is damaged, or of another version of rstar2: {_fault(error)}. Restore the file from a copy of the "
            "state, or install the version that wrote it"
        ) from error


def _fault(error: ValueError) -> str:
    """Return the first fault of a text, with its field."""
    from pydantic import ValidationError  # the start of each command would take longer

    if not isinstance(error, ValidationError):
        return str(error)
    fault = error.errors()[0]
    return ": ".join([*filter(None, [".".join(map(str, fault["loc"]))]), fault["msg"]])
