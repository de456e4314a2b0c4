"""The requests of an idle operator."""

from __future__ import annotations

import os
import time

from tests.cluster import jobs, operator_release
from tests.kube_node.cluster import Cluster
from tests.support.waiting import until

SECONDS = float(os.environ.get("RSTAR2_IDLE_SECONDS", "30"))
QUIET_SECONDS = 20
"""Longer than the operator delays a write for a job without pods."""


def test_idle_operator_writes_only_its_lease(operated: Cluster, namespace: str) -> None:
    """With a suspended job, the operator sends no write request but the renewals of its Lease."""
    jobs.wait_until_alone(operated)
    until(lambda: not operated.get("agenticrljobs", "-A")["items"], "earlier jobs are deleted", every=1)
    operated.apply([jobs.example_job(operated, namespace, "smoke.yaml", suspend=True)])
    until(lambda: jobs.phase(operated, namespace, "smoke") == "Suspended", "the job is suspended")
    until(lambda: not news(operated, since=time.time() - QUIET_SECONDS), "the operator has written all")
    start = time.time()
    time.sleep(SECONDS)
    assert news(operated, since=start) == []
    assert {verb for verb, _ in operator_release.writes(operated, since=start)} == {"update"}


def news(cluster: Cluster, *, since: float) -> list[tuple[str, str]]:
    """Return the operator's writes without those of its Lease."""
    writes = operator_release.writes(cluster, since=since)
    return [(verb, resource) for verb, resource in writes if resource.split("/")[1] != "leases"]
