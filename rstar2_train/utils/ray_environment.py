"""Environment variables of every Ray process: those that the operator gives a trainer pod and those of `rstar2 run`."""

from __future__ import annotations

from typing import Final

RAY_ENVIRONMENT: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_worker_niceness": "0",  # the default, 15, gives the trainer the lowest CPU priority
}
