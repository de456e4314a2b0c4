"""Changes of other clients to the objects of a job, on a real API server. The test plays Job controller and kubelet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.kube_node.fixtures import ensure_control_plane
from tests.support.job_controller import LAB, JobController
from tests.support.kube_apiserver import KubeApiserver
from tests.support.operator_process import OperatorProcess

DEPLOYMENTS = f"/apis/apps/v1/{LAB}/deployments"
SERVICES = f"/api/v1/{LAB}/services"
ROLE_BINDINGS = f"/apis/rbac.authorization.k8s.io/v1/{LAB}/rolebindings"
STRATEGIC = "application/strategic-merge-patch+json"

Body = dict[str, Any]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobController]:
    """Provide the API server, the operator, and a running GRPO stage of job `demo`."""
    ensure_control_plane()
    log = tmp_path_factory.mktemp("operator") / "operator.log"
    with KubeApiserver() as api, OperatorProcess(api.kubeconfig, log=log) as operator:
        controller = JobController(api)
        controller.submit("demo", "g")
        controller.wait(lambda: controller.pods() == ["demo-g0-1-0"], "the stage does not run")
        yield controller
        assert operator.process.poll() is None, log.read_text()[-2000:]


def edit(cluster: JobController, path: str, patch: Any, media: str = STRATEGIC) -> Body:
    edited: Body = cluster.api.request("PATCH", f"{path}?fieldManager=kubectl-edit", patch, media=media)
    return edited


def pod_spec(cluster: JobController, role: str) -> Body:
    spec: Body = cluster.api.request("GET", f"{DEPLOYMENTS}/demo-{role}")["spec"]["template"]["spec"]
    return spec


def test_other_clients_added_containers_are_removed(cluster: JobController) -> None:
    """A container, volume, variable and host setting that a person adds to pods of untrusted code are removed."""
    before = pod_spec(cluster, "executor")
    spy = {"name": "spy", "image": "spy", "volumeMounts": [{"name": "root", "mountPath": "/host"}]}
    own = {"name": "executor", "env": [{"name": "X", "value": "1"}]}
    spec = {
        "hostNetwork": True,
        "containers": [own, spy],
        "volumes": [{"name": "root", "hostPath": {"path": "/"}}],
    }
    edited = edit(cluster, f"{DEPLOYMENTS}/demo-executor", {"spec": {"template": {"spec": spec}}})
    assert len(edited["spec"]["template"]["spec"]["containers"]) == 2
    cluster.wait(lambda: pod_spec(cluster, "executor") == before, "the additions stay")


def test_other_clients_restart_and_replicas_stay(cluster: JobController) -> None:
    """`kubectl rollout restart` and an autoscaler's replicas survive the correction of an added variable."""
    annotations = {"kubectl.kubernetes.io/restartedAt": "2030-01-01T00:00:00Z"}
    container = {"name": "api", "env": [{"name": "X", "value": "1"}]}
    template = {"metadata": {"annotations": annotations}, "spec": {"containers": [container]}}
    edit(cluster, f"{DEPLOYMENTS}/demo-judge", {"spec": {"replicas": 3, "template": template}})

    def corrected() -> bool:
        env = pod_spec(cluster, "judge")["containers"][0]["env"]
        return all(each["name"] != "X" for each in env)

    cluster.wait(corrected, "the variable stays")
    spec = cluster.api.request("GET", f"{DEPLOYMENTS}/demo-judge")["spec"]
    assert spec["template"]["metadata"]["annotations"] == annotations


def test_other_clients_added_selector_is_removed(cluster: JobController) -> None:
    """An added selector of a Service, which then selects no pod, and a second subject of a RoleBinding are removed."""
    before = cluster.api.request("GET", f"{SERVICES}/demo-judge")["spec"]
    edit(cluster, f"{SERVICES}/demo-judge", {"spec": {"selector": {"nothing": "matches"}}})
    subjects = cluster.api.request("GET", f"{ROLE_BINDINGS}/demo-trainer")["subjects"]
    other = [{"op": "add", "path": "/subjects/-", "value": {**subjects[0], "name": "default"}}]
    edit(cluster, f"{ROLE_BINDINGS}/demo-trainer", other, "application/json-patch+json")

    def corrected() -> bool:
        service = cluster.api.request("GET", f"{SERVICES}/demo-judge")["spec"]
        binding = cluster.api.request("GET", f"{ROLE_BINDINGS}/demo-trainer")
        return (service, binding["subjects"]) == (before, subjects)

    cluster.wait(corrected, "the additions stay")


def test_other_clients_scale_to_zero_is_corrected(cluster: JobController) -> None:
    """Engines that a person scales to zero return."""
    path = f"{DEPLOYMENTS}/demo-rollout"
    edit(cluster, f"{path}/scale", {"spec": {"replicas": 0}}, "application/merge-patch+json")
    cluster.wait(lambda: cluster.api.request("GET", path)["spec"]["replicas"] > 0, "no engine returns")
