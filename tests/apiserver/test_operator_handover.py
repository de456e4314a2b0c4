"""Two replicas of the operator on a real API server: the standby takes over, and nothing is written twice."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.support.kube_apiserver import KubeApiserver
from tests.support.operator_process import OperatorProcess
from tests.support.simulated_cluster import manifest

JOBS = "/apis/rstar2.dev/v1alpha1/namespaces/default/agenticrljobs"
BATCH = "/apis/batch/v1/namespaces/default/jobs"
WITHIN = 240.0


def until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_handover_after_sigterm_writes_nothing_twice(api: KubeApiserver) -> None:
    """A stopped leader exits with 0 and releases the Lease; the standby continues the jobs without new objects."""
    first, second = OperatorProcess(api.kubeconfig, identity="first"), None
    try:
        until(lambda: first.page("/readyz") == "leader")
        second = OperatorProcess(api.kubeconfig, identity="second")
        standby = second
        until(lambda: standby.page("/readyz") == "standby")
        api.request("POST", JOBS, {**manifest("g"), "metadata": {"name": "demo"}})
        until(lambda: len(api.request("GET", BATCH)["items"]) == 1)
        before = {each["metadata"]["uid"] for each in api.request("GET", BATCH)["items"]}
        assert first.terminate() == 0
        until(lambda: standby.page("/readyz") == "leader")
        until(lambda: "rstar2_operator_jobs{" in standby.page("/metrics"))
        assert {each["metadata"]["uid"] for each in api.request("GET", BATCH)["items"]} == before
        api.request("POST", JOBS, {**manifest("g"), "metadata": {"name": "next"}})
        until(lambda: len(api.request("GET", BATCH)["items"]) == 2)
    finally:
        for replica in (first, second):
            if replica is not None:
                replica.kill()
