"""A folder of one process alone, for what may not outlive it: sockets and session files of Ray and of the engines.

Nobody can delete it when its process is killed, so the next one of the same kind does.
"""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from pathlib import Path
from typing import IO


def scratch_dir(prefix: str) -> tuple[Path, IO[str]]:
    """A new folder, and the lock that keeps it while it is open; those of the prefix whose lock is free are deleted.

    Under /tmp whatever TMPDIR says: the path of a socket in it may have 107 characters. Raises OSError.
    """
    root = Path("/tmp")
    for stale in root.glob(f"{prefix}*/lock"):
        try:
            with stale.open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(stale.parent, ignore_errors=True)
        except OSError:
            continue  # alive, another user's, or gone meanwhile
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=root))
    fresh = folder / "lock.new"
    lock = fresh.open("w")
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    # Under its real name only when locked, so that no other start takes it for stale in between.
    fresh.rename(folder / "lock")
    return folder, lock
