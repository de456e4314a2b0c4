"""A snapshot of one job: its raw objects, and functions that read them. Pure.

cache.py collects the objects from the watches; decide/ reads the snapshot. Objects are plain dicts, as the API server
sends them.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import ValidationError

from rstar2_operator import names
from rstar2_operator.node_health import NodeFault
from rstar2_train.api.contracts import (
    OUTCOME_PREFIX,
    PREPARE_KEY,
    PROGRESS_KEY,
    Contract,
    Outcome,
    Progress,
    outcome_key,
)
from rstar2_train.api.job import CONTROLLER

Object = Mapping[str, Any]
OWN_CONTAINERS = {
    "trainer": ("trainer",),
    "prepare": ("prepare",),
    "report": ("report",),
    "rollout": ("engine",),
    "teacher": ("engine",),
    "judge": ("api", "worker"),
    "executor": ("executor",),
    "redis": ("redis",),
    "environment": ("environment",),
    "agent": ("agent",),
}
"""Role -> containers of its pods in builders/. Admission webhooks may inject others, such as a proxy."""
REASONS_OF_KUBELET = frozenset(
    {"ContainersNotReady", "ReadinessGatesNotReady", "UnknownContainerStatuses", "PodCompleted", "PodFailed"}
)
"""Reasons of the condition Ready that a kubelet writes: its node reports."""
CLAIM = "PersistentVolumeClaim"
T = TypeVar("T", bound=Contract)


@dataclass(frozen=True, slots=True)
class ObservedJob:
    """One job and all objects that belong to it."""

    job: Object
    """The AgenticRLJob."""
    children: Mapping[tuple[str, str], Object] = field(default_factory=dict)
    """(kind, name) -> object, of every watched kind except pods."""
    pods: tuple[Object, ...] = ()
    """Its pods."""
    warnings: tuple[Object, ...] = ()
    """Warning events about them, oldest first."""
    disrupted: frozenset[str] = frozenset()
    """Batch Jobs with an evicted, preempted or drained pod; the pod may be deleted before its Job has failed."""
    deletions: Mapping[str, float] = field(default_factory=dict)
    """Batch Job of an attempt -> when the first of its running pods was deleted, which its failure may follow."""
    flavors: Mapping[str, Object] = field(default_factory=dict)
    """ResourceFlavors that Kueue has assigned to the job, by name."""
    node_faults: Mapping[str, NodeFault] = field(default_factory=dict)
    """Faulty nodes with pods of the job, by name."""
    lost_nodes: Mapping[str, float] | None = None
    """Nodes with pods of the job that are not ready, and since when; None if the operator cannot watch nodes."""
    secret_missing: bool = False
    """Whether the Secret was deleted while pods use it."""
    status_rejected: bool = False
    """Whether the API server rejects the job's status: what a policy would record is lost, and no attempt starts."""

    @property
    def name(self) -> str:
        """The job's name."""
        return str(self.job["metadata"]["name"])

    @property
    def status(self) -> Object:
        """The job's last status."""
        return self.job.get("status") or {}

    def child(self, kind: str, name: str) -> Object | None:
        """Return a child by kind and name."""
        return self.children.get((kind, name))

    def of_kind(self, kind: str) -> Iterator[Object]:
        """Yield all children of a kind."""
        return (child for (child_kind, _), child in self.children.items() if child_kind == kind)

    def attempts(self, stage: str) -> dict[int, Object]:
        """Return the Jobs of a stage by attempt number."""
        jobs = ((attempt_in_labels(job), job) for job in self.of_kind("Job"))
        return {own[1]: job for own, job in jobs if own is not None and own[0] == stage}

    def progress(self) -> Progress | None:
        """Return the last progress report; None if there is none, or an invalid one (see `invalid_reports`)."""
        return _read(Progress, self._reports.get(PROGRESS_KEY))

    def reported_at(self, progress: Progress) -> float:
        """Return when a progress report arrived: a node's own clock may be wrong, so the API server's counts."""
        written = (self.child("ConfigMap", names.progress(self.name)) or {}).get("metadata", {}).get("written")
        return progress.updated_at if written is None else seconds(written)

    def outcome(self, stage: str) -> Outcome | None:
        """Return the outcome of a stage's last attempt; None as for `progress`."""
        return _read(Outcome, self._reports.get(outcome_key(stage)))

    def prepared(self) -> Outcome | None:
        """Return the outcome of the storage's preparation; None as for `progress`."""
        return _read(Outcome, self._reports.get(PREPARE_KEY))

    def invalid_reports(self) -> dict[str, str]:
        """Return key -> error of the entries in the progress ConfigMap that cannot be read."""
        errors = {}
        for key, text in sorted(self._reports.items()):
            is_outcome = key == PREPARE_KEY or key.startswith(OUTCOME_PREFIX)
            if (
                text
                and (is_outcome or key == PROGRESS_KEY)
                and (error := _error(Outcome if is_outcome else Progress, text))
            ):
                errors[key] = error
        return errors

    @property
    def _reports(self) -> Mapping[str, str]:
        return (self.child("ConfigMap", names.progress(self.name)) or {}).get("data") or {}

    def stage_status(self, stage: str) -> Object:
        """Return a stage's row in the last status; empty if there is none."""
        return next((row for row in self.status.get("stages", ()) if row.get("name") == stage), {})


def _read(kind: type[T], text: str | None) -> T | None:
    try:
        return kind.model_validate_json(text) if text else None
    except ValidationError:
        return None


def _error(kind: type[Contract], text: str) -> str:
    """Return why a message cannot be read, in one line; empty if it can."""
    try:
        kind.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        return f"{field}: {first['msg']}" if field else first["msg"].removeprefix("Value error, ")
    return ""


def is_managed(job: Object, controller: str) -> bool:
    """Return whether a job is for this controller, and not for another one (spec.managedBy)."""
    return bool((job["spec"].get("managedBy") or CONTROLLER) == controller)


def labels(obj: Object) -> Mapping[str, str]:
    """Return the labels of an object."""
    return obj["metadata"].get("labels") or {}


def attempt_in_labels(obj: Object) -> tuple[str, int] | None:
    """Return stage and attempt by the labels of an object; None without them: a person may have removed one."""
    stage, number = labels(obj).get(names.STAGE_LABEL), labels(obj).get(names.ATTEMPT_LABEL, "")
    return (stage, int(number)) if stage is not None and number.isdecimal() else None


def controller_of(obj: Object) -> Object | None:
    """Return the reference to the controller of an object; None if it has none."""
    owners = obj["metadata"].get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), None)


def belongs(kind: str, obj: Object, job: Object) -> bool:
    """Return whether an object is the job's own: by its controller; without one by its labels.

    A claim may be retained from an earlier job of the name. Another object without a controller lost its owner to
    another client; one that is older than the job was orphaned by the deletion of the earlier job.
    """
    meta = job["metadata"]
    if (owner := controller_of(obj)) is not None:
        return bool(owner["uid"] == meta["uid"])
    if kind != CLAIM and is_older(obj, job):
        return False
    obj_labels = labels(obj)
    return (obj_labels.get(names.MANAGED_BY), obj_labels.get(names.JOB_LABEL)) == (names.FIELD_MANAGER, meta["name"])


def is_older(obj: Object, job: Object) -> bool:
    """Return whether an object was created before the job."""
    own, of_job = (seconds_or_zero(body["metadata"].get("creationTimestamp")) for body in (obj, job))
    return 0.0 < own < of_job


def annotations_of(obj: Object) -> Mapping[str, str]:
    """Return the annotations of an object."""
    return obj["metadata"].get("annotations") or {}


def condition(obj: Object, kind: str) -> Object | None:
    """Return a condition of an object's status, of any value."""
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return next((condition for condition in conditions if condition["type"] == kind), None)


def is_true(obj: Object, kind: str) -> bool:
    """Return whether a condition exists and is True."""
    match = condition(obj, kind)
    return match is not None and match["status"] == "True"


def true_conditions(obj: Object, *, since: float = 0.0) -> list[str]:
    """Return the types of the conditions that are True; with `since`, only those that became True later."""
    conditions = (obj.get("status") or {}).get("conditions") or ()
    current = (condition for condition in conditions if condition["status"] == "True")
    return [condition["type"] for condition in current if not since or condition_time(condition) >= since]


def condition_time(condition: Object) -> float:
    """Return when a condition last changed; 0 if it does not have the time."""
    return seconds_or_zero(condition.get("lastTransitionTime"))


def created_at(obj: Object | None, now: float) -> float:
    """Return when an object was created; `now` if it does not exist, or does not have the time."""
    return now if obj is None else seconds_or_zero(obj["metadata"].get("creationTimestamp")) or now


def seconds(timestamp: str) -> float:
    """Return a Kubernetes timestamp as seconds since the epoch."""
    return datetime.datetime.fromisoformat(timestamp).timestamp()


def seconds_or_zero(timestamp: str | None) -> float:
    """Return a timestamp that another client writes: it may be null, which is no time."""
    return seconds(timestamp) if timestamp else 0.0


def timestamp(when: float) -> str:
    """Return seconds since the epoch as a Kubernetes timestamp."""
    return datetime.datetime.fromtimestamp(when, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def precise(when: float) -> str:
    """Return seconds since the epoch as a timestamp with microseconds, as Leases and Events have it."""
    return f"{timestamp(when)[:-1]}.{int(when % 1 * 1e6):06d}Z"


def job_finished_at(job: Object) -> float | None:
    """Return when a batch Job completed or failed; None while it runs.

    Only the final conditions count: FailureTarget and SuccessCriteriaMet precede the end of the last pod.
    """
    for kind in ("Complete", "Failed"):
        final = condition(job, kind)
        if final is not None and final["status"] == "True":
            return condition_time(final)
    return None


def job_failing_since(job: Object) -> float | None:
    """Return since when a batch Job fails; None if it does not. Its controller deletes none of its pods before."""
    failing = condition(job, "FailureTarget") or condition(job, "Failed")
    return None if failing is None or failing["status"] != "True" else condition_time(failing)


def wanted_pods(job: Object) -> int:
    """Return the pods of a batch Job; another client may change its spec.parallelism, but not its completions."""
    return int(job["spec"].get("completions") or job["spec"].get("parallelism", 1))


def lacks_pods(kind: str, child: Object) -> bool:
    """Return whether some pods of a StatefulSet, or of a running batch Job, are not created yet."""
    status = child.get("status") or {}
    if kind == "StatefulSet":
        return not status.get("replicas")  # currentReplicas is 0 while the pods of a new revision replace others
    if kind != "Job" or job_finished_at(child) is not None:
        return False
    created = sum(int(status.get(field) or 0) for field in ("active", "terminating", "succeeded", "failed"))
    return created < wanted_pods(child)


READY_ROLES = {
    "redis": ("StatefulSet", names.redis),
    "judge": ("Deployment", names.judge),
    "executor": ("Deployment", names.executor),
    "rollout": ("Deployment", names.rollout),
    "teacher": ("Deployment", names.teacher),
    "environment": ("Deployment", names.environment),
    "agent": ("Deployment", names.agent),
}
"""Role -> kind and name of the object that creates its pods; those of the trainer come from attempts."""


def ready_of(observed: ObservedJob, role: str) -> tuple[int, int]:
    """Return (ready, desired) pods of a role."""
    kind, name = READY_ROLES[role]
    child = observed.child(kind, name(observed.name))
    if child is None:
        return 0, 0
    return int((child.get("status") or {}).get("readyReplicas") or 0), int(child["spec"].get("replicas", 1))


def is_alive(pod: Object) -> bool:
    """Return whether a pod may still run a container; also if its node does not answer."""
    return (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")


def deletion_requested_at(pod: Object) -> float | None:
    """Return when a pod of an attempt was deleted while it ran; None if it was not deleted, or had ended."""
    metadata = pod["metadata"]
    if "deletionTimestamp" not in metadata or names.STAGE_LABEL not in labels(pod) or not is_alive(pod):
        return None
    return seconds(metadata["deletionTimestamp"]) - int(metadata.get("deletionGracePeriodSeconds") or 0)


def lost_since(pod: Object, observed: ObservedJob) -> float | None:
    """Return when the node of a pod was found not to report; None while it reports.

    Without rights on nodes the pod shows it: only the node controller sets Ready to False while all containers are
    ready, except for a readiness gate or a native sidecar, for which the kubelet gives a reason of its own.
    """
    if observed.lost_nodes is not None:
        return observed.lost_nodes.get(pod["spec"].get("nodeName", "")) if is_alive(pod) else None
    ready = condition(pod, "Ready")
    containers = (pod.get("status") or {}).get("containerStatuses") or ()
    if not is_alive(pod) or ready is None or ready["status"] == "True" or not containers:
        return None
    if ready.get("reason") in REASONS_OF_KUBELET:
        return None
    if not all(container.get("ready") for container in containers):
        return None
    since = ready.get("lastTransitionTime")
    return None if since is None else seconds(since)


def starting_since(pod: Object) -> float | None:
    """Return when a pod that has not started received its node; None if it has none, or has started."""
    scheduled = condition(pod, "PodScheduled")
    if (pod.get("status") or {}).get("phase") != "Pending" or scheduled is None or scheduled["status"] != "True":
        return None
    since = scheduled.get("lastTransitionTime") or pod["metadata"].get("creationTimestamp")
    return None if since is None else seconds(since)


def is_of(pod: Object, job: Object) -> bool:
    """Return whether a pod was created by a batch Job, and not by a deleted Job of the same name."""
    if labels(pod).get(names.BATCH_JOB_LABEL) != job["metadata"]["name"]:
        return False
    owner = controller_of(pod)
    return owner is None or bool(owner["uid"] == job["metadata"]["uid"])


def own_statuses(pod: Object) -> list[Object]:
    """Return the statuses of the containers that the operator gave a pod. Others are injected, such as a proxy."""
    own = OWN_CONTAINERS.get(labels(pod).get(names.ROLE_LABEL, ""), ())
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return [status for status in statuses if status.get("name") in own]


def injected_containers(pod: Object) -> list[str]:
    """Return the names of a pod's running containers that the operator did not give it."""
    own = OWN_CONTAINERS.get(labels(pod).get(names.ROLE_LABEL, ""), ())
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    running = (status for status in statuses if "running" in (status.get("state") or {}))
    return sorted(status["name"] for status in running if status.get("name") not in own)


def exit_code(pod: Object) -> int | None:
    """Return the exit code of a pod of a batch Job; None while it runs, or if the kubelet did not report it."""
    for status in own_statuses(pod):
        terminated = (status.get("state") or {}).get("terminated")
        if terminated is not None:
            return int(terminated["exitCode"])
    return None


def failed_init_container(pod: Object) -> str:
    """Return name, exit code and reason of an init container that failed and is not retried; empty without one."""
    for status in (pod.get("status") or {}).get("initContainerStatuses") or ():
        ended = (status.get("state") or {}).get("terminated") or {}
        if ended.get("exitCode"):
            text = f"init container {status.get('name', '')} exited with code {ended['exitCode']}"
            return f"{text} ({ended.get('reason') or 'Error'})"
    return ""


def held_exit_code(pod: Object | None) -> int | None:
    """Return the exit code of a pod that only injected containers keep running; None if there is no such pod.

    Without them the pod ends by itself: for a moment its container has exited and the pod is still Running.
    """
    return exit_code(pod) if pod is not None and injected_containers(pod) else None


def exited_at(pod: Object) -> float | None:
    """Return when the container of a batch Job's pod exited, although an injected one keeps the pod running."""
    for status in own_statuses(pod):
        finished = ((status.get("state") or {}).get("terminated") or {}).get("finishedAt")
        if finished and is_alive(pod):
            return seconds(finished)
    return None


def running_since(pod: Object) -> float | None:
    """Return when the container of a batch Job's pod started; None if it does not run, or the pod is terminating.

    No earlier than the scheduler has chosen a node: the clock of that node may be wrong.
    """
    if pod["metadata"].get("deletionTimestamp"):
        return None
    for status in own_statuses(pod):
        running = (status.get("state") or {}).get("running")
        if running is not None:
            scheduled = condition_time(condition(pod, "PodScheduled") or {})
            created = seconds_or_zero(pod["metadata"].get("creationTimestamp"))
            return max(seconds_or_zero(running.get("startedAt")), created, scheduled)
    return None


def as_json(value: object) -> str:
    """Return compact JSON with sorted keys: equal values have equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
