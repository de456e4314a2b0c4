"""A watched namespace that is deleted while jobs run in it and in others, with the rights of the chart."""

from __future__ import annotations

import re
import time
import urllib.error
from pathlib import Path

from tests.support.accounts import OPERATOR, SITE, chart, create_account, grant
from tests.support.api_proxy import ApiProxy
from tests.support.controller_manager import controller_manager
from tests.support.job_controller import JobController
from tests.support.kube_apiserver import KubeApiserver
from tests.support.operator_process import OperatorProcess

NAMESPACES = ("team-a", "team-b", "team-c")
LOST = "team-b"
UNREADABLE = f'rstar2_operator_namespace_unreadable{{namespace="{LOST}"}}'
WRITES = re.compile(r'^rstar2_operator_api_requests_total\{.*verb="(?:create|apply|update|delete)".*\} (\S+)$', re.M)
LOSS_SECONDS = 5.0
MAX_WRITES = 60
"""Writes per LOSS_SECONDS: the Lease, one status of each running job, and a failing round that is repeated."""


def test_deleted_namespace_leaves_the_others_served(api: KubeApiserver, tmp_path: Path) -> None:
    """The jobs of two others continue; the lost one is named, causes few requests, and is served when it is back."""
    objects = chart(f"watchNamespaces={{{','.join(NAMESPACES)}}}")
    token = create_account(api, SITE, OPERATOR)
    clusters = {name: JobController(api, name) for name in NAMESPACES}
    grant(api, objects)
    settings = {"RSTAR2_WATCH_NAMESPACES": ",".join(NAMESPACES), "RSTAR2_LEASE_NAMESPACE": SITE}
    log = tmp_path / "operator.log"
    with (
        controller_manager(api, tmp_path, "namespace-controller", "persistentvolumeclaim-protection-controller"),
        ApiProxy(api, token=token) as proxy,
        OperatorProcess(proxy.kubeconfig, log=log, **settings) as operator,
    ):
        for name, cluster in clusters.items():
            cluster.submit("demo", "ss", trainer={"gpusPerReplica": 0, "terminationGracePeriodSeconds": 10})
            cluster.wait(lambda: cluster.pods() == ["demo-s0-1-0"], f"no pod in {name}")  # noqa: B023
        assert operator.page("/readyz") == "leader"

        lost = clusters.pop(LOST)
        api.request("DELETE", f"/api/v1/namespaces/{LOST}")
        lost.wait(lambda: not roles(api), "the namespace controller does not delete the operator's rights")
        proxy.disconnect()  # as an API server that restarts: until then it does not check open watches again
        proxy.connect()
        lost.wait(lambda: operator.page("/readyz") == f"leader; not served: {LOST}", "the namespace is not named")
        assert f"{UNREADABLE} 0.0" not in operator.page("/metrics")
        assert f"namespace {LOST} is not served" in log.read_text()

        start, before = time.monotonic(), writes(operator)
        lost.play_for(LOSS_SECONDS)
        written = writes(operator) - before
        assert written < MAX_WRITES * (time.monotonic() - start) / LOSS_SECONDS
        for name, cluster in clusters.items():
            cluster.succeed("demo", "s0")
            cluster.wait(lambda: cluster.pods() == ["demo-s1-1-0"], f"{name} does not continue")  # noqa: B023

        release(lost)
        clusters[LOST] = again = recreate(api)
        grant(api, objects, LOST)
        again.submit("next")
        again.wait(lambda: again.pods() == ["next-s0-1-0"], "the new namespace is not served")
        again.wait(lambda: operator.page("/readyz") == "leader", "the namespace is still named")
        assert f"{UNREADABLE} 0.0" in operator.page("/metrics")
        assert operator.process.poll() is None, log.read_text()[-2000:]


def roles(api: KubeApiserver) -> list[object]:
    """Return the roles in the lost namespace."""
    return list(api.request("GET", f"/apis/rbac.authorization.k8s.io/v1/namespaces/{LOST}/roles")["items"])


def writes(operator: OperatorProcess) -> float:
    """Return the number of the operator's writes so far."""
    return sum(float(value) for value in WRITES.findall(operator.page("/metrics")))


def release(lost: JobController) -> None:
    """Remove the finalizers of the jobs, as docs/failure-modes.md advises without an operator."""
    path = f"/apis/rstar2.dev/v1alpha1/namespaces/{LOST}/agenticrljobs/demo"
    merge = "application/merge-patch+json"
    lost.api.request("PATCH", path, {"metadata": {"finalizers": None}}, media=merge)


def recreate(api: KubeApiserver) -> JobController:
    """Create the namespace again, as soon as it is gone."""
    deadline = time.monotonic() + 120
    while True:
        try:
            return JobController(api, LOST)
        except urllib.error.HTTPError as error:
            assert error.code == 409 and time.monotonic() < deadline
            time.sleep(0.2)
