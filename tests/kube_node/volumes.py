"""Volumes of the default StorageClass, and read-only volumes that show folders of this machine to pods.

Pure: agent.py and cluster.py write the objects. The StorageClass `local` binds a claim when its pod has a node, to a
`local:` volume that is deleted with the claim. (fsGroup applies to `local:` volumes, not to hostPath.)

Pods that need this machine's Python claim a hostPath **PersistentVolume**: torch and vLLM are too large for an image in
every test run. The restricted Pod Security level forbids hostPath volumes in pods, but it admits such claims.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

from scripts.setup import ROOT, VENV
from tests.kube_node.layout import NODE

Object = dict[str, Any]
STORAGE_CLASS = "local"
HOST_CLASS = "machine"
"""Class of the volumes that show this machine's folders. It has no provisioner."""
PROVISIONER = "rstar2.dev/local"
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
FOLDER = Path("/var/lib/rstar2-volumes")


def pending_claims(claims: list[Object], volumes: list[Object]) -> list[Object]:
    """Return the claims that wait for this provisioner and have no volume."""
    existing = {volume["metadata"]["name"] for volume in volumes}
    return [
        claim
        for claim in claims
        if claim["spec"].get("storageClassName") == STORAGE_CLASS
        and "volume.kubernetes.io/selected-node" in (claim["metadata"].get("annotations") or {})
        and not claim["spec"].get("volumeName")
        and volume_name(claim) not in existing
    ]


def volume_name(claim: Object) -> str:
    return f"pvc-{claim['metadata']['uid']}"


def node_affinity() -> Object:
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE]}]}
    return {"required": {"nodeSelectorTerms": [term]}}


def volume_for(claim: Object) -> Object:
    """Return the volume for a claim."""
    metadata = claim["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": volume_name(claim), "annotations": {PROVISIONED_BY: PROVISIONER}},
        "spec": {
            "storageClassName": STORAGE_CLASS,
            "capacity": {"storage": claim["spec"]["resources"]["requests"]["storage"]},
            "accessModes": claim["spec"]["accessModes"],
            "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {
                "kind": "PersistentVolumeClaim",
                "apiVersion": "v1",
                "namespace": metadata["namespace"],
                "name": metadata["name"],
                "uid": metadata["uid"],
            },
            "local": {"path": str(FOLDER / volume_name(claim))},
            "nodeAffinity": node_affinity(),
        },
    }


def released_volumes(volumes: list[Object]) -> list[Object]:
    """Return the volumes of this provisioner whose claim was deleted."""
    return [
        volume
        for volume in volumes
        if (volume["metadata"].get("annotations") or {}).get(PROVISIONED_BY) == PROVISIONER
        and volume["status"].get("phase") == "Released"
        and volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete"
    ]


# --------------------------------------------------------------------------------- this machine's Python


def python_folders() -> dict[str, Path]:
    """Return claim name -> folder that a pod mounts, at the same path, to run this clone's Python.

    The folders are the clone with its environment, and the interpreter, unless it is the distribution's: the base image
    has that one.
    """
    folders = {"machine-clone": ROOT}
    prefix = Path(sys.base_prefix)
    if prefix != Path("/usr"):
        folders["machine-python"] = prefix
    return folders


def python_command() -> str:
    """Return the path of the interpreter in such a pod."""
    return str(VENV / "bin" / "python")


def host_folder(namespace: str, name: str, folder: Path, *, writable: bool = False) -> list[Object]:
    """Return a volume and a claim bound to it, which show a folder of this machine to the pods of a namespace."""
    volume = f"{name}-{hashlib.sha256(f'{namespace}/{name}'.encode()).hexdigest()[:8]}"
    mode = "ReadWriteMany" if writable else "ReadOnlyMany"
    common = {"storageClassName": HOST_CLASS, "accessModes": [mode]}
    size = {"storage": "1Gi"}  # required, not enforced
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": volume},
            "spec": {
                **common,
                "capacity": size,
                "persistentVolumeReclaimPolicy": "Retain",
                "claimRef": {"namespace": namespace, "name": name},
                "hostPath": {"path": str(folder), "type": "Directory"},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {**common, "volumeName": volume, "resources": {"requests": size}},
        },
    ]


def mounts(claims: dict[str, Path]) -> tuple[list[Object], list[Object]]:
    """Return `volumes` and `volumeMounts` of a pod for claims of `host_folder`, each at its own path, read-only."""
    volumes = [{"name": name, "persistentVolumeClaim": {"claimName": name, "readOnly": True}} for name in claims]
    return volumes, [{"name": name, "mountPath": str(path), "readOnly": True} for name, path in claims.items()]
