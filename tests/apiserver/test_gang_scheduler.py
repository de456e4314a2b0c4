"""The gang of docs/scheduling with the real coscheduling plugin, and the real Job controller, on a real API server.

Two jobs of four trainer pods want six nodes. Without a gang each could get some nodes and wait for the others. The test
plays the kubelets of the nodes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import yaml

from rstar2_operator import names
from tests.kube_node import binaries
from tests.support.controller_manager import controller_manager
from tests.support.job_controller import JOBS, PODS
from tests.support.kube_apiserver import KubeApiserver
from tests.support.kubelets import Kubelets
from tests.support.operator_process import OperatorProcess
from tests.support.servers import component
from tests.support.simulated_cluster import manifest

MEMBERS = 4
NODES = 6
GROUPS = "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/lab/podgroups"
GPU = "amd.com/gpu"
OF_VOLUMES = ("VolumeBinding", "VolumeZone", "VolumeRestrictions", "NodeVolumeLimits")
"""Plugins of the scheduler that need a provisioner of volumes, which this cluster lacks."""


def scheduler(api: KubeApiserver, folder: Path) -> AbstractContextManager[None]:
    """Run the scheduler with the plugin's own configuration, as the only scheduler."""
    program = Path(binaries.ensure_binary(binaries.COSCHEDULING))
    definition = yaml.safe_load((program.parent / "coscheduling" / "crd.yaml").read_text().removeprefix("---\n"))
    api.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
    configuration = yaml.safe_load((program.parent / "coscheduling" / "scheduler-config.yaml").read_text())
    configuration["clientConnection"]["kubeconfig"] = str(api.kubeconfig)
    (profile,) = configuration["profiles"]
    profile["plugins"]["multiPoint"]["disabled"] = [{"name": name} for name in OF_VOLUMES]
    (folder / "scheduler.json").write_text(json.dumps(configuration))
    return component(
        [str(program), f"--config={folder / 'scheduler.json'}", "--secure-port=0"], folder / "scheduler.log"
    )


def create_node(api: KubeApiserver, name: str) -> None:
    """Create a ready node with eight GPUs."""
    node = api.request("POST", "/api/v1/nodes", {"metadata": {"name": name}})
    capacity = {"cpu": "64", "memory": "1Ti", "pods": "100", GPU: "8"}
    node["status"] = {
        "capacity": capacity,
        "allocatable": capacity,
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    node = api.request("PUT", f"/api/v1/nodes/{name}/status", node)
    node["spec"].pop("taints", None)  # admission adds that of a new node, which a controller removes
    api.request("PUT", f"/api/v1/nodes/{name}", node)


def submit(lab: Kubelets, name: str) -> None:
    """Create a job of one SFT stage whose trainer pods are a gang, as the documentation describes it."""
    group = {"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup", "metadata": {"name": name}}
    lab.api.request("POST", GROUPS, {**group, "spec": {"minMember": MEMBERS}})
    gang = {"manager": "gang", "roles": ["trainer"], "labels": {"scheduling.x-k8s.io/pod-group": name}}
    body = manifest(
        "s",
        accelerator={"vendor": "AMD", "resource": GPU},
        trainer={"replicas": MEMBERS, "gpusPerReplica": 8},
        runtimePatches=[gang],
    )
    lab.api.request("POST", JOBS, {**body, "metadata": {"name": name}})


def bound(lab: Kubelets) -> Counter[str]:
    """Return the number of trainer pods on nodes, by job."""
    pods: list[dict[str, Any]] = lab.api.request("GET", PODS)["items"]
    trainers = [pod for pod in pods if pod["metadata"]["labels"][names.ROLE_LABEL] == "trainer"]
    return Counter(pod["metadata"]["labels"][names.JOB_LABEL] for pod in trainers if pod["spec"].get("nodeName"))


@pytest.fixture
def lab(api: KubeApiserver, tmp_path: Path) -> Iterator[Kubelets]:
    """Provide six nodes, the scheduler, the Job controller and the operator."""
    log = tmp_path / "operator.log"
    with OperatorProcess(api.kubeconfig, log=log) as operator:
        for number in range(NODES):
            create_node(api, f"node-{number}")
        with scheduler(api, tmp_path), controller_manager(api, tmp_path, "job-controller"):
            kubelets = Kubelets(api)
            kubelets.binds = False
            yield kubelets
        assert operator.process.poll() is None, log.read_text()[-2000:]


def test_gang_starts_with_all_of_its_pods_or_none(lab: Kubelets) -> None:
    """The second job's four pods get no node while only two are free, and all of them when the first has finished."""
    submit(lab, "first")
    lab.wait(lambda: bound(lab)["first"] == MEMBERS, "the gang does not start")
    lab.wait(lambda: lab.status("first")["phase"] == "Running", "the job does not run")
    submit(lab, "second")
    wanted = f"{names.JOB_LABEL}=second,{names.ROLE_LABEL}=trainer"

    def waiting() -> list[dict[str, Any]]:
        pods: list[dict[str, Any]] = lab.api.request("GET", f"{PODS}?labelSelector={wanted}")["items"]
        return [pod for pod in pods if pod["status"].get("conditions")]

    lab.wait(lambda: len(waiting()) == MEMBERS, "the scheduler has not tried all pods of the second gang")
    lab.play_for(15)  # longer than the plugin holds nodes for the rest of a gang
    assert bound(lab) == {"first": MEMBERS}
    assert {each["status"] for pod in waiting() for each in pod["status"]["conditions"]} == {"False"}

    lab.succeed_stage("first", "s0")
    lab.wait(lambda: lab.status("first")["phase"] == "Succeeded", "the first job does not succeed")
    lab.wait(lambda: bound(lab)["second"] == MEMBERS, "the second gang does not start")
