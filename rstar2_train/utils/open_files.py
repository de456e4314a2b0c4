"""The limit of open files and connections of a process.

Programs that hold one connection per trajectory or call raise it first: many nodes start containers with only 1024.
"""

from __future__ import annotations

import resource

OPEN_FILES = 4096
"""Open files that are enough for a job of one machine."""
MIN_OPEN_FILES = 1024
"""Open files below which Redis, the sandboxes or the judge may fail at their start."""
REMEDY = f"raise the hard limit of open files to {OPEN_FILES:,} or more: ulimit -Hn, or LimitNOFILE of the service"


def raise_open_file_limit() -> None:
    """Raise the soft limit of open files of this process to its hard limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def open_file_shortage() -> str:
    """Return a message if services cannot start with the hard limit of open files; else an empty string."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard >= MIN_OPEN_FILES:
        return ""
    return f"only {hard} files may be open at the same time: {REMEDY}"
