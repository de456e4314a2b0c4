"""The claim that holds checkpoints, trajectories and reports, when the job does not bring its own."""

from __future__ import annotations

from rstar2_operator import names
from rstar2_operator.builders.pod import BuildContext, Manifest

DEFAULT_SIZE = "100Gi"


def storage(built: BuildContext) -> list[Manifest]:
    """The job's claim; nothing when spec.storage.claimName names one.

    Whether it goes with the job is decided by its owner reference, which apply.py leaves out for `Retain`.
    """
    wanted = built.job.spec.storage
    if wanted.claim_name:
        return []
    spec: Manifest = {
        "accessModes": list(wanted.access_modes),
        "resources": {"requests": {"storage": str(wanted.size or DEFAULT_SIZE)}},
    }
    if wanted.storage_class_name:
        spec["storageClassName"] = wanted.storage_class_name
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": names.claim(built.name), "labels": built.labels("storage")},
            "spec": spec,
        }
    ]
