"""Every failure mode on a real API server: a condition names it, and the job recovers as the documentation states."""

from __future__ import annotations

import pytest

from bench.failure_modes import cause_all
from tests.kube_node import binaries, requirements


async def test_each_fault_is_named_and_recovered_from() -> None:
    """A fault that no condition names, or that the job does not survive, is listed with the job's status."""
    try:
        requirements.check()
    except requirements.ClusterUnavailable as problem:
        pytest.skip(str(problem))
    binaries.ensure_all()
    rows = await cause_all()
    assert len(rows) >= 30
