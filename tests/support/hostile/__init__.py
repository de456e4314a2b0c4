"""Hostile snippets and the result that each of them must have.

    escapes, executor, network, leftovers ─┐
    limits, kernel_memory                  ├─▶ HOSTILE ──▶ tests/integration/judge (local sandboxes)
    model: Hostile, PROBE                 ─┘           └─▶ tests/cluster (executor pods)
    sessions ─────────────────────────────────▶ SESSIONS ─▶ both

A snippet prints `breach: ...` for everything that it reaches and must not reach; it does harmless things silently.
Where it matters, `status` and `stdout` define how it must end. After each snippet the next call must be unharmed.
"""

from tests.support.hostile.escapes import ESCAPES
from tests.support.hostile.executor import EXECUTOR
from tests.support.hostile.kernel_memory import KERNEL_MEMORY
from tests.support.hostile.leftovers import LEFTOVERS
from tests.support.hostile.limits import BOMBS, FLOODS, FORGERIES, SLEEPERS
from tests.support.hostile.model import CLEAN, PROBE, Hostile, targets
from tests.support.hostile.network import NETWORK
from tests.support.hostile.sessions import SESSIONS

HOSTILE = [*ESCAPES, *EXECUTOR, *NETWORK, *LEFTOVERS, *FORGERIES, *FLOODS, *BOMBS, *KERNEL_MEMORY, *SLEEPERS]

__all__ = ["CLEAN", "HOSTILE", "PROBE", "SESSIONS", "Hostile", "targets"]
