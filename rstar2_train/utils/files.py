"""Files that are written whole or not at all, and the errors of a full disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

FULL: Final = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a disk, or a share of one, that is full."""


def write_atomically(path: Path, text: str) -> None:
    """Write a small file whole or not at all: a reader sees the old text or the new, also after kill -9."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with aside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
