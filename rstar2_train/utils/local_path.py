"""Paths that a user writes: the home folder, and why a path names no file or folder."""

from __future__ import annotations

import os
from pathlib import Path

from rstar2_train.utils.text import reason


def is_no_path(text: str) -> bool:
    """Return whether a text can be no path on any machine."""
    return not text.strip() or "\0" in text


def local_path(text: str) -> Path:
    """Return the path of a text, with the home folder in place of `~`. Raises ValueError for a user without one."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise ValueError(f"{text}: no such user on this machine; write the whole path") from error


def exists(path: Path) -> bool:
    """Return whether a path names a file or folder. Raises ValueError, with the reason, for one that cannot."""
    try:
        path.stat()
    except FileNotFoundError:
        if path.is_symlink():
            raise ValueError(f"{path}: is a link to {path.readlink()}, which does not exist") from None
        return False
    except (OSError, ValueError) as error:  # a name that is too long, a link to itself, a file in place of a folder
        raise ValueError(f"{str(path)[:200]}: {reason(error)}; pass a file or folder that you may read") from error
    return True


def missing_advice(text: str) -> str:
    """Return what to do about a path that does not exist; empty if nothing is known."""
    return "; variables of the environment are not expanded in paths" if os.path.expandvars(text) != text else ""


def file_fault(path: Path) -> str:
    """Return why a path names no file to read; empty if it names one. Raises OSError without permission."""
    if path.is_file():
        return ""
    if path.is_dir():
        return "is a folder; pass a file"
    if path.exists():
        return "is a device or a pipe; write its content into a file"
    return f"is a link to {path.readlink()}, which does not exist" if path.is_symlink() else "no such file"
