"""A plugin of vLLM for bench/rollout_engines.py: writes the tokens that an engine computes again after a preemption."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def register() -> None:
    """Let vLLM's statistics of the prefix cache also write each re-computation, one line each."""
    from vllm.v1.metrics.stats import PrefixCacheStats

    record = PrefixCacheStats.record
    file = Path(os.environ["RSTAR2_RECOMPUTED"])

    def record_and_write(self: Any, num_tokens: int, num_hits: int, preempted: bool, **options: Any) -> None:
        record(self, num_tokens, num_hits, preempted, **options)
        if preempted:
            with file.open("a", encoding="utf-8") as output:
                output.write(f"{num_tokens - num_hits}\n")

    PrefixCacheStats.record = record_and_write
