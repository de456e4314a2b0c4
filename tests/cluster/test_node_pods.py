"""Pods on the node: both runtimes, volumes, this machine's Python in a restricted pod."""

from __future__ import annotations

import pytest

from tests.kube_node import volumes
from tests.kube_node.cluster import Cluster, CommandFailed
from tests.kube_node.namespaces import wait_for
from tests.kube_node.pods import pod


def test_pod_runc_runs_and_logs(cluster: Cluster, namespace: str) -> None:
    """A pod runs as the non-root user and kubectl reads its log."""
    cluster.apply([pod(namespace, "plain", "sh", "-c", "echo hello from $(id -u)")])
    cluster.wait(namespace, "pod/plain", "jsonpath={.status.phase}=Succeeded")
    assert cluster.kubectl("logs", "-n", namespace, "plain").strip() == "hello from 65532"


def test_pod_gvisor_has_its_own_kernel(cluster: Cluster, namespace: str) -> None:
    """A gVisor pod sees the kernel of gVisor, a runc pod does not."""
    cluster.apply([pod(namespace, "sandboxed", runtimeClassName="gvisor"), pod(namespace, "plain")])
    for name in ("sandboxed", "plain"):
        cluster.wait(namespace, f"pod/{name}", "condition=Ready")
    assert "gVisor" in cluster.exec(namespace, "sandboxed", "dmesg").stdout
    assert "gVisor" not in cluster.exec(namespace, "plain", "dmesg", check=False).stdout


def test_pod_missing_runtime_class_is_rejected(cluster: Cluster, namespace: str) -> None:
    """Admission rejects a pod of a RuntimeClass that does not exist."""
    with pytest.raises(CommandFailed, match='RuntimeClass "none-such" not found'):
        cluster.apply([pod(namespace, "refused", runtimeClassName="none-such")])


def claim(namespace: str, name: str) -> dict:
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def test_claim_keeps_data_until_it_is_deleted(cluster: Cluster, namespace: str) -> None:
    """A second non-root pod reads the file of the first; deleting the claim deletes volume and folder."""
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
    cluster.kubectl("wait", "--for=delete", f"pv/{bound}", "--timeout=300s")
    if cluster.layout:
        listing = ("ls", str(volumes.FOLDER))
        wait_for("deletion of the folder", lambda: bound not in cluster.run_on_node(*listing).stdout, 180)


def test_pod_restricted_runs_machine_python(cluster: Cluster, namespace: str) -> None:
    """A restricted pod imports pydantic and rstar2_train from the mounted clone."""
    cluster.node_layout()
    python_volumes, mounts = cluster.mount_python(namespace)
    script = "import pydantic, sys, rstar2_train; print(sys.prefix, rstar2_train.__file__)"
    command = (volumes.python_command(), "-c", script)
    cluster.apply([pod(namespace, "python", *command, volumes=python_volumes, mounts=mounts)])
    cluster.wait(namespace, "pod/python", "jsonpath={.status.phase}=Succeeded")
    assert cluster.kubectl("logs", "-n", namespace, "python").split() == [
        str(volumes.VENV),
        str(volumes.ROOT / "rstar2_train/__init__.py"),
    ]
