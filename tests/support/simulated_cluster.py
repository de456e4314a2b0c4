"""A cluster in memory for the policy's tests: it does what controllers, kubelet and drivers would, step by step.

Objects come from the real builders, so that what decide() reads is what build() writes; time is a number.
"""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any, Literal

from kubernetes.aio.client.exceptions import ApiException

from rstar2_operator.apply import changed, must_wait, owned, refusal
from rstar2_operator.builders.objects import build_context, objects
from rstar2_operator.decide.decide import decide
from rstar2_operator.decide.failure_policy import plan_after_refusals
from rstar2_operator.decide.plan import Plan
from rstar2_operator.decide.pruning import prunable
from rstar2_operator.decide.shared_secret import secret_consumers
from rstar2_operator.decide.status import status_of
from rstar2_operator.observed import ObservedJob, is_true, labels, timestamp
from rstar2_operator.settings import OperatorSettings
from rstar2_train.api.contracts import PROGRESS_KEY, Outcome, Progress, outcome_key
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.validation import check

FINAL = "Complete", "Failed"
SECRET = "Secret", "demo-secrets"


def manifest(stages: str = "sgfe", **spec: Any) -> dict[str, Any]:
    """A job whose stages are given by letters: s(ft), g(rpo), f(ilter), e(valuate)."""
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


class Cluster:
    """One job, its objects, and the time."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        self.children: dict[tuple[str, str], dict[str, Any]] = {}
        self.pods: dict[str, dict[str, Any]] = {}
        self.now = 1_000_000.0
        self.made: list[str] = []
        """Names of all Jobs ever made, in order."""
        self.started: list[str] = []
        """Names of those that ever had pods."""
        self.writes = 0
        self.passwords: dict[tuple[str, str], str] = {}
        """UID of the Secret that was there when an object was made."""
        self.disrupted: set[str] = set()
        """Jobs of which a pod was seen that somebody evicted."""
        self.refuses: set[str] = set()
        """Kinds that the API server does not take, new or changed."""

    # -- the operator ------------------------------------------------------------------------------------------------

    def observed(self) -> ObservedJob:
        """What the operator would see."""
        evicted = (pod for pod in self.pods.values() if is_true(pod, "DisruptionTarget"))
        self.disrupted |= {labels(pod)["batch.kubernetes.io/job-name"] for pod in evicted}
        seen = ObservedJob(job=self.job, children=dict(self.children), pods=tuple(self.pods.values()),
                        disrupted=frozenset(self.disrupted))  # fmt: skip
        return replace(seen, secret_missing=SECRET not in self.children and secret_consumers(seen))

    def plan(self) -> Plan:
        """What the operator would decide."""
        return decide(self.spec(), self.observed(), now=self.now)

    def spec(self) -> AgenticRLJob:
        """The validated job."""
        job, problems = check(self.job)
        assert job is not None, problems
        return job

    def reconcile(self, *, dies_after: int | None = None) -> Plan:
        """One round of the operator; with `dies_after` it is killed after so many writes."""
        job, observed = self.spec(), self.observed()
        plan = decide(job, observed, now=self.now)
        left = dies_after if dies_after is not None else 10**9
        wanted = objects(
            build_context(job, OperatorSettings()),
            plan,
            has_secret=SECRET in self.children or secret_consumers(observed),
        )
        bodies = [owned(body, observed.job, keep_claims=True) for body in wanted]
        refused, lacking = [], False
        for body in changed(bodies, observed):
            if left == 0:
                return plan
            if body["kind"] in self.refuses:
                error = ApiException(status=403, reason="Forbidden")
                error.body = json.dumps({"reason": "Forbidden", "message": "exceeded quota: q"})
                refused.append(refusal(body["kind"], body, error))
                lacking = lacking or (body["kind"], body["metadata"]["name"]) not in self.children
            elif not (lacking and must_wait(body, observed)):
                self._apply(body)
                left -= 1
        for kind, child in prunable(observed, wanted):
            if left == 0:
                return plan
            self._delete(kind, child["metadata"]["name"])
            left -= 1
        if left:
            plan = plan_after_refusals(plan, self.observed(), refused)
            status = status_of(job, self.observed(), plan, now=self.now, refused=refused)
            if status != self.job.get("status"):
                self.job["status"] = status
                self.writes += 1
        return plan

    def _apply(self, body: dict[str, Any]) -> None:
        key = body["kind"], body["metadata"]["name"]
        self.writes += 1
        there = self.children.get(key)
        if there is not None and body["kind"] in ("Job", "Secret"):
            return  # 409
        if there is None and SECRET in self.children:
            self.passwords[key] = self.children[SECRET]["metadata"]["uid"]
        made = there["metadata"]["creationTimestamp"] if there else timestamp(self.now)
        body = copy.deepcopy(body)
        body["metadata"] |= {"creationTimestamp": made, "uid": f"{key}-{self.writes}"}
        kept = {name: there[name] for name in ("status", "data") if there and name in there and name not in body}
        self.children[key] = body | kept
        if body["kind"] == "Job" and there is None:
            self.made.append(key[1])

    def _delete(self, kind: str, name: str) -> None:
        self.writes += 1
        if self.children.pop((kind, name), None) is not None and kind == "Job":
            for pod in self.pods.values():
                if labels(pod)["batch.kubernetes.io/job-name"] == name:
                    pod["metadata"]["deletionTimestamp"] = timestamp(self.now)

    # -- what the rest of the cluster does ---------------------------------------------------------------------------

    def settle(self) -> None:
        """Controllers and kubelet: pods of new Jobs run, deployments are ready."""
        for (kind, name), child in self.children.items():
            if kind == "Job" and not child.get("status") and not self._has_pods(name):
                self._start(name, child)
            elif kind in ("Deployment", "StatefulSet"):
                child["status"] = {"readyReplicas": child["spec"]["replicas"], "currentReplicas": 1}

    def _has_pods(self, job: str) -> bool:
        """Of this Job, not of an earlier one of that name."""
        mine = (pod for pod in self.pods.values() if labels(pod)["batch.kubernetes.io/job-name"] == job)
        return any("deletionTimestamp" not in pod["metadata"] for pod in mine)

    def _start(self, name: str, job: dict[str, Any]) -> None:
        self.started.append(name)
        job["status"] = {"active": job["spec"].get("completions", 1)}
        for index in range(job["spec"].get("completions", 1)):
            told = job["spec"]["template"]["metadata"]["labels"] | {
                "batch.kubernetes.io/job-name": name,
                "batch.kubernetes.io/job-completion-index": str(index),
            }
            self.pods[f"{name}-{index}"] = {
                "metadata": {"name": f"{name}-{index}", "labels": told, "creationTimestamp": timestamp(self.now)},
                "spec": {"nodeName": "node-1"},
                "status": {"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True"}]},
            }

    def running(self) -> list[str]:
        """Names of Jobs with a pod that runs."""
        alive = (pod for pod in self.pods.values() if pod["status"]["phase"] == "Running")
        return sorted({labels(pod)["batch.kubernetes.io/job-name"] for pod in alive})

    def end(self, job: str, code: int, *, outcome: Outcome | None = None) -> None:
        """The pods of a Job end with an exit code; its driver told `outcome` before."""
        if outcome is not None:
            self.tell(outcome_key(outcome.stage), outcome.model_dump(mode="json", exclude_none=True))
        for pod in self.pods.values():
            if labels(pod)["batch.kubernetes.io/job-name"] == job and pod["status"]["phase"] == "Running":
                pod["status"]["phase"] = "Succeeded" if code == 0 else "Failed"
                pod["status"]["containerStatuses"] = [{"state": {"terminated": {"exitCode": code}}}]
        child = self.children.get(("Job", job))
        if child is not None:
            kind = FINAL[code != 0]
            ended = {"type": kind, "status": "True", "lastTransitionTime": timestamp(self.now), "reason": "x"}
            child["status"] = {"conditions": [ended]}

    def tell(self, key: str, value: dict[str, Any]) -> None:
        """The driver patches the progress ConfigMap."""
        config = self.children["ConfigMap", "demo-progress"]
        config.setdefault("data", {})[key] = json.dumps(value)

    def progress(
        self, stage: str, attempt: int, step: int, *, phase: Literal["Starting", "Training"] = "Training"
    ) -> None:
        """The driver reports a step."""
        told = Progress(stage=stage, attempt=attempt, phase=phase, step=step, total_steps=4, metrics={"reward": 0.5})
        self.tell(PROGRESS_KEY, told.model_dump(mode="json", exclude_none=True))

    def prepared(self) -> None:
        """The preparation ends well."""
        self.reconcile()
        self.settle()
        self.end("demo-prepare", 0)

    def finish_stage(self, stage: str, attempt: int = 1) -> None:
        """The driver of an attempt ends well."""
        done = Outcome(stage=stage, attempt=attempt, outcome="completed", reason="StepsReached")
        self.end(f"demo-{stage}-{attempt}", 0, outcome=done)

    def round(self, times: int = 3) -> Plan:
        """A few rounds of operator and cluster."""
        plan = self.reconcile()
        for _ in range(times):
            self.settle()
            plan = self.reconcile()
        return plan


def at_first_stage(stages: str = "sgfe", **spec: Any) -> Cluster:
    """A job whose storage is prepared."""
    cluster = Cluster(manifest(stages, **spec))
    cluster.prepared()
    cluster.round()
    return cluster


def kinds(cluster: Cluster, kind: str) -> list[str]:
    """Names of the objects of a kind."""
    return sorted(name for one, name in cluster.children if one == kind)
