"""The provisioner's decisions: which claims it serves, with what, and which volumes it removes."""

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


def test_a_claim_is_served_once_and_only_when_its_pod_has_a_node() -> None:
    unscheduled = {**CLAIM, "metadata": {**CLAIM["metadata"], "annotations": {}}}
    elsewhere = {**CLAIM, "spec": {**CLAIM["spec"], "storageClassName": "other"}}
    bound = {**CLAIM, "spec": {**CLAIM["spec"], "volumeName": "pvc-u1"}}
    assert volumes.claims_to_serve([unscheduled, elsewhere, bound, CLAIM], []) == [CLAIM]
    assert volumes.claims_to_serve([CLAIM], [volumes.volume_for(CLAIM)]) == []


def test_the_volume_is_the_claims_own() -> None:
    spec = volumes.volume_for(CLAIM)["spec"]
    assert spec["claimRef"]["uid"] == "u1" and spec["capacity"] == {"storage": "5Gi"}
    assert spec["local"]["path"].startswith(f"{volumes.FOLDER}/") and spec["accessModes"] == ["ReadWriteMany"]


def test_only_released_volumes_of_ours_are_removed() -> None:
    ours = {**volumes.volume_for(CLAIM), "status": {"phase": "Released"}}
    held = {**volumes.volume_for(CLAIM), "status": {"phase": "Bound"}}
    other = {**ours, "metadata": {"name": "x", "annotations": {}}}
    assert volumes.volumes_to_remove([ours, held, other]) == [ours]


def test_a_folder_of_this_machine_has_a_volume_of_its_own_in_each_namespace(tmp_path) -> None:
    first, claim = volumes.machine_folder("a", "code", tmp_path)
    second, _ = volumes.machine_folder("b", "code", tmp_path)
    assert first["metadata"]["name"] != second["metadata"]["name"]
    assert claim["spec"]["volumeName"] == first["metadata"]["name"]
    assert first["spec"]["claimRef"] == {"namespace": "a", "name": "code"}
    assert first["spec"]["accessModes"] == ["ReadOnlyMany"]
