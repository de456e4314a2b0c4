"""A family whose class in vLLM does not load all of its weights again by itself."""

from __future__ import annotations

import pytest

from bench import model_engines
from tests.support.engine import missing_packages


def test_engine_gpt_oss_loads_experts_and_sinks_again() -> None:
    """vLLM's class copies them to parameters that have no memory at a second load."""
    if missing := missing_packages():
        pytest.skip(missing)
    (row,) = model_engines.measure(["GPT-OSS"])
    assert row["other_tensors"] == []
    assert max(row["difference"], row["reloaded"]) < 1e-4
