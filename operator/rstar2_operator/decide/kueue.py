"""spec.queueName: the pods of a stage start when Kueue has admitted the job's Workload, and stop when Kueue evicts it.

The job has at most one Workload, for the pods of its current stage. Consecutive stages with the same pods share it, and
restarts keep it. Its deletion returns the quota, so it is deleted only when no pod runs. An eviction is a suspension:
the orchestrator writes a checkpoint, and the Workload waits in the queue again (workload_status.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rstar2_operator import names
from rstar2_operator.decide import stage_progress
from rstar2_operator.decide.decision import EVICTED, QUEUED, WAITING_FOR_PODS, Decision, Defer, Verdict, listed
from rstar2_operator.decide.facts import Facts
from rstar2_operator.decide.pod_termination import running_pods
from rstar2_operator.observed import Object, ObservedJob, annotations_of, as_json, condition, is_true, seconds
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.stages import Stage

WITHOUT_QUOTA = ("prepare", "report")
"""Roles whose pods need no quota: they use no accelerator, and run before and after the stages."""
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
"""Label of a job with its WorkloadPriorityClass: the priority in the queue, and not of the pods."""
TOPOLOGY_GATE = "kueue.x-k8s.io/topology"
TOPOLOGY_LABEL, POD_SET_LABEL = "kueue.x-k8s.io/tas", "kueue.x-k8s.io/podset"
WORKLOAD_ANNOTATION = "kueue.x-k8s.io/workload"
QUOTA_FIELDS = frozenset(
    {
        *("queue_name", "priority_class_name", "trainer", "rollout", "judge", "executor", "redis", "accelerator"),
        "runtime_patches",
    }
)
"""Members of the spec that decide which quota a stage needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Kueue's assignment for the pods of one role."""

    count: int
    """Admitted pods."""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Object] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    gates: Sequence[str] = ()
    """Scheduling gates that Kueue removes when it has chosen the node of a pod."""


def kueue(facts: Facts) -> Verdict:
    """Hold the pods of a job with spec.queueName back until its Workload is admitted; stop them if it is evicted."""
    if not facts.job.spec.queue_name or facts.stage is None:
        return None
    workload, attempts = current_workload(facts.observed), stage_progress.running_attempts(facts.observed)
    admitted = workload is not None and may_run(workload)
    if workload is not None and admitted and (attempts or facts.running_job or _fits(workload, facts)):
        return Defer(workload=workload["metadata"]["name"])
    pods = running_pods(facts.observed, except_roles=WITHOUT_QUOTA)
    if attempts or pods:
        return _stop(facts, workload, pods, serving=bool(attempts) and facts.needs_engines, evicted=not admitted)
    return _queue(facts, workload)


def _stop(facts: Facts, workload: Object | None, pods: list[str], *, serving: bool, evicted: bool) -> Decision:
    """Stop all pods. Engines stay until the orchestrator has written its checkpoint."""
    if workload is None:  # another one queues when no pod is left
        message = f"The job has no Workload. Waiting for pods to terminate: {listed(pods)}."
        return Decision(
            facts.stage_name, facts.restarts, phase="Suspending", reason=EVICTED, message=message, serving=serving
        )
    name = workload["metadata"]["name"]
    if not evicted:
        message = f"Waiting for pods of the previous stage to terminate: {listed(pods)}."
        return Decision(
            facts.stage_name, facts.restarts, phase="Pending", reason=WAITING_FOR_PODS, message=message, workload=name
        )
    message = f"Kueue evicted Workload {name}. {_eviction(workload)} Waiting for pods to terminate: {listed(pods)}."
    return Decision(
        facts.stage_name,
        facts.restarts,
        phase="Suspending",
        reason=EVICTED,
        message=message,
        workload=name,
        serving=serving,
    )


def _queue(facts: Facts, workload: Object | None) -> Decision:
    """Return the decision of a job without pods that waits for quota."""
    queue = facts.job.spec.queue_name
    name = names.workload(facts.job.metadata.name, facts.stage_name or "")
    wake_at = None
    if workload is None and _workloads(facts.observed):
        message = f"Deleting the finished Workload {name}: another one queues."
        return Decision(facts.stage_name, facts.restarts, phase="Pending", reason=QUEUED, message=message)
    if workload is None and any(facts.observed.of_kind("Workload")):
        message = (
            f"Waiting until Kueue completes the deletion of Workload {name}. If Kueue is uninstalled, remove the "
            "finalizers of the Workload."
        )
    elif workload is None:
        message = f"Waiting for Kueue to admit Workload {name} to LocalQueue {queue}."
    elif not workload["spec"].get("active", True):
        name = workload["metadata"]["name"]
        message = f"Workload {name} is deactivated. {_eviction(workload)} To queue it, set its spec.active to true."
    elif is_true(workload, "Evicted") and _fits(workload, facts):
        name, requeue_at = workload["metadata"]["name"], _requeue_at(workload)
        wake_at = requeue_at if requeue_at > facts.now else None
        cause = "" if is_true(workload, "QuotaReserved") else _cause(workload)
        message = f"Kueue evicted Workload {name}, which queues again. {_eviction(workload)} {cause}".strip()
    elif not _fits(workload, facts):
        # A new Workload enters the queue when this one is gone.
        message = f"Returning the quota of the last Workload of {queue}."
        return Decision(facts.stage_name, facts.restarts, phase="Pending", reason=QUEUED, message=message)
    else:
        name = workload["metadata"]["name"]
        message = f"Waiting for Kueue to admit Workload {name} to LocalQueue {queue}. {_cause(workload)}".strip()
    return Decision(
        facts.stage_name,
        facts.restarts,
        phase="Pending",
        reason=QUEUED,
        message=message,
        workload=name,
        wake_at=wake_at,
    )


def current_workload(observed: ObservedJob) -> Object | None:
    """Return the job's Workload: the one with quota, if there are several. A finished one has no quota again."""
    workloads = [workload for workload in _workloads(observed) if not is_true(workload, "Finished")]
    return max(workloads, key=lambda workload: (may_run(workload), workload["metadata"]["name"]), default=None)


def _workloads(observed: ObservedJob) -> list[Object]:
    """Return the job's Workloads that are not being deleted."""
    return [workload for workload in observed.of_kind("Workload") if not workload["metadata"].get("deletionTimestamp")]


def held_workload(facts: Facts, *, with_quota: bool = True) -> str | None:
    """Return the name of the Workload that the job keeps while no attempt runs; None without one.

    An evicted or deactivated one keeps its place. `with_quota`: an admitted one is kept too.
    """
    workload = current_workload(facts.observed) if facts.job.spec.queue_name else None
    if workload is None or (may_run(workload) and not with_quota):
        return None
    return str(workload["metadata"]["name"])


def has_lost_quota(facts: Facts) -> bool:
    """Return whether the job has a queue, and no admitted Workload."""
    workload = current_workload(facts.observed)
    return bool(facts.job.spec.queue_name) and (workload is None or not may_run(workload))


def may_run(workload: Object) -> bool:
    """Return whether Kueue has admitted a Workload, and not evicted or deactivated it."""
    return is_true(workload, "Admitted") and not is_true(workload, "Evicted") and workload["spec"].get("active", True)


def is_evicted(observed: ObservedJob) -> bool:
    """Return whether Kueue has evicted or deactivated the job's Workload, so that its pods must stop."""
    workload = current_workload(observed)
    return workload is not None and (is_true(workload, "Evicted") or not workload["spec"].get("active", True))


def priority_class(job: AgenticRLJob) -> tuple[str, str]:
    """Return kind and name of the class with the priority of the Workload; an empty name without one."""
    if label := job.metadata.labels.get(PRIORITY_LABEL):
        return "WorkloadPriorityClass", str(label)
    return "PriorityClass", job.spec.priority_class_name or ""


def request(job: AgenticRLJob, stage: Stage) -> str:
    """Return a digest of all that decides which quota a stage needs."""
    spec = job.spec.model_dump(mode="json", include=set(QUOTA_FIELDS))
    needs: dict[str, Any] = {"replicas": job.replicas(stage), "learns": stage.learns, "engines": stage.needs_engines}
    if label := job.metadata.labels.get(PRIORITY_LABEL):
        needs["priority"] = label
    if job.spec.environments:
        needs["environments"] = [environment.model_dump(mode="json") for environment in job.spec.environments]
    if not job.spec.needs_judge:
        needs["judge"] = False  # only then: the digests of other jobs stay those of earlier versions
    if job.spec.teacher is not None and job.served_teacher(stage) is not None:
        needs["teacher"] = job.spec.teacher.model_dump(mode="json", exclude={"engine_args"})
    if job.spec.agent is not None:
        needs["agent"] = job.spec.agent.model_dump(mode="json")
    return hashlib.sha256(as_json([spec, needs]).encode()).hexdigest()[:16]


def placements(observed: ObservedJob) -> dict[str, Placement]:
    """Return role -> where and how many pods may run, of the Workload that holds quota; empty without one."""
    status, workload = _status(observed), current_workload(observed)
    name = "" if workload is None else workload["metadata"]["name"]
    result = {}
    for assigned in _assignments(status):
        selector: dict[str, str] = {}
        tolerations: list[Object] = []
        labels: dict[str, str] = {}
        annotations: dict[str, str] = {}
        gates: list[str] = []
        for flavor in sorted(set((assigned.get("flavors") or {}).values())):
            spec = (observed.flavors.get(flavor) or {}).get("spec") or {}
            selector |= spec.get("nodeLabels") or {}
            tolerations += spec.get("tolerations") or ()
        for check in status.get("admissionChecks") or ():
            for update in check.get("podSetUpdates") or ():
                if update["name"] == assigned["name"]:
                    selector |= update.get("nodeSelector") or {}
                    tolerations += update.get("tolerations") or ()
                    labels |= update.get("labels") or {}
                    annotations |= update.get("annotations") or {}
        if assigned.get("topologyAssignment"):  # Kueue's ungater finds the pods by these, and sets their nodes
            labels |= {TOPOLOGY_LABEL: "true", POD_SET_LABEL: assigned["name"]}
            annotations[WORKLOAD_ANNOTATION] = name
            gates.append(TOPOLOGY_GATE)
        count = int(assigned.get("count", 0))
        result[assigned["name"]] = Placement(
            count=count,
            node_selector=selector,
            tolerations=tolerations,
            labels=labels,
            annotations=annotations,
            gates=gates,
        )
    return result


def flavors_of(observed: ObservedJob) -> set[str]:
    """Return the names of the ResourceFlavors that Kueue has assigned to the job."""
    assignments = _assignments(_status(observed))
    return {flavor for assigned in assignments for flavor in (assigned.get("flavors") or {}).values()}


def _status(observed: ObservedJob) -> Object:
    """Return the status of the job's Workload; empty without one."""
    workload = current_workload(observed)
    return {} if workload is None else workload.get("status") or {}


def _assignments(status: Object) -> Sequence[Object]:
    return (status.get("admission") or {}).get("podSetAssignments") or ()


def _fits(workload: Object, facts: Facts) -> bool:
    """Return whether a Workload asks for what the current stage needs."""
    return facts.stage is not None and annotations_of(workload).get(names.QUOTA) == request(facts.job, facts.stage)


def _requeue_at(workload: Object) -> float:
    at = ((workload.get("status") or {}).get("requeueState") or {}).get("requeueAt")
    return 0.0 if at is None else seconds(at)


def _eviction(workload: Object) -> str:
    evicted = condition(workload, "Evicted") or {}
    return str(evicted.get("message", "")).strip()


def _cause(workload: Object) -> str:
    """Return Kueue's own words why a Workload is not admitted."""
    for kind in ("QuotaReserved", "Admitted"):
        reported = condition(workload, kind)
        if reported is not None and reported["status"] != "True" and reported.get("message"):
            return f"Kueue: {reported['message']}"
    checks = (workload.get("status") or {}).get("admissionChecks") or ()
    waiting = [_check(check) for check in checks if check["state"] != "Ready"]
    return f"Admission checks: {'; '.join(waiting)}." if waiting else ""


def _check(check: Object) -> str:
    """Return the state of an admission check, and the words of its controller."""
    message = str(check.get("message") or "").strip(" .")
    return f"{check['name']} is {check['state']}" + (f" ({message})" if message else "")
