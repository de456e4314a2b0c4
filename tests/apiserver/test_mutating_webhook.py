"""A real mutating webhook changes new objects of jobs, on a real API server. The test plays Job controller and kubelet.

tests/unit/operator/test_mutating_webhooks.py plays the same changes on an API server in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.kube_node.fixtures import ensure_control_plane
from tests.support.job_controller import BATCH, LAB, PODS, JobController
from tests.support.kube_apiserver import KubeApiserver
from tests.support.mutating_webhook import Mutation, mutating_webhook
from tests.support.operator_process import OperatorProcess

CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
DEPLOYMENTS = f"/apis/apps/v1/{LAB}/deployments"
TEMPLATE = "/spec/template"
CONTAINER = f"{TEMPLATE}/spec/containers/0"

Body = dict[str, Any]


def of_attempt(job: str, op: str, path: str, value: Any = None) -> Mutation:
    """Return a change of the attempts of a job."""
    stage = {"key": "rstar2.dev/stage", "operator": "Exists"}
    selector = {"matchLabels": {"rstar2.dev/job": job}, "matchExpressions": [stage]}
    return Mutation("jobs", [{"op": op, "path": path, "value": value}], selector)


def of_engines(job: str, op: str, path: str, value: Any = None) -> Mutation:
    """Return a change of the engines of a job."""
    selector = {"matchLabels": {"rstar2.dev/job": job, "rstar2.dev/role": "rollout"}}
    return Mutation("deployments", [{"op": op, "path": path, "value": value}], selector)


POD_LABEL, RESTART = f"{TEMPLATE}/metadata/labels/rstar2.dev~1job", f"{TEMPLATE}/spec/restartPolicy"
REFUSED = {
    "label": (of_attempt("label", "remove", "/metadata/labels/rstar2.dev~1stage"), "label rstar2.dev/stage"),
    "pod-label": (of_attempt("pod-label", "remove", POD_LABEL), "label of the pods rstar2.dev/job"),
    "restart": (of_attempt("restart", "replace", RESTART, "OnFailure"), "restartPolicy"),
    "count": (of_attempt("count", "replace", "/spec/parallelism", 0), "parallelism"),
    "container": (of_attempt("container", "replace", f"{CONTAINER}/name", "main"), "container trainer"),
    "engine": (of_engines("engine", "replace", f"{CONTAINER}/name", "main"), "container engine"),
    "engine-label": (of_engines("engine-label", "remove", "/metadata/labels"), "label app.kubernetes.io/managed-by"),
}
"""Name of a job -> a change of its objects, and the part that the job names."""
ACCEPTED = {
    "sidecar": of_attempt("accepted", "add", CONTAINER, {"name": "aaa-proxy", "image": "proxy"}),
    "registry": of_attempt("accepted", "replace", f"{TEMPLATE}/spec/containers/1/image", "mirror/trainer"),
    # The API server gives a batch Job without labels those of its pods.
    "no-labels": of_attempt("accepted", "remove", "/metadata/labels"),
}
"""Changes that jobs live with, of one job."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobController]:
    """Provide the API server, the webhooks of all jobs, and the operator."""
    ensure_control_plane()
    folder = tmp_path_factory.mktemp("webhook")
    mutations = {name: mutation for name, (mutation, _) in REFUSED.items()} | ACCEPTED
    with KubeApiserver() as api, mutating_webhook(folder, "127.0.0.1", mutations, namespace="lab") as configuration:
        api.request("POST", CONFIGURATIONS, configuration)
        with OperatorProcess(api.kubeconfig, log=folder / "operator.log") as operator:
            yield JobController(api)
            assert operator.process.poll() is None, (folder / "operator.log").read_text()[-2000:]


@pytest.mark.parametrize("name", REFUSED)
def test_webhook_change_is_refused_by_name(cluster: JobController, name: str) -> None:
    """The job names the changed part; the object is deleted, and its attempt has not run."""
    mutation, part = REFUSED[name]
    cluster.submit(name, "g" if mutation.resource == "deployments" else "s")
    problem = f"ApplyRejected: an admission webhook or policy has changed {part}"
    cluster.wait(lambda: problem in cluster.degraded(name), "the change is not reported")
    path = DEPLOYMENTS if mutation.resource == "deployments" else BATCH
    left = [item["metadata"]["name"] for item in cluster.api.request("GET", path)["items"]]
    assert not {f"{name}-s0-1", f"{name}-s0-2", f"{name}-rollout"} & {*left}
    status = cluster.status(name)
    assert (status["restarts"], status["stages"][0]["attempts"]) == (0, 0)


def test_webhook_additions_are_accepted(cluster: JobController) -> None:
    """The attempt runs with its sidecar, and the job has no problem."""
    cluster.submit("accepted")
    cluster.wait(lambda: "accepted-s0-1-0" in cluster.pods(), "the attempt does not run")
    containers = cluster.api.request("GET", f"{PODS}/accepted-s0-1-0")["spec"]["containers"]
    assert [item["image"] for item in containers] == ["proxy", "mirror/trainer"]
    cluster.wait(lambda: cluster.status("accepted").get("phase") == "Running", "the job does not run")
    assert cluster.degraded("accepted") == ""
