"""Snippets that try to get out, to stay, to take everything, to see others, or to lie, and what must come of each.

One list for local sandboxes (tests/integration/judge) and for executor pods in a cluster (tests/cluster). A snippet
prints `won: ...` for whatever it gets hold of that it must not have; what it may do without harm it does in silence.
Beside that, `status` and `stdout` say how it must end, where that matters. After each the next call must be unharmed.
"""

from tests.support.hostile.limits import BOMBS, FLOODS, LIES, SLEEPERS
from tests.support.hostile.model import PROBE, PROBED, Hostile, baits
from tests.support.hostile.sessions import SESSIONS
from tests.support.hostile.walls import ESCAPES, NETWORK, OTHERS, ZYGOTE

HOSTILE = [*ESCAPES, *ZYGOTE, *NETWORK, *OTHERS, *LIES, *FLOODS, *BOMBS, *SLEEPERS]

__all__ = ["HOSTILE", "PROBE", "PROBED", "SESSIONS", "Hostile", "baits"]
