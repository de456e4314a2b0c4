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
    APPLY_REJECTED,
    HAS_ENDED,
    IMMUTABLE,
    JUDGE_UNREACHABLE,
    NO_POD,
    NO_STORE,
    NODE_REPORTS,
    PREPARE_SLOW,
    REFERENCE_NOT_FOUND,
    WITHOUT_LABELS,
    advice_about,
)
from rstar2_operator.decide.containers import (
    NOT_STARTED,
    OUT_OF_MEMORY,
    START_SECONDS,
    WAITING,
    changed_at,
    stopped_by_others,
    unlabelled_pods,
    unready,
    unstarted,
    waiting_container,
)
from rstar2_operator.decide.disruption import REJECTED, cause_of_rejection
from rstar2_operator.observed import (
    READY_ROLES,
    Object,
    ObservedJob,
    condition,
    created_at,
    is_alive,
    job_finished_at,
    labels,
    lacks_pods,
    lost_since,
    ready_of,
    running_since,
    seconds,
    seconds_or_zero,
    starting_since,
    timestamp,
    wanted_pods,
)
from rstar2_train.api.contracts import PREPARE_KEY

MESSAGE_LENGTH = 1024
STUCK_SECONDS = 30.0
"""Seconds after its grace period until a terminating pod counts as stuck: its node does not answer."""
RECENT_SECONDS = 600.0
"""Age of a rejected pod up to which it is a problem: its controller creates others while they are rejected."""
SILENT_SECONDS = 600.0
"""Seconds that an orchestrator may run without a progress report; it reports before it loads anything."""

UNSCHEDULABLE = "Unschedulable"
SCHEDULING_GATED = "SchedulingGated"
"""Reason of the condition PodScheduled of a pod with scheduling gates."""
NAME_CONFLICT = "NameConflict"
OF_PENDING_PODS = frozenset({"FailedCreatePodSandBox", "FailedMount", "FailedAttachVolume"})
POD_FAILED = "PodFailed"
STUCK_TERMINATING = "PodStuckTerminating"
NOT_SCHEDULED = "PodNotScheduled"
JOB_SUSPENDED = "JobSuspended"
NOT_REPORTING = "OrchestratorNotReporting"
OF_STARTING_PODS = WAITING | OF_PENDING_PODS | {OUT_OF_MEMORY, NOT_STARTED}
"""Reasons of a pod that has a node and cannot start."""
FAILED_CREATE = "FailedCreate"
OF_CONTROLLERS = frozenset({FAILED_CREATE})
OF_SCHEDULER = frozenset({"FailedScheduling"})
"""Reasons of events with the words of the condition PodScheduled."""
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
        NOT_STARTED,
        "PodNotScheduled",
        POD_FAILED,
        REJECTED,
        *("CrashLoopBackOff", "FailedCreatePodSandBox", "FailedMount", "FailedAttachVolume"),
    }
)
"""Reasons of problems that often resolve without a person: with other jobs, retries or new nodes."""
MAY_RESOLVE_MESSAGES = ("exceeded quota", "is being deleted", HAS_ENDED)
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
    container: str = ""
    """Container of the pod that has the problem."""

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
        return f"{text}{stop} {self._filled(advice)}"

    def _filled(self, advice: str) -> str:
        """Return an advice with the names of this problem."""
        container = f" -c {self.container}" if self.container else ""
        return advice.format(pod=self.subject.rpartition("/")[2], node=self.node, container=container)


def diagnoses(observed: ObservedJob, *, now: float) -> list[Diagnosis]:
    """Return every problem at `now`, one per object, in a stable order."""
    problems = [problem for pod in observed.pods for problem in _pod_problems(pod, observed, now)]
    if any(pod["metadata"].get("deletionTimestamp") and is_alive(pod) for pod in observed.pods):
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
    # Pods without running containers block nothing, so other problems are first.
    return sorted(problems, key=lambda each: (HAS_ENDED in each.message, each.role, each.subject, each.reason))


def next_overdue_at(observed: ObservedJob, *, now: float) -> float | None:
    """Return when the next terminating object, or starting or silent pod, becomes a problem; None without one."""
    objects = (*observed.pods, *observed.children.values())
    deletions = (obj["metadata"].get("deletionTimestamp") for obj in objects)
    times = [seconds(deletion) + STUCK_SECONDS for deletion in deletions if deletion]
    times += [since + SILENT_SECONDS for _, since in unreported_attempts(observed)]
    without_pods = (created_at(child, now) for (kind, _), child in observed.children.items() if lacks_pods(kind, child))
    times += [since + START_SECONDS for since in without_pods]
    for since_of in (starting_since, _unscheduled_since):
        times += [since + START_SECONDS for pod in observed.pods if (since := since_of(pod)) is not None]
    times += [waits[0] for pod in observed.pods if (waits := unready(pod)) is not None]
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
        if len(starts) == len(pods) >= wanted_pods(job):
            yield name, max(starts)


def _pod_problems(pod: Object, observed: ObservedJob, now: float) -> Iterator[Diagnosis]:
    role, name = labels(pod).get(names.ROLE_LABEL, ""), pod["metadata"]["name"]
    status = pod.get("status") or {}
    if pod["metadata"].get("deletionTimestamp"):
        yield from _terminating(pod, name, role, observed, now)
        return
    if status.get("phase") == "Succeeded":
        return
    if (since := lost_since(pod, observed)) is not None:
        yield _not_ready(pod, role, since)
        return
    if status.get("phase") == "Failed":
        yield from _failed(pod, name, role, observed, now)
        return
    yield from _unscheduled(pod, name, role, now)
    scheduled = condition(pod, "PodScheduled")
    if scheduled is not None and scheduled["status"] == "False":
        if scheduled.get("reason") == UNSCHEDULABLE:
            messages = [str(scheduled.get("message", "")), _event_words(pod, observed)]
            yield Diagnosis(role, f"Pod/{name}", UNSCHEDULABLE, "; ".join(filter(None, messages)))
        return
    if (waits := waiting_container(pod, role)) is not None:
        reason, message, container = waits
        yield Diagnosis(role, f"Pod/{name}", reason, message, container=container)
    elif status.get("phase") == "Pending":
        yield from _pending(pod, name, role, observed, now)
    elif (unready_since := unready(pod)) is not None and now >= unready_since[0]:
        yield Diagnosis(role, f"Pod/{name}", NOT_STARTED, unready_since[1])


def _terminating(pod: Object, name: str, role: str, observed: ObservedJob, now: float) -> Iterator[Diagnosis]:
    """Return the problem of a deleted pod that still exists after its grace period, or whose node is lost."""
    deletion, node = pod["metadata"]["deletionTimestamp"], (pod.get("spec") or {}).get("nodeName", "")
    finalizers, lost = ", ".join(pod["metadata"].get("finalizers") or ()), lost_since(pod, observed)
    if now < seconds(deletion) + STUCK_SECONDS:
        if lost is not None:
            yield _not_ready(pod, role, lost)
    elif not is_alive(pod):
        if finalizers:
            message = f"{HAS_ENDED} since {deletion}: {finalizers}"
            yield Diagnosis(role, f"Pod/{name}", STUCK_TERMINATING, message)
    elif node:
        reports = f"; {NODE_REPORTS}" if observed.lost_nodes is not None and lost is None else ""
        message = f"should have terminated by {deletion} on node {node}{reports}"
        yield Diagnosis(role, f"Pod/{name}", STUCK_TERMINATING, message, node)


def _pending(pod: Object, name: str, role: str, observed: ObservedJob, now: float) -> Iterator[Diagnosis]:
    """Return the problem of a pod that has a node, and of which no container reports a problem."""
    reported = list(_events("Pod", name, role, OF_PENDING_PODS, observed, subject=pod))
    since = starting_since(pod)
    if not reported and since is not None and now >= since + START_SECONDS:
        cause = _event_words(pod, observed, since=since) or unstarted(pod)
        message = f"on node {pod['spec'].get('nodeName', '')} since {timestamp(since)}: {cause}"
        reported = [Diagnosis(role, f"Pod/{name}", NOT_STARTED, message)]
    yield from reported


def _unscheduled_since(pod: Object) -> float | None:
    """Return when a pod was created that has no node for another reason than missing resources; else None.

    No scheduler has looked at it, a scheduling gate holds it, or the scheduler fails (SchedulerError).
    """
    status, scheduled = pod.get("status") or {}, condition(pod, "PodScheduled")
    if status.get("phase") not in (None, "Pending") or (pod.get("spec") or {}).get("nodeName"):
        return None
    if scheduled is not None and (scheduled["status"] == "True" or scheduled.get("reason") == UNSCHEDULABLE):
        return None
    created = pod["metadata"].get("creationTimestamp")
    return None if created is None else seconds(created)


def _unscheduled(pod: Object, name: str, role: str, now: float) -> Iterator[Diagnosis]:
    """Return the problem of a pod as of `_unscheduled_since`."""
    since = _unscheduled_since(pod)
    if since is None or now < since + START_SECONDS:
        return
    gates = ", ".join(gate["name"] for gate in pod["spec"].get("schedulingGates") or ())
    scheduler, scheduled = pod["spec"].get("schedulerName") or "default-scheduler", condition(pod, "PodScheduled")
    if gates:
        message = f"scheduling gate {gates} is set since {timestamp(since)}"
    elif scheduled is None or scheduled.get("reason") == SCHEDULING_GATED:
        message = f"scheduler {scheduler} has reported nothing since {timestamp(since)}"
    else:
        message = f"scheduler {scheduler} fails since {timestamp(since)}: {scheduled.get('reason', '')}: "
        message += str(scheduled.get("message", ""))
    yield Diagnosis(role, f"Pod/{name}", NOT_SCHEDULED, message)


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


def _failed(pod: Object, name: str, role: str, observed: ObservedJob, now: float) -> Iterator[Diagnosis]:
    """Return the failed pod of a controller that still retries, in the kubelet's words."""
    owner, status = labels(pod).get(names.BATCH_JOB_LABEL), pod.get("status") or {}
    job = observed.child("Job", owner) if owner else None
    if owner and (job is None or job_finished_at(job) is not None):
        return
    if not owner and (role not in READY_ROLES or _is_ready(role, observed)):
        return
    if (cause := cause_of_rejection(pod)) and now < created_at(pod, 0.0) + RECENT_SECONDS:
        yield Diagnosis(role, f"Pod/{name}", REJECTED, cause)
        return
    for container in status.get("containerStatuses") or ():
        terminated = (container.get("state") or {}).get("terminated") or {}
        if terminated.get("reason") == "StartError":
            yield Diagnosis(role, f"Pod/{name}", "StartError", str(terminated.get("message", "")))
            return
    if not owner and not cause and status.get("reason") and now < changed_at(pod) + RECENT_SECONDS:
        yield Diagnosis(
            role, f"Pod/{name}", POD_FAILED, f"{status['reason']}: {str(status.get('message', '')).strip()}"
        )


def _child_problems(kind: str, name: str, child: Object, observed: ObservedJob, now: float) -> Iterator[Diagnosis]:
    role = labels(child).get(names.ROLE_LABEL, "")
    status = child.get("status") or {}
    failure = condition(child, "ReplicaFailure") if kind == "Deployment" else None
    if failure is not None and failure["status"] == "True":
        yield Diagnosis(role, f"{kind}/{name}", "ReplicaFailure", failure.get("message", ""))
    elif kind == "Job" and (stopped := stopped_by_others(child)):
        yield Diagnosis(role, f"{kind}/{name}", JOB_SUSPENDED, stopped)
    elif kind == "Job" and (unlabelled := unlabelled_pods(name, child, observed, now)):
        yield Diagnosis(role, f"Job/{name}", FAILED_CREATE, f"{unlabelled} {WITHOUT_LABELS}")
    elif lacks_pods(kind, child):
        reported = list(_events(kind, name, role, OF_CONTROLLERS, observed, subject=child))
        created = created_at(child, now)
        if not reported and not (child.get("status") or {}) and now >= created + START_SECONDS:
            reported = [Diagnosis(role, f"{kind}/{name}", FAILED_CREATE, f"{NO_POD} since {timestamp(created)}")]
        yield from reported
    elif kind == "ConfigMap" and child.get("immutable"):
        yield Diagnosis(role, f"{kind}/{name}", APPLY_REJECTED, f"{IMMUTABLE}, so it cannot be updated")
    elif kind == "PersistentVolumeClaim" and status.get("phase") == "Pending":
        yield from _events(kind, name, role, OF_CLAIMS, observed, subject=child)


def _events(
    kind: str, name: str, role: str, reasons: frozenset[str], observed: ObservedJob, *, subject: Object
) -> Iterator[Diagnosis]:
    """Return the newest event about `subject` with one of `reasons`."""
    event = next((event for event in _warnings(kind, subject, observed) if event["reason"] in reasons), None)
    if event is not None:
        yield Diagnosis(role, f"{kind}/{name}", event["reason"], str(event.get("message", "")))


def _event_words(pod: Object, observed: ObservedJob, *, since: float = 0.0) -> str:
    """Return reason and message of the newest event about a pod after `since`, apart from those of the scheduler."""
    for event in _warnings("Pod", pod, observed):
        if event["reason"] not in OF_SCHEDULER and event_time(event) >= since - 1:
            return f"{event['reason']}: {event.get('message', '')}"
    return ""


def _warnings(kind: str, subject: Object, observed: ObservedJob) -> Iterator[Object]:
    """Yield the Warning events about an object, newest first, unless they are older than the object itself."""
    meta = subject["metadata"]
    for event in reversed(observed.warnings):
        about = event["involvedObject"]
        if (about.get("kind"), about.get("name")) != (kind, meta["name"]) or not event.get("reason"):
            continue
        if about.get("uid") in (None, "", meta.get("uid")) and event_time(event) >= created_at(subject, 0.0) - 1:
            yield event


def event_time(event: Object) -> float:
    """Return when an event was last observed."""
    series = event.get("series") or {}
    last = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return seconds_or_zero(last or event["metadata"].get("creationTimestamp"))
