"""A job in a namespace of the restricted Pod Security level with a ResourceQuota: real API server and controllers.

The test plays scheduler and kubelets.
"""

from __future__ import annotations

from pathlib import Path

from rstar2_operator import names
from tests.kube_node.pods import restricted
from tests.support.controller_manager import controller_manager
from tests.support.job_controller import LAB, PODS
from tests.support.kube_apiserver import KubeApiserver
from tests.support.kubelets import Kubelets
from tests.support.operator_process import OperatorProcess

CONTROLLERS = (
    *("deployment-controller", "replicaset-controller", "statefulset-controller", "job-controller"),
    "resourcequota-controller",
)
QUOTA = f"/api/v1/{LAB}/resourcequotas/gpus"
GPUS = {
    "accelerator": {"vendor": "AMD", "resource": "amd.com/gpu"},
    "trainer": {"replicas": 1, "gpusPerReplica": 8},
}
ROLES = {"prepare", "trainer", "rollout", "judge", "executor", "redis"}


def allow(lab: Kubelets, gpus: int) -> None:
    """Let the namespace request that number of GPUs, and wait until the API server enforces it."""
    patch = {"spec": {"hard": {"requests.amd.com/gpu": str(gpus)}}}
    lab.api.request("PATCH", QUOTA, patch, media="application/merge-patch+json")

    def enforced() -> bool:
        status = lab.api.request("GET", QUOTA).get("status") or {}
        return status.get("hard") == patch["spec"]["hard"] and "used" in status

    lab.wait(enforced, "the quota is not enforced")


def roles(api: KubeApiserver) -> set[str]:
    """Return the roles that have a pod."""
    return {pod["metadata"]["labels"][names.ROLE_LABEL] for pod in api.request("GET", PODS)["items"]}


def test_restricted_level_and_quota_admit_a_job_or_are_named(api: KubeApiserver, tmp_path: Path) -> None:
    """The job names the quota that rejects its trainer and the remedy; with a larger one the pods of all roles run."""
    lab, log = Kubelets(api), tmp_path / "operator.log"
    api.request("PUT", f"/api/v1/{LAB}", restricted("lab"))
    api.request("POST", QUOTA.removesuffix("/gpus"), {"metadata": {"name": "gpus"}, "spec": {}})
    with OperatorProcess(api.kubeconfig, log=log), controller_manager(api, tmp_path, *CONTROLLERS):
        allow(lab, 4)
        lab.submit("demo", "g", **GPUS)
        problem = "FailedCreate: Error creating: pods"
        lab.wait(lambda: f"Job/demo-g0-1: {problem}" in lab.degraded("demo"), "the quota is not reported")
        message = lab.degraded("demo")
        assert "exceeded quota: gpus, requested: requests.amd.com/gpu=8" in message
        assert "limited: requests.amd.com/gpu=4" in message and "Check the ResourceQuota" in message
        allow(lab, 16)
        lab.wait(
            lambda: lab.degraded("demo") == "" and lab.status("demo").get("phase") == "Running", "the job does not run"
        )
        lab.wait(lambda: roles(api) == ROLES, "a role has no pod")
        assert lab.status("demo")["restarts"] == 0
