"""The requests of an idle operator."""

from __future__ import annotations

import os
import time

from tests.cluster import jobs, operator_release
from tests.kube_node.cluster import Cluster

SECONDS = float(os.environ.get("RSTAR2_IDLE_SECONDS", "60"))


def test_idle_operator_writes_only_its_lease(operated: Cluster, namespace: str) -> None:
    """With a suspended job, the operator sends no write request but the renewals of its Lease."""
    jobs.wait_until_alone(operated)
    operated.apply([jobs.example_job(operated, namespace, "smoke.yaml", suspend=True)])
    deadline = time.monotonic() + 60
    while jobs.phase(operated, namespace, "smoke") != "Suspended":
        assert time.monotonic() < deadline
        time.sleep(0.5)
    time.sleep(15)  # longer than the operator may delay a write
    start = time.time()
    time.sleep(SECONDS)
    written = operator_release.writes(operated, since=start)
    assert {resource.split("/")[1] for _, resource in written} == {"leases"}, written
    assert {verb for verb, _ in written} == {"update"}
