"""The claim for checkpoints, trajectories and reports of a job without spec.storage.claimName and spec.storage.url."""

from __future__ import annotations

from rstar2_operator import names
from rstar2_operator.builders.manifest import Manifest
from rstar2_operator.builders.pod import BuildContext

DEFAULT_SIZE = "100Gi"


def storage(context: BuildContext) -> list[Manifest]:
    """Return the job's claim; an empty list if spec.storage.claimName or url is set.

    apply.py adds an owner reference, by which the claim is deleted with the job, unless reclaimPolicy is Retain.
    """
    spec_storage = context.job.spec.storage
    if spec_storage.claim_name or spec_storage.url:
        return []
    spec: Manifest = {
        "accessModes": list(spec_storage.access_modes),
        "resources": {"requests": {"storage": str(spec_storage.size or DEFAULT_SIZE)}},
    }
    if spec_storage.storage_class_name:
        spec["storageClassName"] = spec_storage.storage_class_name
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": names.claim(context.name), "labels": context.labels("storage")},
            "spec": spec,
        }
    ]
