"""Environment variables of every Ray process: those that the operator gives a trainer pod and those of `rstar2 run`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

RAY_ENVIRONMENT: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_worker_niceness": "0",  # the default, 15, gives the trainer the lowest CPU priority
}
SHARED_MEMORY = Path("/dev/shm")
MIN_STORE_BYTES = 80_000_000
MAX_STORE_BYTES = 8 * 2**30
"""Bounds of the object store of a host. The sequences of 128 prompts of the paper's lengths need 450 MB."""


def store_bytes(shared_memory: Path = SHARED_MEMORY) -> int:
    """Return the size of the object store, for the sequences of a step: half of the shared memory, within bounds."""
    size = os.statvfs(shared_memory)
    return max(MIN_STORE_BYTES, min(MAX_STORE_BYTES, size.f_blocks * size.f_frsize // 2))
