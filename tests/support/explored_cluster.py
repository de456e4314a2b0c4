"""A simulated cluster with a bounded state, for the exhaustive exploration of the policy.

An action is one event: a round of the operator (which may be killed after a write), of the controllers, of the kubelet,
of the user, or a fault. Times are compared in steps of TICK, which is longer than every timer of the policy.
"""

from __future__ import annotations

import functools
import json
import pickle
import re
from collections.abc import Iterator
from typing import Any

from rstar2_operator import names
from rstar2_operator.decide.decision import FINAL
from rstar2_operator.decide.deletion import has_finalizer, is_deleted
from rstar2_operator.decide.kueue import may_run
from rstar2_operator.decide.stage_progress import last_attempt
from rstar2_operator.node_health import NodeFault
from rstar2_operator.observed import is_alive, labels, seconds, timestamp
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.validation import check
from tests.support.explored_objects import READ, ReadObjects, conditions, held_status, outcomes, true, waits
from tests.support.memory_api import NAMESPACE
from tests.support.simulated_cluster import SECRET, SimulatedCluster
from tests.support.stepped_operator import SteppedOperator

TICK = 1400.0
WRITES = 8
"""Maximum writes of a round to the objects of READ, to Jobs and to the finalizer."""
IRRELEVANT = re.compile(r'"(message|rstar2.dev/applied-hash|rstar2.dev/applied-spec)": "([^"\\]|\\.)*"')
"""Fields that no decision depends on, in JSON."""
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
ENGINE_POD = "demo-rollout-x"
INNOCENT = frozenset({"evict", "reject", "remove", "gate", "vanish"})
"""Faults that are not of the job: no restart after them counts."""


@functools.lru_cache(maxsize=64)
def _validated(text: str) -> AgenticRLJob:
    job, problems = check(json.loads(text))
    assert job is not None, problems
    return job


@functools.cache
def _operator() -> SteppedOperator:
    operator = SteppedOperator()
    operator._desired = ReadObjects()
    return operator


@functools.lru_cache(maxsize=2048)
def _round(state: bytes) -> list[bytes]:
    """Return the state after a round of the operator, and those in which a kill after 1, 2, ... writes leaves it."""
    cluster = ExploredCluster.restored(state)
    SimulatedCluster.run_operator(cluster)
    return [cluster.snapshot(), *cluster.partial[1:]]


class ExploredCluster(SimulatedCluster):
    """A job whose every event is an action by name.

    `faults`: faults that may still happen. `unlimited_kills`: every round of the operator may be killed, besides them.
    """

    def __init__(self, job: dict[str, Any], faults: tuple[str, ...], *, unlimited_kills: bool) -> None:
        super().__init__(job)
        self.faults = faults
        self.unlimited_kills = unlimited_kills
        self.kills = 1 if unlimited_kills else WRITES if "kill" in faults else 0
        """Number of writes of a round after each of which the operator may be killed."""
        self.partial: list[bytes] = []
        """In a round: the states before its writes."""
        self.is_innocent = INNOCENT.issuperset(faults)
        self.is_harmless = set(faults) == {"gate"}
        self.silent: set[str] = set()
        """Jobs of attempts whose orchestrators run, and never report or end."""
        self.reported: set[str] = set()
        """Jobs of attempts that have reported progress."""
        self.unrecorded: set[str] = set()
        """Jobs of attempts that were deleted, and had reported nothing, without a status that has their number."""
        self.repeated: list[str] = []
        """Jobs that started again with the number of an earlier attempt."""
        self.without_quota: list[str] = []
        """Jobs of attempts that were created without an admitted Workload."""

    def spec(self) -> AgenticRLJob:
        """Return the validated job."""
        return _validated(json.dumps({name: value for name, value in self.job.items() if name != "status"}))

    def operator(self) -> SteppedOperator:
        """Return the operator of the explored clusters of this process."""
        return _operator()

    def actions(self) -> Iterator[str]:
        """Yield the names of the actions that change something."""
        yield "reconcile"
        if self.unlimited_kills:
            yield "kill 1"  # several of them: any number of writes
        elif "kill" in self.faults:
            # A kill after the last write; after any further one, the state would be the same.
            yield from (f"kill {writes}" for writes in range(1, min(self.kills, len(self._rounds())) + 1))
        yield "settle"
        yield "tick"
        if any(kind == "Workload" and waits(child) for (kind, _), child in self.children.items()):
            yield "admit"
        if "preempt" in self.faults and any(kind == "Workload" for kind, _ in self.children):
            yield "preempt"
        if any("deletionTimestamp" in pod["metadata"] for pod in self.pods.values()):
            yield "terminate"
        for job in self.running():
            if job:
                yield f"finish {job}"
                # Only without the status does a decision depend on the first report.
                if "status" in self.faults and self._stage(job) and job not in self.reported:
                    yield f"report {job}"
                yield from (f"{fault} {job}" for fault in ("crash", "misconfigure", "evict") if fault in self.faults)
                yield from (
                    f"{fault} {job}" for fault in ("inject", "reject", "init", "vanish") if fault in self.faults
                )
                own = ("hang", "lose", "fault", "stick", "silent", "gate", "remove")
                yield from (f"{fault} {job}" for fault in own if fault in self.faults and self._stage(job))
        yield from (
            fault
            for fault in ("toggle", "delete", "secret", "status", "unschedulable", "unstarted")
            if fault in self.faults
        )

    def run_operator(self, *, dies_after: int | None = None) -> None:
        """Run one round, which is computed once for equal states; `dies_after`: writes before a kill."""
        states, faults = self._rounds(), self.faults
        self.__dict__ = pickle.loads(states[dies_after] if dies_after and dies_after < len(states) else states[0])
        self.faults = faults

    def _rounds(self) -> list[bytes]:
        """Return the states after a round, without faults: of a complete one, then of those with 1, 2, ... writes."""
        faults, self.faults = self.faults, ()
        states = _round(self.snapshot())
        self.faults = faults
        return states

    def _write(self, kind: str) -> None:
        """Keep the state in which a kill before this write leaves the cluster."""
        state = self.snapshot() if self.kills and len(self.partial) <= self.kills else None
        super()._write(kind)
        if state is not None:
            self.partial.append(state)

    def act(self, action: str) -> None:
        """Carry out one action."""
        verb, _, job = action.partition(" ")
        if verb in self.faults:
            left = list(self.faults)
            left.remove(verb)
            self.faults = tuple(left)
        if verb == "reconcile":
            self.run_operator()
        elif verb == "kill":
            self.run_operator(dies_after=int(job))
        elif verb == "tick":
            self.now += TICK
        elif verb == "toggle":
            self.job["spec"]["suspend"] = not self.job["spec"].get("suspend", False)
        elif verb == "delete":
            self.delete_job()
        elif verb == "secret":
            self.children.pop(SECRET, None)
        elif verb == "status":
            self.job.pop("status", None)
            self.unrecorded |= set(self.started_jobs) - self.reported - {name for _, name in self.children}
        elif verb in ("unschedulable", "unstarted"):  # without a node; or on a node, without a container
            self.settle()
            scheduled = {"type": "PodScheduled", "status": str(verb == "unstarted")}
            for pod in self.pods.values():
                if pod["status"]["phase"] == "Running":
                    pod["status"] = {"phase": "Pending", "conditions": [scheduled]}
        elif verb in ("settle", "terminate", "admit", "preempt"):
            getattr(self, verb)()
        else:
            self._of_job(verb, job)

    def _of_job(self, verb: str, job: str) -> None:
        stage = self._stage(job)
        if verb == "finish":
            if stage and self._has_progress():
                self.report_success(*stage)
            self.finish_job(job, 0)
        elif verb == "report":
            if self._has_progress():
                self.progress(*stage, step=0, phase="Starting")
                self.reported.add(job)
        elif verb == "hang":
            if self._has_progress():
                self.report_success(*stage)
        elif verb == "stick":
            if self._has_progress():  # the attempt has made steps, and makes no other
                self.progress(*stage, step=2)
                self.reported.add(job)
                for row in self.job.get("status", {}).get("stages", ()):
                    row["stepSeconds"] = 100
        elif verb == "fault":
            pod = next(each for each in self.pods.values() if labels(each)[names.BATCH_JOB_LABEL] == job)
            self.node_faults = {**self.node_faults, pod["spec"]["nodeName"]: NodeFault(("label x",), closed=True)}
        elif verb == "inject":  # the own containers exit, and an injected one keeps their pods running
            for pod in self._pods_of(job):
                own = {"exitCode": 137 if stage else 0, "finishedAt": timestamp(self.now)}
                pod["status"]["containerStatuses"] = [
                    {"name": "a-proxy", "state": {"running": {"startedAt": timestamp(0)}}},
                    {"name": labels(pod)[names.ROLE_LABEL], "state": {"terminated": own}},
                ]
        elif verb == "reject":
            for pod in self._pods_of(job):
                pod["status"] = {"phase": "Failed", "reason": "UnexpectedAdmissionError"}
            failed = {"type": "Failed", "status": "True", "lastTransitionTime": timestamp(self.now), "reason": "x"}
            if ("Job", job) in self.children:
                self.children["Job", job]["status"] = {"conditions": [failed]}
        elif verb in ("init", "silent", "gate"):
            for pod in self._pods_of(job):
                pod["status"] = held_status(verb, self.now)
            if verb == "silent":
                self.silent.add(job)
            elif verb == "gate" and self._has_progress():  # the orchestrator works
                self.progress(*stage, step=1)
                self.reported.add(job)
        elif verb == "remove":  # a person deletes a pod without a grace period: it is gone before its Job has failed
            self.deletions[job] = self.now
            for pod in self._pods_of(job):
                del self.pods[pod["metadata"]["name"]]
            failed = {"type": "Failed", "status": "True", "lastTransitionTime": timestamp(self.now + 2), "reason": "x"}
            if ("Job", job) in self.children:
                self.children["Job", job]["status"] = {"conditions": [failed]}
        elif verb == "vanish":  # a person deletes the Job
            if ("Job", job) in self.children:
                self.drop("Job", job)
            rows = {row["name"]: row["attempts"] for row in self.job.get("status", {}).get("stages", ())}
            if stage and rows.get(stage[0], 0) < stage[1]:
                self.unrecorded |= {job} - self.reported
        elif verb in ("crash", "misconfigure"):
            self.finish_job(job, 137 if verb == "crash" else 78)
        else:
            pod = next(each for each in self.pods.values() if labels(each)[names.BATCH_JOB_LABEL] == job)
            kind, value = ("DisruptionTarget", "True") if verb == "evict" else ("Ready", "False")
            since = {"type": kind, "status": value, "lastTransitionTime": timestamp(self.now)}
            pod["status"]["conditions"] = [*pod["status"].get("conditions", ()), since]
            pod["status"]["containerStatuses"] = [
                {"name": "trainer", "ready": True, "state": {"running": {"startedAt": timestamp(self.now)}}}
            ]

    def _pods_of(self, job: str) -> list[dict[str, Any]]:
        return [pod for pod in self.pods.values() if labels(pod)[names.BATCH_JOB_LABEL] == job]

    def _is_injected(self, job: str) -> bool:
        return any(len(pod["status"].get("containerStatuses", ())) > 1 for pod in self._pods_of(job))

    def _has_progress(self) -> bool:
        return ("ConfigMap", "demo-progress") in self.children

    @staticmethod
    def _stage(job: str) -> tuple[str, int] | tuple[()]:
        """Stage and attempt of a Job's name; empty for the Jobs that prepare and report."""
        name, _, number = job.removeprefix("demo-").rpartition("-")
        return (name, int(number)) if name else ()

    def settle(self) -> None:
        """Start the pods of new Jobs, and one engine."""
        super().settle()
        if ("Deployment", "demo-rollout") in self.children and ENGINE_POD not in self.pods:
            own = {**names.labels("demo", "rollout"), names.BATCH_JOB_LABEL: ""}
            meta = {"name": ENGINE_POD, "namespace": NAMESPACE, "uid": ENGINE_POD, "labels": own}
            meta["creationTimestamp"] = timestamp(self.now)
            running = {"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True"}]}
            self.pods[ENGINE_POD] = {"metadata": meta, "spec": {"nodeName": "node-1"}, "status": running}

    def admit(self) -> None:
        """Act as Kueue: admit each waiting Workload."""
        for (kind, _), child in self.children.items():
            if kind == "Workload" and waits(child):
                own = [each for each in child.get("status", {}).get("conditions", ()) if each["type"] == "PodsReady"]
                child["status"] = {"conditions": [true("QuotaReserved"), true("Admitted"), *own]}

    def preempt(self) -> None:
        """Act as Kueue: evict each admitted Workload."""
        for (kind, _), child in self.children.items():
            if kind == "Workload" and may_run(child):
                child["status"]["conditions"].append({**true("Evicted"), "reason": "Preempted"})

    def changed(self, body: dict[str, Any], *, is_new: bool) -> None:
        """Record an attempt without quota."""
        super().changed(body, is_new=is_new)
        is_attempt = is_new and body["kind"] == "Job" and names.STAGE_LABEL in labels(body)
        if is_attempt and self.job["spec"].get("queueName") and not any(map(may_run, self._of_kind("Workload"))):
            self.without_quota.append(body["metadata"]["name"])

    def _of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [child for (child_kind, _), child in self.children.items() if child_kind == kind]

    def _start(self, name: str, job: dict[str, Any]) -> None:
        if self._stage(name) and name in self.started_jobs and name not in self.unrecorded:
            self.repeated.append(name)
        super()._start(name, job)

    def deleted(self, body: dict[str, Any]) -> None:
        """Terminate the engine with its Deployment."""
        super().deleted(body)
        is_engine = (body["kind"], body["metadata"]["name"]) == ("Deployment", "demo-rollout")
        if is_engine and ENGINE_POD in self.pods:
            self.pods[ENGINE_POD]["metadata"]["deletionTimestamp"] = timestamp(self.now)

    def continue_without_faults(self) -> None:
        """Let every part of the cluster act once, without a fault."""
        self.run_operator()
        self.admit()
        self.settle()
        self.terminate()
        for pod in self.pods.values():
            if pod["status"]["phase"] == "Pending" and "initContainerStatuses" not in pod["status"]:
                pod["status"] = {"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True"}]}
        for job in self.running():
            if job and ("Job", job) in self.children and not self._is_injected(job) and job not in self.silent:
                self._of_job("finish", job)
        self.now += TICK

    def violations(self) -> list[str]:
        """Return the invariants that do not hold."""
        alive = [pod for pod in self.pods.values() if is_alive(pod)]
        attempts = {labels(pod)[names.BATCH_JOB_LABEL] for pod in alive if names.STAGE_LABEL in labels(pod)}
        phase = self.job.get("status", {}).get("phase")
        violations = [f"pods of two attempts: {sorted(attempts)}"] if len(attempts) > 1 else []
        # The pod of the report has no accelerator; a report that hangs does not delay the end. After a resume the
        # status is an old one until the operator has written it.
        pods = [pod["metadata"]["name"] for pod in alive if labels(pod)[names.ROLE_LABEL] != "report"]
        if pods and (phase in FINAL or (phase == "Suspended" and self.job["spec"].get("suspend"))):
            violations.append(f"pods in phase {phase}: {pods}")
        if self.pods_at_release:
            violations.append(f"pods at the end of a deletion: {self.pods_at_release}")
        if self.without_quota:
            violations.append(f"attempts without an admitted Workload: {self.without_quota}")
        quota = any(kind == "Workload" for kind, _ in self.children) or is_deleted(self.job)
        if attempts and self.job["spec"].get("queueName") and not quota:
            violations.append(f"pods without a Workload: {sorted(attempts)}")
        if self.is_innocent and self.job.get("status", {}).get("restartsCountedTowardsMax"):
            violations.append("a restart counts that is not the fault of the job")
        if self.is_harmless and self.job.get("status", {}).get("restarts"):
            violations.append("a restart without a failure")
        if self.repeated:
            violations.append(f"attempts that started twice: {self.repeated}")
        return violations

    def ended(self) -> bool:
        """Whether the job has ended, is gone, or is suspended as requested."""
        if is_deleted(self.job):
            return self.gone
        phase = self.job.get("status", {}).get("phase")
        return phase in FINAL or (bool(self.job["spec"].get("suspend")) and phase == "Suspended")

    def attempts(self) -> int:
        """Return the number of created attempts."""
        return sum(bool(self._stage(name)) for name in set(self.created_jobs))

    def snapshot(self) -> bytes:
        """Return the whole state."""
        return pickle.dumps({**self.__dict__, "partial": []}, protocol=pickle.HIGHEST_PROTOCOL)

    @classmethod
    def restored(cls, snapshot: bytes) -> ExploredCluster:
        """Return a cluster with the state of a snapshot."""
        cluster = cls.__new__(cls)
        cluster.__dict__ = pickle.loads(snapshot)
        return cluster

    def key(self) -> str:
        """Return the state, without the faults that may still happen.

        It is text in which times are ages, so that equal situations at other times are equal.
        """
        status = self.job.get("status") or {}
        rows = [
            (
                row["attempts"],
                row.get("phase"),
                row.get("outcome"),
                row.get("ended"),
                row.get("disruptedAttempt"),
                row.get("stepSeconds"),
                row.get("outcomeTime"),
                "startTime" in row,
            )
            for row in status.get("stages", ())
        ]
        timers = [status.get(name) for name in ("faultyNodes", "nextRetryTime", "finalizingSince", "completionTime")]
        counters = status.get("restarts"), status.get("restartsCountedTowardsMax")
        jobs = [
            (name, *self._of_child(child)) for (kind, name), child in sorted(self.children.items()) if kind == "Job"
        ]
        jobs += [
            (name, [(each["type"], each["status"], each["reason"]) for each in conditions(child)])
            for (kind, name), child in sorted(self.children.items())
            if kind == "Workload"
        ]
        others = [
            (key, outcomes(child), child.get("status")) for key, child in sorted(self.children.items()) if key in READ
        ]
        pods = [
            (name, pod["status"], pod["spec"]["nodeName"] in self.node_faults, "deletionTimestamp" in pod["metadata"])
            for name, pod in sorted(self.pods.items())
        ]
        observed = self.observed()
        progress = observed.progress()
        reported = progress and (
            progress.stage,
            progress.attempt,
            min(2, int((self.now - progress.updated_at) // TICK)),
        )
        held = has_finalizer(self.job), is_deleted(self.job)
        own = status.get("phase"), status.get("reason"), rows, timers, counters, self.job["spec"].get("suspend")
        own += (self._preparation(),)
        # Two states are equal only if the same attempts would be repeated.
        latest = {stage.name: last_attempt(stage, observed) for stage in self.spec().spec.stages}
        following = {names.attempt("demo", stage, number + 1) for stage, number in latest.items()}
        repeatable = sorted((following & set(self.started_jobs)) - self.unrecorded), self.repeated
        marked = [sorted(name for name in marks if ("Job", name) in self.children)
                  for marks in (self.silent, self.deletions)]  # fmt: skip
        state = held, own, jobs, others, pods, reported, sorted(self.disrupted), repeatable, marked
        text = IRRELEVANT.sub("", json.dumps(state, sort_keys=True))
        return TIME.sub(lambda time: str(max(-1, min(1, int((self.now - seconds(time[0])) // TICK)))), text)

    def _preparation(self) -> dict[str, Any]:
        """The record of the preparation, with whether its Job exists in place of the UID."""
        record = dict(self.job.get("status", {}).get("preparation") or {})
        exists = [job["metadata"]["uid"] == record.get("job") for job in self._of_kind("Job")]
        return {**record, "job": any(exists)} if record else {}

    def _of_child(self, job: dict[str, Any]) -> tuple[Any, ...]:
        """The parts of a Job that decisions depend on; a time only if a timer counts from it."""
        final = [each["type"] for each in job.get("status", {}).get("conditions", ())]
        conditions = job["status"]["conditions"] if final == ["Failed"] else final
        created = None if final else job["metadata"]["creationTimestamp"]
        return conditions, "active" in job.get("status", {}), job["metadata"].get("annotations"), created
