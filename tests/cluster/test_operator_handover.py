"""Two replicas of the operator on a real API server: the standby takes over, and nothing is written twice."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator

import pytest

from rstar2_train.utils.supervisor import die_with_parent
from tests.kube_node import binaries, requirements
from tests.support.kube_apiserver import KubeApiserver, free_port
from tests.support.simulated_cluster import manifest

JOBS = "/apis/rstar2.dev/v1alpha1/namespaces/default/agenticrljobs"
BATCH = "/apis/batch/v1/namespaces/default/jobs"
WITHIN = 60.0


@pytest.fixture
def api() -> Iterator[KubeApiserver]:
    """Provide an API server without nodes."""
    try:
        requirements.check()
    except requirements.ClusterUnavailable as problem:
        pytest.skip(str(problem))
    binaries.ensure_all()
    with KubeApiserver() as server:
        yield server


class Replica:
    """One operator process."""

    def __init__(self, api: KubeApiserver, identity: str) -> None:
        self.port = free_port()
        environment = {"KUBECONFIG": str(api.kubeconfig), "RSTAR2_PROBE_PORT": str(self.port)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rstar2_operator"],
            env={**os.environ, **environment, "RSTAR2_IDENTITY": identity},
            preexec_fn=die_with_parent,
        )

    def page(self, path: str) -> str:
        """Return a page of its HTTP server; empty if it does not serve."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as response:
                return str(response.read().decode()).strip()
        except OSError:
            return ""


def until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_handover_after_sigterm_writes_nothing_twice(api: KubeApiserver) -> None:
    """A stopped leader exits with 0 and releases the Lease; the standby continues the jobs without new objects."""
    first, second = Replica(api, "first"), None
    try:
        until(lambda: first.page("/readyz") == "leader")
        second = Replica(api, "second")
        standby = second
        until(lambda: standby.page("/readyz") == "standby")
        api.request("POST", JOBS, {**manifest("g"), "metadata": {"name": "demo"}})
        until(lambda: len(api.request("GET", BATCH)["items"]) == 1)
        before = {each["metadata"]["uid"] for each in api.request("GET", BATCH)["items"]}
        first.process.terminate()
        assert first.process.wait(WITHIN) == 0
        until(lambda: standby.page("/readyz") == "leader")
        until(lambda: "rstar2_operator_jobs{" in standby.page("/metrics"))
        assert {each["metadata"]["uid"] for each in api.request("GET", BATCH)["items"]} == before
        api.request("POST", JOBS, {**manifest("g"), "metadata": {"name": "next"}})
        until(lambda: len(api.request("GET", BATCH)["items"]) == 2)
    finally:
        for replica in (first, second):
            if replica is not None and replica.process.poll() is None:
                replica.process.kill()
                replica.process.wait()
