"""How many files and connections a process may have open at a time.

Here, in the room that every program may import: called first by those that hold a connection a trajectory or call.
"""

from __future__ import annotations

import resource


def raise_open_files() -> None:
    """Lets this process have as many as its hard limit allows: many a node starts containers with 1024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
