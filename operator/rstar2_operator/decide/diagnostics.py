"""Problems that keep a job's pods from running, in the cluster's own words, with advice. Pure.

Kubelet, scheduler and controllers report them in different places: the waiting state of a container, a condition of a
pod or Deployment, a Warning event. `diagnoses` collects them into one list.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rstar2_operator import names
from rstar2_operator.decide.advice import (
    ADVICE,
    JUDGE_UNREACHABLE,
    NO_POD,
    NO_STORE,
    PREPARE_SLOW,
    REFERENCE_NOT_FOUND,
    advice_about,
)
from rstar2_operator.decide.disruption import REJECTED, cause_of_rejection
from rstar2_operator.observed import (
    OWN_CONTAINERS,
    READY_ROLES,
    Object,
    ObservedJob,
    condition,
    condition_time,
    created_at,
    is_alive,
    is_true,
    job_finished_at,
    labels,
    lacks_pods,
    lost_since,
    own_statuses,
    ready_of,
    running_since,
    seconds,
    starting_since,
    timestamp,
)
from rstar2_train.api.contracts import PREPARE_KEY

MESSAGE_LENGTH = 1024
STUCK_SECONDS = 30.0
"""Seconds after its grace period until a terminating pod counts as stuck: its node does not answer."""
START_SECONDS = 60.0
"""Seconds on its node after which a pod that does not start is a problem, also if its kubelet reports none."""
RECENT_SECONDS = 600.0
"""Age of a rejected pod up to which it is a problem: its controller creates others while they are rejected."""
SILENT_SECONDS = 600.0
"""Seconds that an orchestrator may run without a progress report; it reports before it loads anything."""

_PATCHED_MEMORY = "it in a runtimePatch (spec.runtimePatches[].resources)"
MEMORY_FIELDS = {
    "trainer": "spec.trainer.resources.limits.memory, or decrease spec.trainer.tokensPerMicroBatch",
    "rollout": "spec.rollout.resources.limits.memory",
    "redis": "spec.redis.resources.limits.memory",
    "environment": "spec.environments[0].resources.limits.memory",
    "agent": _PATCHED_MEMORY,
}
"""Role -> field with the memory limit of its containers."""
WAITING = frozenset(
    {
        *("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"),
        *("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff"),
    }
)
"""Reasons of a waiting container that are problems."""
SAME = {"ErrImagePull": "ImagePullBackOff"}
"""The kubelet alternates between the two reasons while it retries: one problem, reported once."""
OUT_OF_MEMORY = "OOMKilled"
UNSCHEDULABLE = "Unschedulable"
SCHEDULING_GATED = "SchedulingGated"
"""Reason of the condition PodScheduled of a pod with scheduling gates."""
NAME_CONFLICT = "NameConflict"
OF_PENDING_PODS = frozenset({"FailedCreatePodSandBox", "FailedMount", "FailedAttachVolume"})
NOT_STARTED = "PodNotStarted"
NOT_SCHEDULED = "PodNotScheduled"
JOB_SUSPENDED = "JobSuspended"
NOT_REPORTING = "OrchestratorNotReporting"
OF_STARTING_PODS = WAITING | OF_PENDING_PODS | {OUT_OF_MEMORY, NOT_STARTED}
"""Reasons of a pod that has a node and cannot start."""
FAILED_CREATE = "FailedCreate"
OF_CONTROLLERS = frozenset({FAILED_CREATE})
OF_CLAIMS = frozenset({"ProvisioningFailed", "FailedBinding"})
REASONS = frozenset({*ADVICE, *WAITING, UNSCHEDULABLE, NAME_CONFLICT, OUT_OF_MEMORY})
"""Closed list of the reasons of problems."""
MAY_RESOLVE = frozenset(
    {
        UNSCHEDULABLE,
        "NodeNotReady",
        "NodeUnhealthy",
        "Stuck",
        JUDGE_UNREACHABLE,
        NO_STORE,
        PREPARE_SLOW,
        REFERENCE_NOT_FOUND,
        "PodNotStarted",
        "PodNotScheduled",
        REJECTED,
        "CrashLoopBackOff",
        "FailedCreatePodSandBox",
        "FailedMount",
        "FailedAttachVolume",
    }
)
"""Reasons of problems that often resolve without a person: with other jobs, retries or new nodes."""
MAY_RESOLVE_MESSAGES = ("exceeded quota", "is being deleted")
"""Parts of messages with the same meaning."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One problem."""

    role: str
    subject: str
    """Object with the problem, as `Kind/name`."""
    reason: str
    message: str
    node: str = ""

    @property
    def needs_action(self) -> bool:
        """Whether a person must act, because the problem cannot resolve itself."""
        return self.reason not in MAY_RESOLVE and not any(part in self.message for part in MAY_RESOLVE_MESSAGES)

    @property
    def likeness(self) -> tuple[str, ...]:
        """Key that equal problems of several objects share."""
        message = self.message.replace(self.subject.rpartition("/")[2], "")
        return self.role, self.reason, message.replace(self.node, "") if self.node else message

    def __str__(self) -> str:
        advice = advice_about(self.reason, self.subject.partition("/")[0], self.message, self.role)
        text = f"{self.subject}: {self.reason}: {self.message}"[:MESSAGE_LENGTH]
        if not advice:
            return text
        stop = "" if text.endswith((".", "!", "?", ";")) else "."
        return f"{text}{stop} {advice.format(pod=self.subject.rpartition('/')[2], node=self.node)}"


def diagnoses(observed: ObservedJob, *, now: float) -> list[Diagnosis]:
    """Return every problem at `now`, one per object, in a stable order."""
    problems = [problem for pod in observed.pods for problem in _pod_problems(pod, observed, now)]
    if any(pod["metadata"].get("deletionTimestamp") for pod in observed.pods):
        # The job's own terminating pods still hold the resources.
        problems = [problem for problem in problems if problem.reason != UNSCHEDULABLE]
    problems += _node_problems(observed)
    for (kind, name), child in observed.children.items():
        problems += _child_problems(kind, name, child, observed, now)
    for key, error in observed.invalid_reports().items():
        role, subject = "prepare" if key == PREPARE_KEY else "trainer", f"ConfigMap/{names.progress(observed.name)}"
        problems.append(Diagnosis(role, subject, "InvalidProgressReport", f"key {key} cannot be read: {error}"))
    problems += _unreachable(observed)
    for name, since in unreported_attempts(observed):
        if now >= since + SILENT_SECONDS:
            message = f"all pods run since {timestamp(since)}, but the orchestrator has not reported"
            problems.append(Diagnosis("trainer", f"Job/{name}", NOT_REPORTING, message))
    return sorted(problems, key=lambda problem: (problem.role, problem.subject, problem.reason))


def next_overdue_at(observed: ObservedJob, *, now: float) -> float | None:
    """Return when the next terminating, starting or silent pod becomes a problem; None if there is none."""
    deletions = (pod["metadata"].get("deletionTimestamp") for pod in observed.pods)
    times = [seconds(deletion) + STUCK_SECONDS for deletion in deletions if deletion]
    times += [since + SILENT_SECONDS for _, since in unreported_attempts(observed)]
    without_pods = (created_at(child, now) for (kind, _), child in observed.children.items() if lacks_pods(kind, child))
    times += [since + START_SECONDS for since in without_pods]
    for since_of in (starting_since, _unscheduled_since, _unready_since):
        times += [since + START_SECONDS for pod in observed.pods if (since := since_of(pod)) is not None]
    return min((when for when in times if when > now), default=None)


def _unreachable(observed: ObservedJob) -> Iterator[Diagnosis]:
    """Return problems that the pod of the running attempt reports: the bucket, and a judge whose pods are ready."""
    progress = observed.progress()
    attempt = None if progress is None else observed.attempts(progress.stage).get(progress.attempt)
    if progress is None or attempt is None or job_finished_at(attempt) is not None:
        return
    if (error := progress.unreachable.get("judge")) is not None and ready_of(observed, "judge")[0]:
        yield Diagnosis("judge", f"Service/{names.judge(observed.name)}", JUDGE_UNREACHABLE, f"no answer: {error}")
    if (error := progress.unreachable.get("storage")) is not None:
        yield Diagnosis("storage", f"Job/{attempt['metadata']['name']}", NO_STORE, error)


def unreported_attempts(observed: ObservedJob) -> Iterator[tuple[str, float]]:
    """Yield the Jobs of attempts without a progress report whose pods all run, and since when."""
    progress = observed.progress()
    reporting = names.attempt(observed.name, progress.stage, progress.attempt) if progress is not None else ""
    for (kind, name), job in observed.children.items():
        if kind != "Job" or labels(job).get(names.ROLE_LABEL) != "trainer":
            continue
        if name == reporting or job_finished_at(job) is not None:
            continue
        pods = [pod for pod in observed.pods if labels(pod).get(names.BATCH_JOB_LABEL) == name]
        starts = [start for pod in pods if (start := running_since(pod)) is not None]
        if len(starts) == len(pods) >= job["spec"].get("parallelism", 1):
            yield name, max(starts)


def _pod_problems(pod: Object, observed: ObservedJob, now: float) -> Iterator[Diagnosis]:
    role, name = labels(pod).get(names.ROLE_LABEL, ""), pod["metadata"]["name"]
    status = pod.get("status") or {}
    if deletion := pod["metadata"].get("deletionTimestamp"):
        node = pod["spec"].get("nodeName", "")
        if now >= seconds(deletion) + STUCK_SECONDS and node:
            message = f"should have terminated by {deletion} on node {node}"
            yield Diagnosis(role, f"Pod/{name}", "PodStuckTerminating", message, node)
        elif (since := lost_since(pod, observed)) is not None:
            yield _not_ready(pod, role, since)
        return
    if status.get("phase") == "Succeeded":
        return
    if (since := lost_since(pod, observed)) is not None:
        yield _not_ready(pod, role, since)
        return
    if status.get("phase") == "Failed":
        yield from _never_started(pod, name, role, observed, now)
        return
    yield from _unscheduled(pod, name, role, now)
    scheduled = condition(pod, "PodScheduled")
    if scheduled is not None and scheduled["status"] == "False":
        if scheduled.get("reason") == UNSCHEDULABLE:  # the scheduler retries the others, such as SchedulerError
            yield Diagnosis(role, f"Pod/{name}", UNSCHEDULABLE, scheduled.get("message", ""))
        return
    for container in _all_statuses(pod):
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in WAITING:
            if ((container.get("lastState") or {}).get("terminated") or {}).get("reason") == OUT_OF_MEMORY:
                yield Diagnosis(role, f"Pod/{name}", OUT_OF_MEMORY, memory_limit(pod, container, role))
                return
            reason = SAME.get(waiting["reason"], waiting["reason"])
            yield Diagnosis(role, f"Pod/{name}", reason, _kubelet_message(container, waiting))
            return
    if status.get("phase") == "Pending":
        reported = list(_events("Pod", name, role, OF_PENDING_PODS, observed, subject=pod))
        since = starting_since(pod)
        if not reported and since is not None and now >= since + START_SECONDS:
            message = f"on node {pod['spec'].get('nodeName', '')} since {timestamp(since)}: {_unstarted(pod)}"
            reported = [Diagnosis(role, f"Pod/{name}", NOT_STARTED, message)]
        yield from reported
    elif (since := _unready_since(pod)) is not None and now >= since + START_SECONDS:
        waits = ", ".join(_unready_injected(pod))
        yield Diagnosis(
            role, f"Pod/{name}", NOT_STARTED, f"injected container {waits} is not ready since {timestamp(since)}"
        )


def _unscheduled_since(pod: Object) -> float | None:
    """Return when a pod was created that no scheduler has looked at, or that a scheduling gate holds; else None."""
    status, scheduled = pod.get("status") or {}, condition(pod, "PodScheduled")
    if status.get("phase") not in (None, "Pending") or (pod.get("spec") or {}).get("nodeName"):
        return None
    if scheduled is not None and scheduled.get("reason") != SCHEDULING_GATED:
        return None
    created = pod["metadata"].get("creationTimestamp")
    return None if created is None else seconds(created)


def _unscheduled(pod: Object, name: str, role: str, now: float) -> Iterator[Diagnosis]:
    """Return the problem of a pod that waits for a scheduling gate, or that no scheduler looks at."""
    since = _unscheduled_since(pod)
    if since is None or now < since + START_SECONDS:
        return
    gates = ", ".join(gate["name"] for gate in pod["spec"].get("schedulingGates") or ())
    scheduler = pod["spec"].get("schedulerName") or "default-scheduler"
    cause = f"scheduling gate {gates} is set" if gates else f"scheduler {scheduler} has reported nothing"
    yield Diagnosis(role, f"Pod/{name}", NOT_SCHEDULED, f"{cause} since {timestamp(since)}")


def _all_statuses(pod: Object) -> list[Object]:
    """Return the statuses of a pod's init containers and containers, in the order in which they start."""
    status = pod.get("status") or {}
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def _unready_since(pod: Object) -> float | None:
    """Return since when an injected container keeps a pod of a Service from being ready; None if none does."""
    ready = condition(pod, "Ready")
    if ready is None or ready["status"] == "True" or labels(pod).get(names.ROLE_LABEL) not in READY_ROLES:
        return None
    if not all(status.get("ready") for status in own_statuses(pod)) or not _unready_injected(pod):
        return None
    return condition_time(ready)


def _unready_injected(pod: Object) -> list[str]:
    """Return the names of a running pod's injected containers that are not ready, native sidecars included."""
    own = OWN_CONTAINERS.get(labels(pod).get(names.ROLE_LABEL, ""), ())
    running = (status for status in _all_statuses(pod) if "running" in (status.get("state") or {}))
    return sorted(status["name"] for status in running if not status.get("ready") and status["name"] not in own)


def _unstarted(pod: Object) -> str:
    """Return which container of a pod does not start, or does not exit before the others start."""
    for container in (pod.get("status") or {}).get("initContainerStatuses") or ():
        if "running" in (container.get("state") or {}) and not container.get("started"):
            return f"init container {container.get('name', '')} still runs"
    for container in _all_statuses(pod):
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") not in (None, "PodInitializing"):
            return f"container {container.get('name', '')} waits ({waiting['reason']})"
    return "the kubelet reports no container"


def _node_problems(observed: ObservedJob) -> Iterator[Diagnosis]:
    """Return the faulty nodes of running pods, unless they do not report at all."""
    for node, fault in observed.node_faults.items():
        pods = [pod for pod in observed.pods if pod["spec"].get("nodeName") == node and is_alive(pod)]
        if not pods or any(lost_since(pod, observed) is not None for pod in pods):
            continue
        listed = ", ".join(sorted(pod["metadata"]["name"] for pod in pods))
        closed = "; it takes no new pods" if fault.closed else ""
        message = f"{'; '.join(fault.causes)}{closed}; pods on it: {listed}"
        role = min(labels(pod).get(names.ROLE_LABEL, "") for pod in pods)
        yield Diagnosis(role, f"Node/{node}", "NodeUnhealthy", message, node)


def _not_ready(pod: Object, role: str, since: float) -> Diagnosis:
    node = pod["spec"].get("nodeName", "")
    message = f"node {node} has not reported since {timestamp(since)}"
    return Diagnosis(role, f"Pod/{pod['metadata']['name']}", "NodeNotReady", message, node)


def _is_ready(role: str, observed: ObservedJob) -> bool:
    ready, desired = ready_of(observed, role)
    return ready >= desired


def _never_started(pod: Object, name: str, role: str, observed: ObservedJob, now: float) -> Iterator[Diagnosis]:
    """Return the failed pod of a controller that still retries, if its container could not start."""
    owner = labels(pod).get(names.BATCH_JOB_LABEL)
    job = observed.child("Job", owner) if owner else None
    if owner and (job is None or job_finished_at(job) is not None):
        return
    if not owner and (role not in READY_ROLES or _is_ready(role, observed)):
        return
    if (cause := cause_of_rejection(pod)) and now < created_at(pod, 0.0) + RECENT_SECONDS:
        yield Diagnosis(role, f"Pod/{name}", REJECTED, cause)
        return
    for container in (pod.get("status") or {}).get("containerStatuses") or ():
        terminated = (container.get("state") or {}).get("terminated") or {}
        if terminated.get("reason") == "StartError":
            yield Diagnosis(role, f"Pod/{name}", "StartError", str(terminated.get("message", "")))
            return


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


def _child_problems(kind: str, name: str, child: Object, observed: ObservedJob, now: float) -> Iterator[Diagnosis]:
    role = labels(child).get(names.ROLE_LABEL, "")
    status = child.get("status") or {}
    failure = condition(child, "ReplicaFailure") if kind == "Deployment" else None
    if failure is not None and failure["status"] == "True":
        yield Diagnosis(role, f"{kind}/{name}", "ReplicaFailure", failure.get("message", ""))
    elif kind == "Job" and is_true(child, "Suspended") and job_finished_at(child) is None:
        yield Diagnosis(role, f"{kind}/{name}", JOB_SUSPENDED, "another client has set spec.suspend, so no pod runs")
    elif lacks_pods(kind, child):
        reported = list(_events(kind, name, role, OF_CONTROLLERS, observed, subject=child))
        created = created_at(child, now)
        if not reported and not (child.get("status") or {}) and now >= created + START_SECONDS:
            reported = [Diagnosis(role, f"{kind}/{name}", FAILED_CREATE, f"{NO_POD} since {timestamp(created)}")]
        yield from reported
    elif kind == "PersistentVolumeClaim" and status.get("phase") == "Pending":
        yield from _events(kind, name, role, OF_CLAIMS, observed, subject=child)


def _events(
    kind: str, name: str, role: str, reasons: frozenset[str], observed: ObservedJob, *, subject: Object
) -> Iterator[Diagnosis]:
    """Return the newest event about `subject` with one of `reasons`, unless it is older than the object itself."""
    created = seconds(subject["metadata"]["creationTimestamp"])
    for event in reversed(observed.warnings):
        about = event["involvedObject"]
        if (about.get("kind"), about.get("name")) != (kind, name) or event.get("reason") not in reasons:
            continue
        if about.get("uid") not in (None, "", subject["metadata"].get("uid")) or event_time(event) < created - 1:
            continue
        yield Diagnosis(role, f"{kind}/{name}", event["reason"], str(event.get("message", "")))
        return


def event_time(event: Object) -> float:
    """Return when an event was last observed."""
    series = event.get("series") or {}
    last = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return seconds(last or event["metadata"]["creationTimestamp"])
