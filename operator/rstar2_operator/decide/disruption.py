"""Disruptions: attempts that ended because a pod was evicted, drained, deleted or rejected, or its node was lost.

The orchestrator may report the loss of the pod's ranks before the Job controller fails the Job. The order does not
matter: what happened to the pod is the cause.

Such a restart does not count towards maxRestarts, because the job is not its cause. Two limits keep the job from an
endless series: an eviction by pressure on the node counts, because the pod used more than it requested; and so does
each further disruption after MAX_CONSECUTIVE in a row without a new checkpoint.

The API server keeps the facts: a pod's condition, the status after the pod is deleted, and the Job of the next attempt
with the number of consecutive disruptions. Only the time of a deletion is in the memory of the operator until the Job
fails, which is about a second.
"""

from __future__ import annotations

from rstar2_operator import names
from rstar2_operator.decide.advice import PREPARATION_JOB_DELETED
from rstar2_operator.observed import (
    Object,
    ObservedJob,
    annotations_of,
    condition,
    created_at,
    deletion_requested_at,
    exit_code,
    failed_init_container,
    is_of,
    is_true,
    job_failing_since,
    lost_since,
)

MAX_CONSECUTIVE = 10
"""Disruptions in a row without a new checkpoint that do not count towards maxRestarts."""
EVICTED = "Evicted"
NODE_PRESSURE = "The node had condition:"
"""The kubelet's words about a pod that it rejects because the node lacks a resource already."""
REJECTED = "PodRejected"
DISRUPTION_TARGET = "DisruptionTarget"
"""Type of the condition of a pod that is evicted, preempted or drained."""
DISRUPTED = "Disrupted: a pod was evicted, preempted or drained"
DELETED = "PodLost: a pod of the attempt was deleted"
JOB_DELETED = "PodLost: the Job of the attempt was deleted"
PREPARATION_DELETED = f"PodLost: {PREPARATION_JOB_DELETED}"
RECORDED = f"{DISRUPTED}, was deleted, or lost its node"


def disruption(job: Object, stage: str, number: int, observed: ObservedJob) -> str:
    """Return the disruption of attempt `number`, whose batch Job is `job`, with its reason; else empty."""
    if rejected := rejection(job, observed):
        return rejected
    pods = [pod for pod in observed.pods if is_of(pod, job)]
    if (target := next((pod for pod in pods if is_true(pod, DISRUPTION_TARGET)), None)) is not None:
        return f"{DISRUPTED}{_message(target)}"
    if job["metadata"]["name"] in observed.disrupted:
        return DISRUPTED
    failed_at = job_failing_since(job)
    if failed_at is not None:
        times = [observed.deletions.get(job["metadata"]["name"]), *map(deletion_requested_at, pods)]
        # A failing Job deletes its other pods, in the same second or later. A Job fails a second after a deletion.
        created = created_at(job, 0.0)
        if any(created <= when < failed_at for when in times if when is not None):
            return DELETED
        if lost := next((pod for pod in pods if lost_since(pod, observed) is not None), None):
            node, name = lost["spec"].get("nodeName", ""), lost["metadata"]["name"]
            return f"Disrupted: node {node} of Pod/{name} does not report"
    return RECORDED if observed.stage_status(stage).get("disruptedAttempt") == number else ""


def _message(pod: Object) -> str:
    """Return name, reason and message of an evicted pod, in the words of the component that evicted it."""
    target = condition(pod, DISRUPTION_TARGET) or {}
    texts = (f"Pod/{pod['metadata']['name']}", target.get("reason"), target.get("message"))
    return f": {': '.join(filter(None, texts))}" if target.get("reason") else ""


def eviction_by_pressure(job: Object, observed: ObservedJob) -> str:
    """Return the kubelet's message if it evicted a pod of the Job because its node lacked a resource; else empty."""
    for pod in observed.pods:
        status = pod.get("status") or {}
        if is_of(pod, job) and status.get("reason") == EVICTED and not cause_of_rejection(pod):
            return f"{EVICTED}: Pod/{pod['metadata']['name']}: {status.get('message', '')}"
    return ""


def rejection(job: Object, observed: ObservedJob) -> str:
    """Return the kubelet's words if a pod of the Job failed before its own container started; else empty.

    Devices that are not up after a reboot, a changed node label, a shutdown or a full disk of the node, and an
    injected init container that fails, are such causes.
    """
    for pod in observed.pods:
        if is_of(pod, job) and (cause := cause_of_rejection(pod)):
            return f"{REJECTED}: Pod/{pod['metadata']['name']}: {cause}"
    return ""


def cause_of_rejection(pod: Object) -> str:
    """Return why a pod failed before its own container started; empty if the container started, or the pod works."""
    status = pod.get("status") or {}
    reason, message = status.get("reason"), str(status.get("message", ""))
    if status.get("phase") != "Failed" or exit_code(pod) is not None:
        return ""
    if reason and (reason != EVICTED or NODE_PRESSURE in message):
        return f"{reason}: {message}"
    return "" if pod["metadata"].get("deletionTimestamp") else failed_init_container(pod)


def consecutive(job: Object, stage: str, number: int, observed: ObservedJob) -> int:
    """Return the disruptions in a row without a new checkpoint, this one included."""
    return 1 + _before(names.DISRUPTIONS, job, stage, number, observed)


def has_new_checkpoint(job: Object, stage: str, number: int, observed: ObservedJob) -> bool:
    """Return whether attempt `number` wrote a checkpoint after the one that it started from."""
    start = int(annotations_of(job).get(names.START_STEP, -1))
    outcome, progress = observed.outcome(stage), observed.progress()
    steps = [
        report.checkpoint.step
        for report in (outcome, progress)
        if report is not None and report.checkpoint is not None and (report.stage, report.attempt) == (stage, number)
    ]
    return max(steps, default=start) > start


def failures_before(job: Object, stage: str, number: int, observed: ObservedJob) -> int:
    """Return the failures in a row without a new checkpoint, before that of attempt `number`."""
    return _before(names.FAILURES, job, stage, number, observed)


def _before(annotation: str, job: Object, stage: str, number: int, observed: ObservedJob) -> int:
    """Return the counter of the attempt's Job; 0 if the attempt wrote a checkpoint."""
    if has_new_checkpoint(job, stage, number, observed):
        return 0
    return int(annotations_of(job).get(annotation, 0))


def start_step(stage: str, observed: ObservedJob) -> int | None:
    """Return the step of the stage's last checkpoint, from which a new attempt starts; None if it has none."""
    checkpoint = observed.stage_status(stage).get("checkpoint")
    return None if checkpoint is None else int(checkpoint["step"])
