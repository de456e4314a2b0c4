"""The decisions of the volume provisioner: which claims get which volumes, and which volumes are deleted."""

from __future__ import annotations

from tests.kube_node import volumes

CLAIM = {
    "metadata": {
        "uid": "u1",
        "name": "data",
        "namespace": "a",
        "annotations": {"volume.kubernetes.io/selected-node": "node"},
    },
    "spec": {
        "storageClassName": "local",
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "5Gi"}},
    },
}


def test_pending_claims_need_a_node_and_no_volume() -> None:
    """A claim is pending once: after its pod has a node and before it has a volume."""
    unscheduled = {**CLAIM, "metadata": {**CLAIM["metadata"], "annotations": {}}}
    other_class = {**CLAIM, "spec": {**CLAIM["spec"], "storageClassName": "other"}}
    bound = {**CLAIM, "spec": {**CLAIM["spec"], "volumeName": "pvc-u1"}}
    assert volumes.pending_claims([unscheduled, other_class, bound, CLAIM], []) == [CLAIM]
    assert volumes.pending_claims([CLAIM], [volumes.volume_for(CLAIM)]) == []


def test_volume_for_claim_is_bound_to_it() -> None:
    """The volume names the claim and has its size, access modes and a folder of its own."""
    spec = volumes.volume_for(CLAIM)["spec"]
    assert spec["claimRef"]["uid"] == "u1" and spec["capacity"] == {"storage": "5Gi"}
    assert spec["local"]["path"].startswith(f"{volumes.FOLDER}/") and spec["accessModes"] == ["ReadWriteMany"]


def test_released_volumes_excludes_bound_and_foreign() -> None:
    """Only released volumes of this provisioner are deleted."""
    released = {**volumes.volume_for(CLAIM), "status": {"phase": "Released"}}
    bound = {**volumes.volume_for(CLAIM), "status": {"phase": "Bound"}}
    foreign = {**released, "metadata": {"name": "x", "annotations": {}}}
    assert volumes.released_volumes([released, bound, foreign]) == [released]


def test_host_folder_has_one_volume_per_namespace(tmp_path) -> None:
    """Two namespaces get two read-only volumes of one folder, each bound to its claim."""
    first, claim = volumes.host_folder("a", "code", tmp_path)
    second, _ = volumes.host_folder("b", "code", tmp_path)
    assert first["metadata"]["name"] != second["metadata"]["name"]
    assert claim["spec"]["volumeName"] == first["metadata"]["name"]
    assert first["spec"]["claimRef"] == {"namespace": "a", "name": "code"}
    assert first["spec"]["accessModes"] == ["ReadOnlyMany"]
