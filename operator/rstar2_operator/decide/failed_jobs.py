"""Why the Job of the preparation or of the report failed: its pods know, the Job only counts its retries. Pure."""

from __future__ import annotations

from rstar2_operator import names
from rstar2_operator.decide.containers import OUT_OF_MEMORY, memory_limit
from rstar2_operator.decide.disruption import DISRUPTION_TARGET
from rstar2_operator.observed import (
    Object,
    ObservedJob,
    condition,
    failed_init_container,
    is_true,
    labels,
    own_statuses,
)


def cause_of_failure(job: Object, role: str, observed: ObservedJob) -> str:
    """Return why a failed batch Job ended: the cause of its last pod, and the words of the Job controller."""
    failed = condition(job, "Failed") or {}
    end = f"{failed.get('reason', 'The Job failed')}: {failed.get('message', '')}"
    cause = cause_of_pods(role, observed)
    return f"{cause}. {end}" if cause else end


def cause_of_pods(role: str, observed: ObservedJob) -> str:
    """Return why the last failed pod of a role ended, in the words of kubelet, scheduler or API server; else empty."""
    for pod in pods_of(role, observed):
        reason, text = _of_pod(pod) or _of_container(pod, role) or ("", failed_init_container(pod))
        if text:
            return f"{reason or 'InitContainerFailed'}: Pod/{pod['metadata']['name']}: {text}"
    return ""


def pods_of(role: str, observed: ObservedJob) -> list[Object]:
    """Return the pods of a role, newest first."""
    pods = [pod for pod in observed.pods if labels(pod).get(names.ROLE_LABEL) == role]
    return sorted(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp")), reverse=True)


def _of_pod(pod: Object) -> tuple[str, str] | None:
    """Return reason and message of a pod that was evicted, preempted, drained or rejected; None for others."""
    status, target = pod.get("status") or {}, condition(pod, DISRUPTION_TARGET)
    source = status if status.get("reason") or target is None or not is_true(pod, DISRUPTION_TARGET) else target
    if not source.get("reason"):
        return None
    return str(source["reason"]), str(source.get("message", "")).rstrip(" .") or "no message"


def _of_container(pod: Object, role: str) -> tuple[str, str] | None:
    """Return reason and message of the own container of a pod that failed; None for others."""
    for container in own_statuses(pod):
        ended = (container.get("state") or {}).get("terminated") or {}
        if ended.get("exitCode"):
            reason, text = ended.get("reason") or "Error", str(ended.get("message", "")).strip()
            text = memory_limit(pod, container, role) if reason == OUT_OF_MEMORY else text
            code = f"exit code {ended['exitCode']}"
            return reason, f"{text} ({code})" if text else code
    return None
