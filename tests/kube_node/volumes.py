"""Volumes: what the provisioner of the default StorageClass makes, and read-only views of this machine's folders.

Pure: agent.py and cluster.py write the objects. The StorageClass `local` serves a claim once its pod has a node, with a
`local:` volume (fsGroup applies to those, not to hostPath) that is deleted with its claim.

Pods that need this machine's Python (torch and vLLM are too large for an image in every test run) claim a hostPath
**PersistentVolume**: the restricted Pod Security level forbids hostPath volumes in pods, but admits claims.
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
HOST_CLASS = "machine"  # of the volumes that show this machine's folders; nobody provisions it
PROVISIONER = "rstar2.dev/local"
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
FOLDER = Path("/var/lib/rstar2-volumes")


def claims_to_serve(claims: list[Object], volumes: list[Object]) -> list[Object]:
    """Claims that wait for this provisioner and have no volume yet."""
    made = {volume["metadata"]["name"] for volume in volumes}
    return [
        claim
        for claim in claims
        if claim["spec"].get("storageClassName") == STORAGE_CLASS
        and "volume.kubernetes.io/selected-node" in (claim["metadata"].get("annotations") or {})
        and not claim["spec"].get("volumeName")
        and volume_name(claim) not in made
    ]


def volume_name(claim: Object) -> str:
    return f"pvc-{claim['metadata']['uid']}"


def on_node() -> Object:
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE]}]}
    return {"required": {"nodeSelectorTerms": [term]}}


def volume_for(claim: Object) -> Object:
    """The volume that serves a claim."""
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
            "nodeAffinity": on_node(),
        },
    }


def volumes_to_remove(volumes: list[Object]) -> list[Object]:
    """Volumes of ours whose claim is gone."""
    return [
        volume
        for volume in volumes
        if (volume["metadata"].get("annotations") or {}).get(PROVISIONED_BY) == PROVISIONER
        and volume["status"].get("phase") == "Released"
        and volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete"
    ]


# --------------------------------------------------------------------------------- this machine's Python


def python_folders() -> dict[str, Path]:
    """Claim name -> folder that a pod must mount, at the same path, to run this clone's Python.

    The clone with its environment, and the interpreter unless it is the distribution's own, which is in the base
    image too.
    """
    found = {"machine-clone": ROOT}
    prefix = Path(sys.base_prefix)
    if prefix != Path("/usr"):
        found["machine-python"] = prefix
    return found


def python_command() -> str:
    """The interpreter to name in such a pod."""
    return str(VENV / "bin" / "python")


def machine_folder(namespace: str, name: str, folder: Path, *, writable: bool = False) -> list[Object]:
    """A volume and a claim, bound to one another, that show a folder of this machine to a namespace's pods."""
    volume = f"{name}-{hashlib.sha256(f'{namespace}/{name}'.encode()).hexdigest()[:8]}"
    mode = "ReadWriteMany" if writable else "ReadOnlyMany"
    common = {"storageClassName": HOST_CLASS, "accessModes": [mode]}
    size = {"storage": "1Gi"}  # nothing measures it
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
    """`volumes` and `volumeMounts` of a pod for claims made by `machine_folder`, each at its own path, read-only."""
    volumes = [{"name": name, "persistentVolumeClaim": {"claimName": name, "readOnly": True}} for name in claims]
    return volumes, [{"name": name, "mountPath": str(path), "readOnly": True} for name, path in claims.items()]
