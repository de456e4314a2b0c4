"""The conversion of spec.judge.limits to the judge's HTTP wire."""

from __future__ import annotations

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.api.roles import JudgeLimitsSpec


def test_judge_limits_defaults_equal_the_wire_defaults() -> None:
    """A job without limits, and a client without limits, mean the same; the wire has float seconds."""
    wire = JudgeLimits.from_spec(JudgeLimitsSpec())
    assert wire == JudgeLimits()
    assert wire.model_dump(by_alias=True) == {
        "wallSeconds": 4.0,
        "memoryMiB": 512,
        "outputBytes": 65536,
        "processes": 48,
        "fileBytes": 0,
    }


def test_judge_limits_quantities_become_mib_and_bytes() -> None:
    """Memory is rounded down to whole MiB, output is in bytes."""
    spec = JudgeLimitsSpec(timeout_seconds=600, memory="1G", output="1e6", processes=1)
    wire = JudgeLimits.from_spec(spec)
    assert (wire.wall_seconds, wire.memory_mib, wire.output_bytes, wire.processes) == (600.0, 953, 1_000_000, 1)
