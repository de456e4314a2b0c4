"""The disk of a folder: its free space, and errors that name it when it is full or read-only."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

DISK_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a full disk or an exceeded quota."""


class DiskRefused(OSError):
    """A full or read-only disk. The message names the folder, the free space and what to do."""

    def __str__(self) -> str:
        """Return the message without the number of the error."""
        return str(self.strerror)


@contextmanager
def named_disk(folder: Path) -> Iterator[None]:
    """Raise DiskRefused for an error of a full or read-only disk: that of a write contains no path."""
    try:
        yield
    except DiskRefused:
        raise
    except OSError as error:
        if error.errno in DISK_FULL:
            free = _usage(folder)[2] // 2**20
            message = f"No space left on the disk of {folder}, {free} MiB are free: free some space"
        elif error.errno == errno.EROFS:
            message = f"the disk of {folder} is read-only: mount it for writing, or use another one"
        else:
            raise
        raise DiskRefused(error.errno, message) from error


def disk_shortage(folder: Path, *, needed: int) -> str:
    """Return a message if fewer than `needed` bytes are free under a folder, which need not exist; else an empty
    string."""
    total, _, free = _usage(folder)
    if free >= needed or not total:  # a file system of FUSE may know no sizes
        return ""
    return f"only {free // 2**20} MiB are free under {folder}, {-(-needed // 2**20)} MiB are needed: free some space"


def require_space(folder: Path, sizes: Mapping[str, int]) -> None:
    """Raise DiskRefused if files do not fit on the disk of a folder. `sizes`: name -> bytes; files may exist."""
    if shortage := disk_shortage(folder, needed=sum(size - _bytes(folder / name) for name, size in sizes.items())):
        raise DiskRefused(errno.ENOSPC, shortage)


def _bytes(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _usage(folder: Path) -> tuple[int, int, int]:
    """Return the total, used and free bytes of the disk of a folder, which need not exist."""
    path = folder.absolute()
    return shutil.disk_usage(next(parent for parent in (path, *path.parents) if parent.exists()))
