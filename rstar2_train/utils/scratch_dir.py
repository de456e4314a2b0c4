"""A temporary folder that exists as long as its process, for the sockets and session files of Ray and the engines.

A killed process cannot delete its folder, so the next process with the same prefix deletes it.
"""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from pathlib import Path
from typing import IO


def scratch_dir(prefix: str) -> tuple[Path, IO[str]]:
    """Create a folder and return it with its lock file. Folders with this prefix whose lock is free are deleted.

    The folder is in use as long as the lock file is open. It is under /tmp even if TMPDIR is set, because the path of a
    socket has at most 107 characters. Raises OSError.
    """
    root = Path("/tmp")
    for stale in root.glob(f"{prefix}*/lock"):
        try:
            with stale.open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(stale.parent, ignore_errors=True)
        except OSError:
            continue  # in use, another user's, or deleted meanwhile
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=root))
    unlocked = folder / "lock.new"
    lock = unlocked.open("w")
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    # Renamed only when it is locked, so that another process cannot delete the folder in between.
    unlocked.rename(folder / "lock")
    return folder, lock
