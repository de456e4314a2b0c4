"""The limit of open files and connections of a process.

Programs that hold one connection per trajectory or call raise it first: many nodes start containers with only 1024.
"""

from __future__ import annotations

import resource


def raise_open_file_limit() -> None:
    """Raise the soft limit of open files of this process to its hard limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
