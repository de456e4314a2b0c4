"""A cluster in memory for the tests of the policy: controllers, kubelet and orchestrators act when the test calls them.

A round of the operator is one of its real Reconciler (stepped_operator.py). Time is a number.
"""

from __future__ import annotations

import contextlib
import functools
import json
from dataclasses import replace
from typing import Any, Literal

from rstar2_operator import names
from rstar2_operator.cache import JOB
from rstar2_operator.decide.decide import decide
from rstar2_operator.decide.decision import DELETING, Decision
from rstar2_operator.decide.deletion import has_finalizer, is_deleted
from rstar2_operator.decide.failure_policy import decision_after_rejections
from rstar2_operator.decide.restarts import NO_RESTARTS
from rstar2_operator.decide.shared_secret import has_secret_consumers
from rstar2_operator.node_health import NodeFault
from rstar2_operator.observed import ObservedJob, deletion_requested_at, is_alive, is_true, labels, timestamp
from rstar2_train.api.contracts import PROGRESS_KEY, Outcome, Progress, outcome_key
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.validation import check
from tests.support.memory_api import NAMESPACE, Body, Killed, MemoryApi, api_error
from tests.support.stepped_operator import SteppedOperator

FINAL = "Complete", "Failed"
SECRET = "Secret", "demo-secrets"
GATE = "ReadinessGatesNotReady"
"""The kubelet's reason for a pod of which only a readiness gate is not ready."""


def manifest(stages: str = "sgfe", /, **spec: Any) -> dict[str, Any]:
    """Return a job whose stages are given by letters: s(ft), g(rpo), f(ilter), e(valuate)."""
    members = {
        "s": {"type": "SFT", "sft": {"data": "/data/sft.jsonl"}},
        "g": {"type": "GRPO", "grpo": {"data": "/data/rl.jsonl", "steps": 4}},
        "f": {"type": "Filter", "filter": {"data": "/data/rl.jsonl"}},
        "e": {"type": "Evaluate", "evaluate": {"benchmarks": [{"name": "b", "data": "/data/b.jsonl"}]}},
    }
    return {
        "apiVersion": "rstar2.dev/v1alpha1",
        "kind": "AgenticRLJob",
        "metadata": {"name": "demo", "namespace": "lab", "uid": "uid-1", "generation": 1},
        "spec": {
            "model": {"source": "/models/base"},
            "accelerator": {"vendor": "None"},
            "trainer": {"replicas": 2, "gpusPerReplica": 0},
            "stages": [{"name": f"{letter}{number}", **members[letter]} for number, letter in enumerate(stages)],
            **spec,
        },
    }


QUOTA = api_error(403, "Forbidden", "exceeded quota: q")
"""Rejection of a write."""


@functools.cache
def _operator() -> SteppedOperator:
    return SteppedOperator()


class SimulatedCluster(MemoryApi):
    """An API server with one job, the rest of its cluster, and the time."""

    def __init__(self, job: dict[str, Any]) -> None:
        super().__init__()
        self.now = 1_000_000.0
        self.jobs["demo"] = job
        self._last_job: Body = {}
        """The job that is gone."""
        self._spec_of_generation = json.dumps(job["spec"])
        self.created_jobs: list[str] = []
        """Names of all created Jobs, in order."""
        self.started_jobs: list[str] = []
        """Names of the Jobs that have had pods."""
        self.secret_uids: dict[tuple[str, str], str] = {}
        """Object -> UID of the Secret that existed when the object was created."""
        self.disrupted: set[str] = set()
        """Jobs with an evicted pod."""
        self.deletions: dict[str, float] = {}
        """Job of an attempt -> when the first of its running pods was deleted."""
        self.flavors: dict[str, dict[str, Any]] = {}
        """ResourceFlavors by name."""
        self.node_faults: dict[str, NodeFault] = {}
        """Faulty nodes by name."""
        self.selects = False
        """Whether the watches deliver only objects with the operator's labels; tests may have others."""
        self.pods_at_release: list[str] = []
        """Pods that ran when the operator removed its finalizer from the deleted job."""

    def clock(self) -> float:
        """Return the time of the cluster."""
        return self.now

    # -- the operator ------------------------------------------------------------------------------------------------

    @property
    def job(self) -> dict[str, Any]:
        """The job, also after it is gone."""
        return self.jobs.get("demo") or self._last_job

    def observed(self) -> ObservedJob:
        """Return the facts that the operator observes."""
        facts = self.snapshot_of_watches()
        return replace(facts, secret_missing=SECRET not in self.children and has_secret_consumers(facts))

    def snapshot_of_watches(self) -> ObservedJob:
        """Return the facts without requests: the Secret is unreadable, and flavors are not watched."""
        evicted = (pod for pod in self.pods.values() if is_true(pod, "DisruptionTarget"))
        self.disrupted |= {labels(pod)["batch.kubernetes.io/job-name"] for pod in evicted}
        for pod in self.pods.values():
            if (when := deletion_requested_at(pod)) is not None:
                job = labels(pod)["batch.kubernetes.io/job-name"]
                self.deletions[job] = min(when, self.deletions.get(job, when))
        children = {key: child for key, child in self.children.items() if key != SECRET and self._is_selected(child)}
        pods = tuple(pod for pod in self.pods.values() if self._is_selected(pod))
        meta = {field: value for field, value in self.job["metadata"].items() if field != "resourceVersion"}
        return ObservedJob(job={**self.job, "metadata": meta}, children=children, pods=pods,
                           disrupted=frozenset(self.disrupted), deletions=self.deletions, flavors=self.flavors,
                           node_faults=self.node_faults)  # fmt: skip

    def _is_selected(self, body: Body) -> bool:
        own = labels(body)
        return not self.selects or (own.get(names.MANAGED_BY) == names.FIELD_MANAGER and names.JOB_LABEL in own)

    def decision(self) -> Decision:
        """Return the operator's decision."""
        return decide(self.spec(), self.observed(), now=self.now)

    def spec(self) -> AgenticRLJob:
        """Return the validated job."""
        job, problems = check(self.job)
        assert job is not None, problems
        return job

    def reconcile(self) -> Decision:
        """Run one round of a new operator; return its decision."""
        if self.gone:
            return Decision(None, NO_RESTARTS, phase=DELETING)
        self._count_generation()
        decision = self.decision()
        rejected = self.operator().round(self)
        return decision if self.gone else decision_after_rejections(decision, self.observed(), rejected)

    def run_operator(self, *, dies_after: int | None = None) -> None:
        """Run one round of a new operator; with `dies_after` it is killed after that number of writes."""
        if self.gone:
            return
        self._count_generation()
        self.writes_left = dies_after
        with contextlib.suppress(Killed):
            self.operator().round(self)
        self.writes_left = None

    def _count_generation(self) -> None:
        """Increase the job's generation after a change of its spec, as the API server does."""
        spec = json.dumps(self.job["spec"])
        if spec != self._spec_of_generation:
            self._spec_of_generation = spec
            self.job["metadata"]["generation"] += 1

    def operator(self) -> SteppedOperator:
        """Return the operator of the simulated clusters of this process."""
        return _operator()

    def reject(self, *kinds: str) -> None:
        """Let the API server reject the writes of these kinds, and of no other."""
        self.rejected_kinds = dict.fromkeys(kinds, QUOTA)

    async def find(self, kind: str, namespace: str, name: str) -> Body | None:
        """Return one object; also a ResourceFlavor, which is cluster-wide."""
        return self.flavors.get(name) if kind == "ResourceFlavor" else await super().find(kind, namespace, name)

    def changed(self, body: Body, *, is_new: bool) -> None:
        """Record the creation of an object."""
        key = body["kind"], body["metadata"]["name"]
        if is_new and SECRET in self.children and key != SECRET:
            self.secret_uids[key] = self.children[SECRET]["metadata"]["uid"]
        if is_new and body["kind"] == "Job":
            self.created_jobs.append(key[1])

    def deleted(self, body: Body) -> None:
        """Act as the garbage collector: the pods of a deleted Job, and all objects of a deleted job, terminate."""
        kind, name = body["kind"], body["metadata"]["name"]
        if kind == "Job":
            for pod in self.pods.values():
                if labels(pod)["batch.kubernetes.io/job-name"] == name:
                    pod["metadata"]["deletionTimestamp"] = timestamp(self.now)
        elif kind == JOB:
            self._last_job = body
            self.pods_at_release = [pod for pod, body in self.pods.items() if is_alive(body)]
            self._collect_garbage()

    # -- the rest of the cluster -------------------------------------------------------------------------------------

    @property
    def gone(self) -> bool:
        """Whether the job was deleted, and no finalizer is left."""
        return is_deleted(self.job) and not has_finalizer(self.job)

    def delete_job(self) -> None:
        """Act as a user: delete the job."""
        self.job["metadata"].setdefault("deletionTimestamp", timestamp(self.now))
        if self.gone:
            self._last_job = self.jobs.pop("demo")
            self._collect_garbage()

    def _collect_garbage(self) -> None:
        self.children.clear()
        for pod in self.pods.values():
            pod["metadata"].setdefault("deletionTimestamp", timestamp(self.now))

    def terminate(self) -> None:
        """Remove the pods that are being deleted, as kubelets do after the grace period; not those of lost nodes."""
        for name, pod in list(self.pods.items()):
            ready = [each for each in pod["status"].get("conditions", ()) if each["type"] == "Ready"]
            lost = any(each.get("reason") != GATE for each in ready)
            if "deletionTimestamp" in pod["metadata"] and not lost:
                del self.pods[name]

    def settle(self) -> None:
        """Act as controllers and kubelet: start the pods of new Jobs, make Deployments ready."""
        for (kind, name), child in self.children.items():
            if kind == "Job" and not child.get("status") and not self._has_pods(name):
                self._start(name, child)
            elif kind in ("Deployment", "StatefulSet"):
                child["status"] = {"readyReplicas": child["spec"]["replicas"], "replicas": 1}

    def _has_pods(self, job: str) -> bool:
        """Return whether the Job has pods; those of an earlier Job of the same name do not count."""
        own = (pod for pod in self.pods.values() if labels(pod)["batch.kubernetes.io/job-name"] == job)
        return any("deletionTimestamp" not in pod["metadata"] for pod in own)

    def _start(self, name: str, job: dict[str, Any]) -> None:
        self.started_jobs.append(name)
        job["status"] = {"active": job["spec"].get("completions", 1)}
        for index in range(job["spec"].get("completions", 1)):
            pod_labels = job["spec"]["template"]["metadata"]["labels"] | {
                "batch.kubernetes.io/job-name": name,
                "batch.kubernetes.io/job-completion-index": str(index),
            }
            self.pods[f"{name}-{index}"] = {
                "kind": "Pod",
                "metadata": {
                    "name": f"{name}-{index}",
                    "namespace": NAMESPACE,
                    "uid": f"{name}-{index}",
                    "labels": pod_labels,
                    "ownerReferences": [
                        {"kind": "Job", "name": name, "uid": job["metadata"]["uid"], "controller": True}
                    ],
                    "creationTimestamp": timestamp(self.now),
                },
                "spec": {"nodeName": f"node-{len(self.node_faults) + 1}"},
                "status": {"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True"}]},
            }

    def running(self) -> list[str]:
        """Return the names of the Jobs with a running pod."""
        alive = (pod for pod in self.pods.values() if pod["status"]["phase"] == "Running")
        return sorted({labels(pod)["batch.kubernetes.io/job-name"] for pod in alive})

    def finish_job(self, job: str, code: int, *, outcome: Outcome | None = None) -> None:
        """Finish the pods of a Job with an exit code, after its orchestrator has reported `outcome`."""
        if outcome is not None:
            self.patch_progress(outcome_key(outcome.stage), outcome.model_dump(mode="json", exclude_none=True))
        for pod in self.pods.values():
            if labels(pod)["batch.kubernetes.io/job-name"] == job and pod["status"]["phase"] == "Running":
                pod["status"]["phase"] = "Succeeded" if code == 0 else "Failed"
                own = {"name": self._role(job), "state": {"terminated": {"exitCode": code}}}
                pod["status"]["containerStatuses"] = [own]
        child = self.children.get(("Job", job))
        if child is not None:
            kind = FINAL[code != 0]
            condition = {"type": kind, "status": "True", "lastTransitionTime": timestamp(self.now), "reason": "x"}
            child["status"] = {"conditions": [condition]}

    def _role(self, job: str) -> str:
        """Return the role of the pods of a Job, which is also the name of their container."""
        return next((role for role in ("prepare", "report") if job == f"demo-{role}"), "trainer")

    def patch_progress(self, key: str, value: dict[str, Any]) -> None:
        """Act as the orchestrator: patch the progress ConfigMap."""
        config = self.children["ConfigMap", "demo-progress"]
        config.setdefault("data", {})[key] = json.dumps(value)

    def progress(
        self, stage: str, attempt: int, step: int, *, phase: Literal["Starting", "Training", "Evaluating"] = "Training"
    ) -> None:
        """Act as the orchestrator: report a step."""
        report = Progress(stage=stage, attempt=attempt, phase=phase, step=step, total_steps=4,
                          metrics={"reward": 0.5}, updated_at=self.now)  # fmt: skip
        self.patch_progress(PROGRESS_KEY, report.model_dump(mode="json", exclude_none=True))

    def finish_preparation(self) -> None:
        """Finish the preparation of the storage successfully."""
        self.reconcile()
        self.settle()
        self.finish_job("demo-prepare", 0)

    def report_success(self, stage: str, attempt: int = 1) -> None:
        """Act as the orchestrator: report the stage's success; its pods still run."""
        outcome = Outcome(stage=stage, attempt=attempt, outcome="completed", reason="StepsReached")
        self.patch_progress(outcome_key(stage), outcome.model_dump(mode="json", exclude_none=True))

    def finish_stage(self, stage: str, attempt: int = 1) -> None:
        """Finish an attempt successfully."""
        outcome = Outcome(stage=stage, attempt=attempt, outcome="completed", reason="StepsReached")
        self.finish_job(f"demo-{stage}-{attempt}", 0, outcome=outcome)

    def round(self, times: int = 3) -> Decision:
        """Run a few rounds of operator and cluster; return the last decision."""
        decision = self.reconcile()
        for _ in range(times):
            self.settle()
            decision = self.reconcile()
        return decision


def at_first_stage(stages: str = "sgfe", **spec: Any) -> SimulatedCluster:
    """Return the cluster of a job whose first stage has started."""
    cluster = SimulatedCluster(manifest(stages, **spec))
    cluster.finish_preparation()
    cluster.round()
    return cluster


def in_situation(situation: str) -> SimulatedCluster:
    """Return a job with one GRPO stage in a situation, such as preparing, resuming or finalizing."""
    if situation == "preparing":
        cluster = SimulatedCluster(manifest("g"))
        cluster.round()
        return cluster
    cluster = at_first_stage("g", pendingDeadlineSeconds=60, activeDeadlineSeconds=100_000)
    if situation == "backing off":
        cluster.finish_job("demo-g0-1", 137)
    elif situation == "released":
        cluster.pods["demo-g0-1-1"]["status"] = {"phase": "Pending", "conditions": []}
        cluster.now += 60
        cluster.reconcile()
        cluster.pods.clear()
    elif situation == "resuming":
        cluster.job["spec"]["suspend"] = True
        cluster.reconcile()
        cluster.job["spec"]["suspend"] = False  # while the pods of the first attempt write a checkpoint
    elif situation in ("finalizing", "succeeded"):
        cluster.finish_stage("g0")
        cluster.round()
        if situation == "succeeded":
            cluster.finish_job("demo-report", 0)
    cluster.reconcile()
    return cluster


def kinds(cluster: SimulatedCluster, kind: str) -> list[str]:
    """Return the names of the objects of a kind."""
    return sorted(name for child_kind, name in cluster.children if child_kind == kind)


def role_pod(cluster: SimulatedCluster, role: str, status: dict[str, object]) -> dict[str, object]:
    """Return a running pod of a role."""
    labels = {**names.labels("demo", role), names.BATCH_JOB_LABEL: ""}
    meta = {"name": f"demo-{role}-x", "labels": labels, "creationTimestamp": timestamp(cluster.now)}
    return {"metadata": meta, "spec": {"nodeName": "node-1"}, "status": {"phase": "Running", **status}}
