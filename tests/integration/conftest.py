"""Every event loop of the processes that these tests start is watched."""

from tests.support.loop_watch import loop_is_never_held, watched_loops

__all__ = ["loop_is_never_held", "watched_loops"]
