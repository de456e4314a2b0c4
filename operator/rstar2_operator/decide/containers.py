"""Why the containers of a pod do not run, in the kubelet's own words, and the field to change. Pure.

`diagnostics.py` makes problems of the answers.
"""

from __future__ import annotations

from rstar2_operator import names
from rstar2_operator.decide.advice import PARALLELISM
from rstar2_operator.observed import (
    OWN_CONTAINERS,
    READY_ROLES,
    Object,
    ObservedJob,
    condition,
    condition_time,
    created_at,
    is_true,
    job_finished_at,
    labels,
    own_statuses,
    running_since,
    seconds_or_zero,
    timestamp,
    wanted_pods,
)

START_SECONDS = 60.0
"""Seconds on its node after which a pod that does not start is a problem, also if its kubelet reports none."""
LOAD_SECONDS = 1800.0
"""Seconds that an own container may run before it is ready: a large model takes long, and orchestrators wait as long.

spec.pendingDeadlineSeconds may be shorter."""
OUT_OF_MEMORY = "OOMKilled"
NOT_STARTED = "PodNotStarted"
_PATCHED_MEMORY = "it in a runtimePatch (spec.runtimePatches[].resources)"
MEMORY_FIELDS = {
    "trainer": "spec.trainer.resources.limits.memory, or decrease spec.trainer.tokensPerMicroBatch",
    "rollout": "spec.rollout.resources.limits.memory",
    "teacher": "spec.teacher.resources.limits.memory",
    "redis": "spec.redis.resources.limits.memory",
    "environment": "spec.environments[0].resources.limits.memory",
    "executor": "spec.judge.limits.memory",
    "agent": _PATCHED_MEMORY,
}
"""Role -> field with the memory limit of its containers."""
WAITING = frozenset(
    {
        *("ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"),
        *("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff"),
    }
)
"""Reasons of a waiting container with a section of their own; the others are problems with reason PodNotStarted."""
WITHOUT_PROBLEM = frozenset({"", "ContainerCreating", "PodInitializing"})
"""Reasons of a waiting container that starts as usual."""
IMAGE_PULL = "ImagePullBackOff"
SAME = dict.fromkeys(
    (
        *("ErrImagePull", "SignatureValidationFailed", "RegistryUnavailable", "ImageInspectError"),
        "ErrImageVolumePull",
    ),
    IMAGE_PULL,
)
"""The kubelet alternates between one of these and ImagePullBackOff while it retries: one problem, reported once."""


def all_statuses(pod: Object) -> list[Object]:
    """Return the statuses of a pod's init containers and containers, in the order in which they start."""
    status = pod.get("status") or {}
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def waiting_container(pod: Object, role: str) -> tuple[str, str, str] | None:
    """Return reason, message and name of the first container that the kubelet cannot start; None without one."""
    for container in all_statuses(pod):
        waiting = (container.get("state") or {}).get("waiting") or {}
        reason, name = waiting.get("reason") or "", container.get("name", "")
        if reason in WITHOUT_PROBLEM:
            continue
        if ((container.get("lastState") or {}).get("terminated") or {}).get("reason") == OUT_OF_MEMORY:
            return OUT_OF_MEMORY, memory_limit(pod, container, role), name
        message = _kubelet_message(container, waiting)
        if reason in SAME:
            return SAME[reason], message if reason == "ErrImagePull" else f"{reason}: {message}", name
        if reason in WAITING:
            return reason, message, name
        return NOT_STARTED, f"container {name} waits: {reason}: {message}", name
    return None


def memory_limit(pod: Object, status: Object, role: str) -> str:
    """Return a message with the memory limit that a container reached, and the field to raise."""
    own = status.get("name") in OWN_CONTAINERS.get(role, ())
    field = MEMORY_FIELDS.get(role, _PATCHED_MEMORY) if own else "it in the configuration of its injector"
    name = status.get("name", "")
    containers = (pod.get("spec") or {}).get("containers") or ()
    limits = [((container.get("resources") or {}).get("limits") or {}).get("memory") for container in containers
              if container.get("name") == name]  # fmt: skip
    limit = f" of {limits[0]}" if limits and limits[0] else ""
    return f"container {name} reached its memory limit{limit}; increase {field}"


def _kubelet_message(container: Object, waiting: Object) -> str:
    """Return the kubelet's message; for a crashing container also its last exit code."""
    message = str(waiting.get("message", ""))
    last = (container.get("lastState") or {}).get("terminated")
    return message if last is None else f"{message}; last exit code {last['exitCode']} ({last.get('reason', '')})"


def unstarted(pod: Object) -> str:
    """Return what a pod waits for whose kubelet reports no problem."""
    for container in (pod.get("status") or {}).get("initContainerStatuses") or ():
        if "running" in (container.get("state") or {}) and not container.get("started"):
            return f"init container {container.get('name', '')} still runs"
    if any((container.get("state") or {}).get("waiting") for container in all_statuses(pod)):
        return "the kubelet reports no problem, and may pull a large image"
    return "the kubelet reports no container"


def unready(pod: Object) -> tuple[float, str] | None:
    """Return when a running pod of a Service that is not ready becomes a problem, and why; None if it is ready."""
    ready = condition(pod, "Ready")
    if ready is None or ready["status"] == "True" or labels(pod).get(names.ROLE_LABEL) not in READY_ROLES:
        return None
    if (pod.get("status") or {}).get("phase") != "Running":
        return None
    since = condition_time(ready)
    if own := [status["name"] for status in own_statuses(pod) if not status.get("ready")]:
        since = max(since, running_since(pod) or 0.0)
        return since + LOAD_SECONDS, f"container {', '.join(own)} runs and is not ready since {timestamp(since)}"
    if injected := unready_injected(pod):
        text = f"injected container {', '.join(injected)} is not ready since {timestamp(since)}"
        return since + START_SECONDS, text
    reported = ready.get("message") or ready.get("reason") or ""
    return since + START_SECONDS, f"its containers run, but it is not ready since {timestamp(since)}: {reported}"


def unready_injected(pod: Object) -> list[str]:
    """Return the names of a running pod's injected containers that are not ready, native sidecars included."""
    own = OWN_CONTAINERS.get(labels(pod).get(names.ROLE_LABEL, ""), ())
    running = (status for status in all_statuses(pod) if "running" in (status.get("state") or {}))
    return sorted(status["name"] for status in running if not status.get("ready") and status["name"] not in own)


def changed_at(pod: Object) -> float:
    """Return when the state of a pod last changed; a failed one does not change any more."""
    times = [condition_time(condition) for condition in (pod.get("status") or {}).get("conditions") or ()]
    ended = ((status.get("state") or {}).get("terminated") or {} for status in own_statuses(pod))
    times += [seconds_or_zero(state.get("finishedAt")) for state in ended]
    return max([created_at(pod, 0.0), *times])


def unlabelled_pods(name: str, job: Object, observed: ObservedJob, now: float) -> int:
    """Return the number of a Job's running pods that the operator cannot see; their watch may be late at first."""
    if job_finished_at(job) is not None or now < created_at(job, now) + START_SECONDS:
        return 0
    seen = sum(labels(pod).get(names.BATCH_JOB_LABEL) == name for pod in observed.pods)
    return max(0, int((job.get("status") or {}).get("active") or 0) - seen)


def is_reduced(job: Object) -> bool:
    """Return whether another client has set spec.parallelism of a batch Job so low that pods are missing."""
    return int(job["spec"].get("parallelism", 1)) < wanted_pods(job)


def stopped_by_others(job: Object) -> str:
    """Return how another client keeps the pods of a batch Job from running; empty if none does, or it has ended."""
    if job_finished_at(job) is not None:
        return ""
    if is_true(job, "Suspended"):
        return "another client has set spec.suspend, so no pod runs"
    if is_reduced(job):
        return f"another client has set {PARALLELISM} to {job['spec']['parallelism']}, so pods are missing"
    return ""
