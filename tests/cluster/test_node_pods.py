"""Pods on the booted cluster: both runtimes, volumes that come and go, this machine's Python in a restricted pod."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kube_node import fake_nodes, volumes
from tests.kube_node.cluster import Cluster, CommandFailed
from tests.kube_node.namespaces import wait_for
from tests.kube_node.pods import pod


def test_a_runc_pod_runs_and_its_log_can_be_read(cluster: Cluster, namespace: str) -> None:
    cluster.apply([pod(namespace, "plain", "sh", "-c", "echo hello from $(id -u)")])
    cluster.wait(namespace, "pod/plain", "jsonpath={.status.phase}=Succeeded")
    assert cluster.kubectl("logs", "-n", namespace, "plain").strip() == "hello from 65532"


def test_a_gvisor_pod_runs_on_gvisors_kernel_and_a_runc_pod_does_not(cluster: Cluster, namespace: str) -> None:
    cluster.apply([pod(namespace, "sandboxed", runtimeClassName="gvisor"), pod(namespace, "plain")])
    for name in ("sandboxed", "plain"):
        cluster.wait(namespace, f"pod/{name}", "condition=Ready")
    assert "gVisor" in cluster.exec(namespace, "sandboxed", "dmesg").stdout
    assert "gVisor" not in cluster.exec(namespace, "plain", "dmesg", check=False).stdout


def test_a_runtime_that_the_cluster_does_not_have_is_refused(cluster: Cluster, namespace: str) -> None:
    with pytest.raises(CommandFailed, match='RuntimeClass "none-such" not found'):
        cluster.apply([pod(namespace, "refused", runtimeClassName="none-such")])


def test_fake_nodes_hold_many_pods_and_leave_the_real_one_alone(cluster: Cluster, namespace: str) -> None:
    cluster.own()
    fake_nodes.start(cluster, nodes=2, **{"amd.com/gpu": "8"})
    try:
        for node in ("fake-0", "fake-1"):
            cluster.wait("default", f"node/{node}", "condition=Ready")
        where: dict[str, Any] = {"nodeSelector": fake_nodes.LABELS, "tolerations": [fake_nodes.TOLERATION]}
        pods = [pod(namespace, f"p-{number}", **where) for number in range(40)]
        pods[0]["spec"]["containers"][0]["resources"] = {"limits": {"amd.com/gpu": "8"}}
        cluster.apply(pods)
        cluster.wait(namespace, "pod/p-0", "condition=Ready")
        cluster.kubectl("wait", "-n", namespace, "pod", "--all", "--for=condition=Ready", "--timeout=60s")
        items = cluster.get("pods", "-n", namespace)["items"]
        assert {item["spec"]["nodeName"] for item in items} == {"fake-0", "fake-1"}
    finally:
        cluster.kubectl("delete", "pods", "--all", "-n", namespace, "--grace-period=0", "--force")
        cluster.kubectl("delete", "node", "fake-0", "fake-1")
        cluster.stop("kwok")


def claim(namespace: str, name: str) -> dict:
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def test_a_claim_keeps_what_a_non_root_pod_wrote_and_goes_with_its_volume(cluster: Cluster, namespace: str) -> None:
    volume = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    mount = [{"name": "data", "mountPath": "/data"}]
    write = ("sh", "-c", "echo kept > /data/file")
    read = ("sh", "-c", "test $(cat /data/file) = kept")
    cluster.apply([claim(namespace, "data"), pod(namespace, "writer", *write, volumes=volume, mounts=mount)])
    cluster.wait(namespace, "pod/writer", "jsonpath={.status.phase}=Succeeded")
    cluster.kubectl("delete", "pod", "-n", namespace, "writer")
    cluster.apply([pod(namespace, "reader", *read, volumes=volume, mounts=mount, runtimeClassName="gvisor")])
    cluster.wait(namespace, "pod/reader", "jsonpath={.status.phase}=Succeeded")

    bound = cluster.get("pvc", "-n", namespace, "data")["spec"]["volumeName"]
    cluster.kubectl("delete", "pod/reader", "pvc/data", "-n", namespace)
    cluster.kubectl("wait", "--for=delete", f"pv/{bound}", "--timeout=60s")
    if cluster.layout:
        wait_for("the folder to go", lambda: not cluster.inside("ls", str(volumes.FOLDER)).stdout.count(bound), 10)


def test_this_machines_python_runs_in_a_restricted_pod(cluster: Cluster, namespace: str) -> None:
    cluster.own()
    shown, mounts = cluster.show_python(namespace)
    script = "import pydantic, sys, rstar2_train; print(sys.prefix, rstar2_train.__file__)"
    command = (volumes.python_command(), "-c", script)
    cluster.apply([pod(namespace, "python", *command, volumes=shown, mounts=mounts)])
    cluster.wait(namespace, "pod/python", "jsonpath={.status.phase}=Succeeded")
    assert cluster.kubectl("logs", "-n", namespace, "python").split() == [
        str(volumes.VENV),
        str(volumes.ROOT / "rstar2_train/__init__.py"),
    ]
