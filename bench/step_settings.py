"""The settings of a training step for benchmarks that run where only torch and transformers are installed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

SETTINGS: Any = SimpleNamespace(
    objective=SimpleNamespace(type="GRPO", clip_low=0.2, clip_high=0.28, aggregation="GroupMean", teacher=None),
    temperature=1.0,
    correction_cap=None,
    reference_kl=None,
    importance_correction=SimpleNamespace(cap=2.0, max_sequence_gap=None, drops_sequences=False),
)
"""The fields of GRPOSettings that a step reads, with its defaults: the class itself needs pydantic."""
