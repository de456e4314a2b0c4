"""A cluster in memory for the tests of the policy: controllers, kubelet and orchestrators act when the test calls them.

Objects come from the real builders, so decide() reads the objects that the operator writes. Time is a number.
"""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any, Literal

from kubernetes.aio.client.exceptions import ApiException

from rstar2_operator.apply import CREATE_ONLY, applied_spec, changed, must_wait, owned, rejection
from rstar2_operator.builders.objects import build_context, objects
from rstar2_operator.decide.decide import decide
from rstar2_operator.decide.decision import DELETING, Decision
from rstar2_operator.decide.deletion import has_finalizer, is_deleted, needs_finalizer
from rstar2_operator.decide.failure_policy import decision_after_rejections
from rstar2_operator.decide.kueue import current_workload, placements
from rstar2_operator.decide.pruning import prunable
from rstar2_operator.decide.restarts import NO_RESTARTS
from rstar2_operator.decide.shared_secret import has_secret_consumers
from rstar2_operator.decide.status import status_of
from rstar2_operator.decide.workload_status import own_conditions, returns_quota, without_quota
from rstar2_operator.names import FINALIZER, ROLE_LABEL
from rstar2_operator.node_health import NodeFault
from rstar2_operator.observed import ObservedJob, is_alive, is_true, labels, timestamp
from rstar2_operator.settings import OperatorSettings
from rstar2_train.api.contracts import PROGRESS_KEY, Outcome, Progress, outcome_key
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.validation import check

FINAL = "Complete", "Failed"
SECRET = "Secret", "demo-secrets"


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


class SimulatedCluster:
    """One job, its objects, and the time."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        self.children: dict[tuple[str, str], dict[str, Any]] = {}
        self.pods: dict[str, dict[str, Any]] = {}
        self.now = 1_000_000.0
        self.created_jobs: list[str] = []
        """Names of all created Jobs, in order."""
        self.started_jobs: list[str] = []
        """Names of the Jobs that have had pods."""
        self.writes = 0
        self.secret_uids: dict[tuple[str, str], str] = {}
        """Object -> UID of the Secret that existed when the object was created."""
        self.disrupted: set[str] = set()
        """Jobs with an evicted pod."""
        self.flavors: dict[str, dict[str, Any]] = {}
        """ResourceFlavors by name."""
        self.node_faults: dict[str, NodeFault] = {}
        """Faulty nodes by name."""
        self.rejected_kinds: set[str] = set()
        """Kinds whose writes the API server rejects."""
        self.pods_at_release: list[str] = []
        """Pods that ran when the operator removed its finalizer from the deleted job."""

    # -- the operator ------------------------------------------------------------------------------------------------

    def observed(self) -> ObservedJob:
        """Return the facts that the operator observes."""
        evicted = (pod for pod in self.pods.values() if is_true(pod, "DisruptionTarget"))
        self.disrupted |= {labels(pod)["batch.kubernetes.io/job-name"] for pod in evicted}
        facts = ObservedJob(job=self.job, children=dict(self.children), pods=tuple(self.pods.values()),
                        disrupted=frozenset(self.disrupted), flavors=self.flavors,
                        node_faults=self.node_faults)  # fmt: skip
        return replace(facts, secret_missing=SECRET not in self.children and has_secret_consumers(facts))

    def decision(self) -> Decision:
        """Return the operator's decision."""
        return decide(self.spec(), self.observed(), now=self.now)

    def spec(self) -> AgenticRLJob:
        """Return the validated job."""
        job, problems = check(self.job)
        assert job is not None, problems
        return job

    def reconcile(self, *, dies_after: int | None = None) -> Decision:
        """Run one round of the operator; with `dies_after` it is killed after that number of writes."""
        if self.gone:
            return Decision(None, NO_RESTARTS, phase=DELETING)
        job, observed = self.spec(), self.observed()
        decision = decide(job, observed, now=self.now)
        writes_left = dies_after if dies_after is not None else 10**9
        writes_left -= self._hold(decision)
        if decision.release:
            return decision
        bodies = self.bodies(decision, has_secret=SECRET in self.children or has_secret_consumers(observed))
        rejected, is_missing = [], False
        for body in changed(bodies, observed):
            if decision.phase == DELETING and body["kind"] != "Job":
                continue
            if writes_left == 0:
                return decision
            if body["kind"] in self.rejected_kinds:
                error = ApiException(status=403, reason="Forbidden")
                error.body = json.dumps({"reason": "Forbidden", "message": "exceeded quota: q"})
                rejected.append(rejection(body["kind"], body, error))
                is_missing = is_missing or (body["kind"], body["metadata"]["name"]) not in self.children
            elif not (is_missing and must_wait(body, observed)):
                self._apply(body)
                writes_left -= 1
        for child in decision.stale_jobs:
            self._delete("Job", child["metadata"]["name"])
        for pod in decision.remove_pods:
            del self.pods[pod["metadata"]["name"]]
        for kind, child in prunable(observed, bodies, now=self.now, ending=decision.ending):
            if writes_left == 0:
                return decision
            self._delete(kind, child["metadata"]["name"])
            writes_left -= 1
        if writes_left and self._report_to_kueue(decision):
            writes_left -= 1
        if writes_left:
            decision = decision_after_rejections(decision, self.observed(), rejected)
            status = status_of(job, self.observed(), decision, now=self.now, rejected=rejected)
            if status != self.job.get("status"):
                self.job["status"] = status
                self.writes += 1
        return decision

    def _report_to_kueue(self, decision: Decision) -> bool:
        """Write the status of the Workload as quota.py does. Return whether it was written."""
        observed = self.observed()
        workload = current_workload(observed)
        if workload is None:
            return False
        body = self.children["Workload", workload["metadata"]["name"]]
        if returns_quota(observed, decision):
            own = [each for each in body["status"]["conditions"] if each["type"] == "PodsReady"]
            status = without_quota(workload, now=self.now)
            body["status"] = {**status, "conditions": [*status["conditions"], *own]}
        elif conditions := own_conditions(observed, decision, now=self.now):
            types = {each["type"] for each in conditions}
            status = body.setdefault("status", {})
            others = [each for each in status.get("conditions", ()) if each["type"] not in types]
            status["conditions"] = [*others, *conditions]
        else:
            return False
        self.writes += 1
        return True

    def _hold(self, decision: Decision) -> int:
        """Add or remove the finalizer, as the decision needs it. Return the number of writes."""
        needed = needs_finalizer(decision)
        if needed == has_finalizer(self.job) or (needed and is_deleted(self.job)):
            return 0
        self.job["metadata"]["finalizers"] = [FINALIZER] if needed else []
        self.writes += 1
        if self.gone:
            self.pods_at_release = [name for name, pod in self.pods.items() if is_alive(pod)]
            self._collect_garbage()
        return 1

    def bodies(self, decision: Decision, *, has_secret: bool) -> list[dict[str, Any]]:
        """Return the objects of a decision."""
        context = replace(build_context(self.spec(), OperatorSettings()), placements=placements(self.observed()))
        desired = objects(context, decision, has_secret=has_secret)
        return [owned(body, self.job, keep_claims=True, spec=applied_spec(self.job)) for body in desired]

    def _apply(self, body: dict[str, Any]) -> None:
        key = body["kind"], body["metadata"]["name"]
        self.writes += 1
        existing = self.children.get(key)
        if existing is not None and body["kind"] in CREATE_ONLY:
            return  # 409
        if existing is None and SECRET in self.children:
            self.secret_uids[key] = self.children[SECRET]["metadata"]["uid"]
        created = existing["metadata"]["creationTimestamp"] if existing else timestamp(self.now)
        body = copy.deepcopy(body)
        body["metadata"] |= {"creationTimestamp": created, "uid": f"{key}-{self.writes}"}
        old = existing or {}
        kept = {name: old[name] for name in ("status", "data") if name in old and name not in body}
        self.children[key] = body | kept
        if body["kind"] == "Job" and existing is None:
            self.created_jobs.append(key[1])

    def _delete(self, kind: str, name: str) -> None:
        self.writes += 1
        if self.children.pop((kind, name), None) is not None and kind == "Job":
            for pod in self.pods.values():
                if labels(pod)["batch.kubernetes.io/job-name"] == name:
                    pod["metadata"]["deletionTimestamp"] = timestamp(self.now)

    # -- the rest of the cluster -------------------------------------------------------------------------------------

    @property
    def gone(self) -> bool:
        """Whether the job was deleted, and no finalizer is left."""
        return is_deleted(self.job) and not has_finalizer(self.job)

    def delete(self) -> None:
        """Act as a user: delete the job."""
        self.job["metadata"].setdefault("deletionTimestamp", timestamp(self.now))
        if self.gone:
            self._collect_garbage()

    def _collect_garbage(self) -> None:
        self.children.clear()
        for pod in self.pods.values():
            pod["metadata"].setdefault("deletionTimestamp", timestamp(self.now))

    def terminate(self) -> None:
        """Remove the pods that are being deleted, as kubelets do after the grace period; not those of lost nodes."""
        for name, pod in list(self.pods.items()):
            lost = any(each["type"] == "Ready" for each in pod["status"].get("conditions", ()))
            if "deletionTimestamp" in pod["metadata"] and not lost:
                del self.pods[name]

    def settle(self) -> None:
        """Act as controllers and kubelet: start the pods of new Jobs, make Deployments ready."""
        for (kind, name), child in self.children.items():
            if kind == "Job" and not child.get("status") and not self._has_pods(name):
                self._start(name, child)
            elif kind in ("Deployment", "StatefulSet"):
                child["status"] = {"readyReplicas": child["spec"]["replicas"], "currentReplicas": 1}

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
                "metadata": {"name": f"{name}-{index}", "labels": pod_labels, "creationTimestamp": timestamp(self.now)},
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
                own = {"name": labels(pod)[ROLE_LABEL], "state": {"terminated": {"exitCode": code}}}
                pod["status"]["containerStatuses"] = [own]
        child = self.children.get(("Job", job))
        if child is not None:
            kind = FINAL[code != 0]
            condition = {"type": kind, "status": "True", "lastTransitionTime": timestamp(self.now), "reason": "x"}
            child["status"] = {"conditions": [condition]}

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
