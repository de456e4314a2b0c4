"""The advice about a problem: by its message, by the rejected kind of object, or by its reason. Pure.

`diagnostics.py` adds the advice to the text of each problem. `{pod}` and `{node}` stand for their names.
"""

from __future__ import annotations

import re

JUDGE_UNREACHABLE = "JudgeUnreachable"
NO_STORE = "StorageUnavailable"
_IMAGE = "Check the image name, its tag, and the pull secrets (spec.runtimePatches[].imagePullSecrets)."
_OTHER_CLAIM = (
    "spec.storage cannot change: delete the job, which deletes the claim {pod} too while it has no volume, and "
    "create it again with another spec.storage."
)
CONTESTED = "another operator applies another form of it again and again"
DELETION_BLOCKED = "DeletionBlocked"
HAS_ENDED = "has ended, but a finalizer keeps it"
"""Words about a deleted pod without running containers."""
NODE_REPORTS = "the node reports"
NOT_COMPLETED = "the API server does not complete the request"
"""Words about an error that the operator repeats, and that lasts."""
PREPARATION_JOB_DELETED = "the Job of the preparation was deleted"
"""Words about a Job that another client has deleted."""
PARALLELISM = "spec.parallelism"
"""Field of a Job that another client has changed."""
NO_POD = "its controller has created no pod"
APPLY_REJECTED = "ApplyRejected"
WITHOUT_LABELS = "of its pods do not have the labels of its template"
PREPARE_SLOW = "PreparationSlow"
RECONCILE_FAILED = "ReconcileFailed"
REFERENCE_NOT_FOUND = "ReferenceNotFound"
IMMUTABLE = "the field immutable is set"
_REJECTED_PODS = "Check the ResourceQuota, RuntimeClass or admission policy that rejects the pods."
ADVICE = {
    "ImagePullBackOff": _IMAGE,
    "InvalidImageName": _IMAGE,
    "ErrImageNeverPull": "Load the image onto the node, or let the kubelet pull it (image.pullPolicy of the chart).",
    "StartError": "Wrong image for this role? The entrypoint is missing.",
    "CreateContainerConfigError": "A ConfigMap or Secret of the pod is missing, or is another object of that name.",
    "CrashLoopBackOff": "Read the container's log: kubectl logs {pod}{container} --previous",
    "FailedCreatePodSandBox": "For an executor: install the gVisor shim of spec.executor.runtimeClassName on the node.",
    "FailedMount": "Check the volume, ConfigMap or Secret that the message names.",
    "FailedAttachVolume": "Check the volume and its storage driver.",
    "FailedCreate": _REJECTED_PODS,
    "ReplicaFailure": _REJECTED_PODS,
    "ProvisioningFailed": f"Check storageClassName, accessModes and size. {_OTHER_CLAIM}",
    "FailedBinding": f"Create a matching volume, or check storageClassName. {_OTHER_CLAIM}",
    APPLY_REJECTED: "Change the quota or the admission policy that the message names; the operator retries.",
    REFERENCE_NOT_FOUND: "Create the object before that stage starts, or name another one",
    RECONCILE_FAILED: "Until this succeeds, the operator cannot keep the job and its status up to date. Compare its "
    "Role with that of the chart, and read its log.",
    "InvalidProgressReport": "Version mismatch or manual edit: set spec.trainer.image to the operator's version, and "
    "delete the key from the ConfigMap. The orchestrator writes it again.",
    "PodStuckTerminating": "The node is unreachable. If it is permanently lost, run: kubectl taint nodes {node} "
    "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute (or delete the Node). No new attempt starts before.",
    "NodeNotReady": "If the node does not return, set spec.nodeLoss.afterSeconds, or run: kubectl "
    "taint nodes {node} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute (or delete the Node).",
    "NodeUnhealthy": "Check the node. A new attempt leaves it only if it is cordoned: kubectl cordon {node}. With "
    "spec.nodeLoss.afterSeconds the operator starts it then; otherwise drain the node.",
    "Stuck": "Check the logs: kubectl logs -l batch.kubernetes.io/job-name={pod} --prefix --tail=-1. To restart such "
    "attempts automatically, set spec.stuck.action: Restart; if the step is legitimate, increase spec.stuck.factor.",
    JUDGE_UNREACHABLE: "Its pods are ready, so check NetworkPolicies of other owners, DNS, and the endpoints of the "
    "Service: kubectl get endpointslices -l kubernetes.io/service-name={pod}",
    NO_STORE: "Training continues; the uploads are repeated. Check the server of spec.storage.url, and the "
    "credentials: rstar2 doctor --bucket URL",
    DELETION_BLOCKED: "Check the controller that has set the finalizer. If it is uninstalled, remove the finalizer: "
    "kubectl edit. The pods of the object are stopped.",
    "PodNotStarted": "Check the image, the init containers, the network (CNI) and the volumes of the pod: kubectl "
    "describe pod {pod}",
    "PodFailed": "Its controller replaces it. If this repeats, raise the limit or the request that the message names, "
    "or check the node.",
    PREPARE_SLOW: "A download of hours is normal while the log grows: kubectl logs job/{pod}. If it hangs, delete the "
    "pod: the Job retries. If the Job is being deleted, remove its finalizers.",
    "PodRejected": "The kubelet of the node rejects the pod, or an init container fails: check the node's device "
    "plugin and free disk, and cordon it if this repeats.",
    "PodNotScheduled": "The controller that sets a gate removes it; for kueue.x-k8s.io/topology check Kueue's log. "
    "Without a gate, check that the scheduler of spec.runtimePatches[].schedulerName runs, and its log.",
    "JobSuspended": "Set spec.suspend of this Job to false. If Kueue has set it, give Kueue the right to read "
    "AgenticRLJobs (kueue.enabled in the chart).",
    "OrchestratorNotReporting": "Check pod-to-pod networking (pod 0, port 6379) and the storage. Logs: kubectl logs -l "
    "batch.kubernetes.io/job-name={pod} --prefix --tail=-1",
}
"""Reason -> what to do."""
_REJECTED_WORKLOAD = (
    "Correct the field, quota or admission policy that the message names; the operator retries. To change an immutable "
    "field, suspend and resume the job."
)
REJECTED_ADVICE = {
    **dict.fromkeys(("Deployment", "StatefulSet", "Job"), _REJECTED_WORKLOAD),
    "PersistentVolumeClaim": "A claim may only grow, and only if its StorageClass has allowVolumeExpansion. If the "
    "message names a quota, free or increase it. A claim {pod} of an earlier job with another class can be deleted if "
    "its data is not needed: kubectl delete pvc {pod}",
    "Workload": "Check the LocalQueue of spec.queueName and the priority class; the operator retries.",
    "AgenticRLJob": "An admission policy rejects the operator's finalizer or the deletion of the job; exempt the "
    "operator's ServiceAccount. If the message names a field, the stored job breaks the definition of a newer version: "
    "correct the field.",
    **dict.fromkeys(
        ("Role", "RoleBinding"),
        "The operator may grant only rights that it has: upgrade the chart's RBAC, or check "
        "the admission policy that the message names.",
    ),
}
"""Kind of an object that the API server rejects -> what to do."""
CLAIM_FIELDS = "spec.accelerator.claimTemplates, or spec.runtimePatches[].resourceClaims"
"""Fields that name a ResourceClaimTemplate."""
REFERENCE_FIELDS = {
    "RuntimeClass": "spec.executor.runtimeClassName",
    "ServiceAccount": "spec.runtimePatches[].serviceAccountName",
    "PriorityClass": "spec.priorityClassName",
    "PersistentVolumeClaim": "spec.storage.claimName, a pvc:// source, or a volume of spec.runtimePatches",
    "ConfigMap": "spec.runtimePatches",
    "ResourceClaim": "spec.runtimePatches[].resourceClaims",
    "ResourceClaimTemplate": CLAIM_FIELDS,
    "Secret": "spec.secretRefs, spec.mcpServers, spec.tracking.mlflow.secretRef, spec.runtimePatches, or the pull "
    "secrets of the site",
}
"""Kind of a missing object -> fields that name it."""
RESOURCE_FIELDS = {
    "trainer": "spec.trainer.resources",
    "rollout": "spec.rollout.resources",
    "teacher": "spec.teacher.resources",
    "redis": "spec.redis.resources",
    "environment": "spec.environments[0].resources",
    "executor": "spec.executor.cpu and spec.judge.limits.memory",
}
"""Role -> fields with the requests and limits of its pods; others have runtimePatches."""
LIMIT_RANGE = re.compile(r"(minimum|maximum) \S+ usage per (Container|Pod)|limit to request ratio per")
"""The admission plugin LimitRanger about a pod."""


def advice_about(reason: str, kind: str, message: str, role: str) -> str:
    """Return what to do about a problem; empty if the message is enough. `kind`: of the object that has it."""
    if by_message := _message_advice(message, role):
        return by_message
    if reason == APPLY_REJECTED:
        return REJECTED_ADVICE.get(kind, ADVICE[APPLY_REJECTED])
    if reason == REFERENCE_NOT_FOUND:
        return f"{ADVICE[reason]}: {REFERENCE_FIELDS[kind]}."
    return ADVICE.get(reason) or _scheduling_advice(message)


def _message_advice(message: str, role: str) -> str:
    """Return what to do about a message that names its cause more exactly than the reason."""
    if PREPARATION_JOB_DELETED in message:
        return "Find the client that deletes the Job, such as a policy with a TTL, in the API server's audit log."
    if "because it is being terminated" in message:
        return "The namespace is being deleted, and the job with it: create the job in another namespace."
    if CONTESTED in message:
        return "Let one release serve the job: other namespaces (watchNamespaces), or another operator.controllerName."
    if WITHOUT_LABELS in message:
        return (
            "An admission webhook or policy removes them: exempt the pods from it. The operator cannot see such pods."
        )
    if NOT_COMPLETED in message:
        return (
            "The operator retries. Check the load of the API server, and its etcd; after a conflict find the other "
            "client that writes the object."
        )
    if IMMUTABLE in message:
        return "No client can unset it: run kubectl delete configmap {pod}. The operator creates the ConfigMap again."
    if PARALLELISM in message:
        return f"Set {PARALLELISM} of this Job to its spec.completions."
    if NO_POD in message:
        return "Check that kube-controller-manager runs, and that no policy has set spec.managedBy of the object."
    if LIMIT_RANGE.search(message):
        field = RESOURCE_FIELDS.get(role, "spec.runtimePatches[].resources")
        return f"A LimitRange of the namespace forbids these amounts: change {field}, or the LimitRange."
    if HAS_ENDED in message:
        return (
            "It holds no accelerator. Check the controller of the finalizer; if it is uninstalled, run: kubectl patch "
            'pod {pod} --type=merge -p \'{{"metadata":{{"finalizers":null}}}}\''
        )
    if NODE_REPORTS in message:
        return "The kubelet or the container runtime of node {node} hangs: restart it. No new attempt starts before."
    if "runAsNonRoot" in message:
        return "The image runs as root: set a numeric USER other than 0 in the image."
    if "resourceclaimtemplate" in message and "not found" in message:
        return f"Create the ResourceClaimTemplate, or name an existing one ({CLAIM_FIELDS})."
    if "error looking up service account" in message:
        return "Create the ServiceAccount, or name an existing one: spec.runtimePatches[].serviceAccountName."
    if "persistentvolumeclaim" in message and "is being deleted" in message:
        fields = "spec.storage.claimName, or a pvc:// source"
        return (
            f"Suspend the job, so that the claim can be deleted; then create it again, or name another one ({fields})."
        )
    return ""


def _scheduling_advice(message: str) -> str:
    if "persistentvolumeclaim" in message and "not found" in message:
        fields = "spec.storage.claimName, a pvc:// source, or a volume of spec.runtimePatches"
        return f"Create the claim, or name an existing one ({fields})."
    if "unbound immediate PersistentVolumeClaims" in message or "persistentvolumeclaim" in message:
        return "Check the claim: its StorageClass must exist and be able to provide a volume."
    if "Insufficient" in message:
        return (
            "Free or add nodes with the missing resource, or request less (replicas, resources) and then suspend and "
            "resume the job."
        )
    if "taint" in message:
        return "Add tolerations by spec.runtimePatches."
    return ""
