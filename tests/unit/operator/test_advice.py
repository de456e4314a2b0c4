"""The advice of a problem: by its message, by the kind of a rejected object, or by its reason."""

from __future__ import annotations

import pytest

from rstar2_operator.decide.diagnostics import Diagnosis

LIMITS = "pods is forbidden: [maximum memory usage per Container is 1Gi, but limit is 2Gi]"
ACCOUNT = 'pods "x" is forbidden: error looking up service account lab/bucket: serviceaccount "bucket" not found'
TERMINATING = "jobs is forbidden: unable to create new content in namespace lab because it is being terminated"
CLAIM = '0/4 nodes are available: persistentvolumeclaim "data" is being deleted'


@pytest.mark.parametrize(
    ("problem", "advice"),
    [
        (Diagnosis("trainer", "Job/a", "FailedCreate", LIMITS), "change spec.trainer.resources, or the LimitRange"),
        (Diagnosis("judge", "Deployment/a", "ReplicaFailure", LIMITS), "change spec.runtimePatches[].resources"),
        (Diagnosis("rollout", "Deployment/a", "ReplicaFailure", ACCOUNT), "spec.runtimePatches[].serviceAccountName"),
        (Diagnosis("trainer", "Job/a", "ApplyRejected", TERMINATING), "create the job in another namespace"),
        (Diagnosis("rollout", "Deployment/a", "ReplicaFailure", TERMINATING), "create the job in another namespace"),
        (Diagnosis("trainer", "Pod/a", "Unschedulable", CLAIM), "Suspend the job, so that the claim can be deleted"),
        (
            Diagnosis("storage", "PersistentVolumeClaim/a-state", "ProvisioningFailed", "class x not found"),
            "delete the job, which deletes the claim a-state too while it has no volume",
        ),
        (
            Diagnosis("storage", "PersistentVolumeClaim/a-state", "ApplyRejected", "spec is immutable"),
            "kubectl delete pvc a-state",
        ),
        (Diagnosis("trainer", "Job/a", "ApplyRejected", "exceeded quota"), "suspend and resume the job"),
        (Diagnosis("workload", "Workload/a", "ApplyRejected", "denied"), "Check the LocalQueue"),
        (Diagnosis("config", "ConfigMap/a", "ApplyRejected", "denied"), "Change the quota or the admission policy"),
    ],
)
def test_advice_names_the_field_or_command(problem: Diagnosis, advice: str) -> None:
    """A person knows what to change, for that kind of object."""
    assert advice in str(problem) and str(problem).startswith(f"{problem.subject}: {problem.reason}: ")
