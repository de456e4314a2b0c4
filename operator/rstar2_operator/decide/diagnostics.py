"""What keeps a job's pods from running, in the cluster's own words, and what to do about it. Pure.

Kubelet, scheduler and controllers say it in different places: a container's waiting state, a pod's or a Deployment's
condition, a Warning event. Here they become one list.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rstar2_operator import names
from rstar2_operator.observed import (
    Object,
    ObservedJob,
    condition,
    job_finished_at,
    labels,
    lacks_pods,
    running_since,
    seconds,
    timestamp,
)
from rstar2_train.api.contracts import PREPARE_KEY

MESSAGE_LENGTH = 1024
OVERDUE_SECONDS = 30.0
"""A pod that has not gone so long after its grace: its node does not answer."""

SILENT_SECONDS = 600.0
"""A driver that has not reported so long after all pods of its attempt run: it reports before it loads anything."""

IMAGE = "check the image's name and tag, and the pull secrets (spec.runtimePatches[].imagePullSecrets)"
ADVICE = {
    "ImagePullBackOff": IMAGE,
    "InvalidImageName": IMAGE,
    "ErrImageNeverPull": "bring the image onto the node, or let the kubelet pull it (the chart's image.pullPolicy)",
    "StartError": "is it the image for this role? It lacks what is to run in it",
    "CreateContainerConfigError": "a ConfigMap or Secret that the pod names is missing, or is another of that name",
    "CrashLoopBackOff": "see the container's log: kubectl logs {pod} --previous",
    "FailedCreatePodSandBox": "for an executor: its node needs the gVisor shim of spec.executor.runtimeClassName",
    "FailedMount": "see to the volume, ConfigMap or Secret that it names",
    "FailedAttachVolume": "see to the volume and its storage driver",
    "FailedCreate": "see to the quota, the RuntimeClass or the admission policy that refuses it",
    "ReplicaFailure": "see to the quota, the RuntimeClass or the admission policy that refuses it",
    "ProvisioningFailed": "see to spec.storage.storageClassName, accessModes and size",
    "Refused": "put right what it names (the job's spec, a quota, an admission policy); it is tried again. What "
    "cannot be changed while it exists is made anew after spec.suspend: true, then false",
    "Unreadable": "whoever wrote it is of another version, or it was edited: give spec.trainer.image the operator's "
    "version, and take the key out of the ConfigMap (the driver writes it again)",
    "NotEnding": "its node does not answer. When the node is gone for good say so: kubectl taint nodes {node} "
    "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute (or delete the Node); nothing runs twice",
    "NotReporting": "do they reach one another (a firewall between nodes, an admin's policy: pod 0 at port 6379), does "
    "the storage answer? kubectl logs -l batch.kubernetes.io/job-name={pod} --prefix",
    "FailedBinding": "see to spec.storage.storageClassName, or make a matching volume",
}
WAITING = frozenset(
    {
        *("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"),
        *("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff"),
    }
)
SAME = {"ErrImagePull": "ImagePullBackOff"}
"""The kubelet says now the one, now the other, as it tries and waits: one trouble, told once."""
UNSCHEDULABLE = "Unschedulable"
OF_PENDING_PODS = frozenset({"FailedCreatePodSandBox", "FailedMount", "FailedAttachVolume"})
OF_CONTROLLERS = frozenset({"FailedCreate"})
OF_CLAIMS = frozenset({"ProvisioningFailed", "FailedBinding"})


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One thing that is in the way."""

    role: str
    what: str
    """The object that says so, as `Kind/name`."""
    reason: str
    message: str
    node: str = ""

    def __str__(self) -> str:
        advice = ADVICE.get(self.reason)
        name = self.what.rpartition("/")[2]
        hint = f" -> {advice.format(pod=name, node=self.node)}" if advice else _about_scheduling(self.message)
        return f"{self.what}: {self.reason}: {self.message}"[:MESSAGE_LENGTH] + hint


def diagnoses(observed: ObservedJob, *, now: float) -> list[Diagnosis]:
    """Everything that is in the way at `now`, the most telling of each object, in a stable order."""
    found = [trouble for pod in observed.pods for trouble in _of_pod(pod, observed, now)]
    if any(pod["metadata"].get("deletionTimestamp") for pod in observed.pods):
        found = [one for one in found if one.reason != UNSCHEDULABLE]  # its own last pods are still making room
    for (kind, name), child in observed.children.items():
        found += _of_child(kind, name, child, observed)
    for key in observed.unreadable():
        role, what = "prepare" if key == PREPARE_KEY else "trainer", f"ConfigMap/{names.progress(observed.name)}"
        found.append(Diagnosis(role, what, "Unreadable", f"what {key} says cannot be read"))
    for name, since in _silent(observed):
        if now >= since + SILENT_SECONDS:
            words = f"all its pods run since {timestamp(since)}, and its driver has not reported"
            found.append(Diagnosis("trainer", f"Job/{name}", "NotReporting", words))
    return sorted(found, key=lambda one: (one.role, one.what, one.reason))


def overdue_at(observed: ObservedJob, *, now: float) -> float | None:
    """When the next one is to be told of a pod that does not end, or of a driver that is silent; None when none is."""
    ending = (pod["metadata"].get("deletionTimestamp") for pod in observed.pods)
    times = [seconds(end) + OVERDUE_SECONDS for end in ending if end]
    times += [since + SILENT_SECONDS for _, since in _silent(observed)]
    return min((when for when in times if when > now), default=None)


def _silent(observed: ObservedJob) -> Iterator[tuple[str, float]]:
    """The attempt all of whose pods run while its driver has not reported, and since when they do."""
    told = observed.progress()
    reports = names.attempt(observed.name, told.stage, told.attempt) if told is not None else ""
    for (kind, name), job in observed.children.items():
        if kind != "Job" or labels(job).get(names.ROLE_LABEL) != "trainer":
            continue
        if name == reports or job_finished_at(job) is not None:
            continue
        pods = [pod for pod in observed.pods if labels(pod).get(names.OF_JOB_LABEL) == name]
        begun = [begin for pod in pods if (begin := running_since(pod)) is not None]
        if len(begun) == len(pods) >= job["spec"].get("parallelism", 1):
            yield name, max(begun)


def _of_pod(pod: Object, observed: ObservedJob, now: float) -> Iterator[Diagnosis]:
    role, name = labels(pod).get(names.ROLE_LABEL, ""), pod["metadata"]["name"]
    status = pod.get("status") or {}
    if end := pod["metadata"].get("deletionTimestamp"):
        node = pod["spec"].get("nodeName", "")
        if now >= seconds(end) + OVERDUE_SECONDS and node:
            yield Diagnosis(role, f"Pod/{name}", "NotEnding", f"should have ended by {end} on node {node}", node)
        return
    if status.get("phase") == "Succeeded":
        return
    if status.get("phase") == "Failed":
        yield from _never_started(pod, name, role, observed)
        return
    scheduled = condition(pod, "PodScheduled")
    if scheduled is not None and scheduled["status"] == "False":
        if scheduled.get("reason") == UNSCHEDULABLE:  # others, such as SchedulerError, are tried again at once
            yield Diagnosis(role, f"Pod/{name}", UNSCHEDULABLE, scheduled.get("message", ""))
        return
    for container in status.get("containerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in WAITING:
            reason = SAME.get(waiting["reason"], waiting["reason"])
            yield Diagnosis(role, f"Pod/{name}", reason, _said(container, waiting))
            return
    if status.get("phase") == "Pending":
        yield from _events("Pod", name, role, OF_PENDING_PODS, observed, since=pod)


def _never_started(pod: Object, name: str, role: str, observed: ObservedJob) -> Iterator[Diagnosis]:
    """Of a Job that goes on trying: why the container of a failed pod could not even be started."""
    job = observed.child("Job", labels(pod).get(names.OF_JOB_LABEL, ""))
    if job is None or job_finished_at(job) is not None:
        return
    for container in (pod.get("status") or {}).get("containerStatuses") or ():
        ended = (container.get("state") or {}).get("terminated") or {}
        if ended.get("reason") == "StartError":
            yield Diagnosis(role, f"Pod/{name}", "StartError", str(ended.get("message", "")))
            return


def _said(container: Object, waiting: Object) -> str:
    """The kubelet's message; of a container that keeps ending also how it ended."""
    ended = (container.get("lastState") or {}).get("terminated")
    if ended is None:
        return str(waiting.get("message", ""))
    last = f"last ended with exit code {ended['exitCode']} ({ended.get('reason', '')})"
    return f"{waiting.get('message', '')}; {last}"


def _of_child(kind: str, name: str, child: Object, observed: ObservedJob) -> Iterator[Diagnosis]:
    role = labels(child).get(names.ROLE_LABEL, "")
    status = child.get("status") or {}
    failure = condition(child, "ReplicaFailure") if kind == "Deployment" else None
    if failure is not None and failure["status"] == "True":
        yield Diagnosis(role, f"{kind}/{name}", "ReplicaFailure", failure.get("message", ""))
    elif lacks_pods(kind, child):
        yield from _events(kind, name, role, OF_CONTROLLERS, observed, since=child)
    elif kind == "PersistentVolumeClaim" and status.get("phase") == "Pending":
        yield from _events(kind, name, role, OF_CLAIMS, observed, since=child)


def _events(
    kind: str, name: str, role: str, reasons: frozenset[str], observed: ObservedJob, *, since: Object
) -> Iterator[Diagnosis]:
    """The newest event of an object, when it is about one of `reasons` and no older than the object itself."""
    made = seconds(since["metadata"]["creationTimestamp"])
    for event in reversed(observed.warnings):
        about = event["involvedObject"]
        if (about.get("kind"), about.get("name")) != (kind, name) or event.get("reason") not in reasons:
            continue
        if about.get("uid") not in (None, "", since["metadata"].get("uid")) or event_time(event) < made - 1:
            continue
        yield Diagnosis(role, f"{kind}/{name}", event["reason"], str(event.get("message", "")))
        return


def event_time(event: Object) -> float:
    """When an event was last seen."""
    series = event.get("series") or {}
    told = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return seconds(told or event["metadata"]["creationTimestamp"])


def _about_scheduling(message: str) -> str:
    if "persistentvolumeclaim" in message and "not found" in message:
        where = "spec.storage.claimName, the pvc:// source, the volume of spec.runtimePatches"
        return f" -> make the claim, or name one that is there ({where})"
    if "unbound immediate PersistentVolumeClaims" in message or "persistentvolumeclaim" in message:
        return " -> see the claim: its storage class must exist and be able to make or find a volume"
    if "Insufficient" in message:
        less = "ask for less (replicas, resources), then suspend and resume the job"
        return f" -> free or add nodes with what is insufficient, or {less}"
    if "taint" in message:
        return " -> add tolerations for it by spec.runtimePatches"
    return ""
