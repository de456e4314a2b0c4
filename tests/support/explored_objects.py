"""The objects of a job that the policy reads, for the exhaustive exploration: built once per decision, and small."""

from __future__ import annotations

from typing import Any

from rstar2_operator.builders.pod import BuildContext, Manifest
from rstar2_operator.decide.decision import Decision
from rstar2_operator.desired import DesiredJob, DesiredState
from rstar2_operator.observed import Object, timestamp
from rstar2_operator.settings import OperatorSettings
from rstar2_train.api.contracts import PROGRESS_KEY
from tests.support.simulated_cluster import GATE, SECRET

READ = frozenset({("Deployment", "demo-rollout"), ("ConfigMap", "demo-progress"), SECRET})
"""Objects that the policy reads, besides Jobs and pods; one Deployment stands for all roles."""


class ReadObjects(DesiredState):
    """The objects of a decision that the policy reads, without the parts that it does not read; each is built once."""

    def __init__(self) -> None:
        super().__init__(OperatorSettings(kueue=True))
        self._contexts: dict[int, BuildContext] = {}
        """Identity of a DesiredJob, of which the operator keeps one per spec -> its context."""
        self._bodies: dict[str, list[Manifest]] = {}

    def context(self, known: DesiredJob, job: Object) -> tuple[BuildContext | None, str]:
        """Return the builders' input of a valid job."""
        if id(known) not in self._contexts:
            context, errors = super().context(known, job)
            assert context is not None, errors
            self._contexts[id(known)] = context
        return self._contexts[id(known)], ""

    def bodies(
        self, known: DesiredJob, job: Object, context: BuildContext, decision: Decision, *, has_secret: bool
    ) -> list[Manifest]:
        """Return the objects that the policy reads."""
        objects = decision.prepare, decision.serving, decision.attempt, decision.ending, decision.report
        inputs = decision.phase, objects, decision.workload, has_secret, context.placements
        key = repr((id(known), job["metadata"]["generation"], inputs))
        if key not in self._bodies:
            desired = super().bodies(known, job, context, decision, has_secret=has_secret)
            self._bodies[key] = [_stripped(body) for body in desired if _is_read(body)]
        return self._bodies[key]


def _is_read(body: dict[str, Any]) -> bool:
    return body["kind"] in ("Job", "Workload") or (body["kind"], body["metadata"]["name"]) in READ


def _stripped(body: dict[str, Any]) -> dict[str, Any]:
    """An object with the fields that the policy reads."""
    spec = body.get("spec", {})
    kept = {name: spec[name] for name in ("completions", "parallelism", "replicas") if name in spec}
    if body["kind"] == "Job":
        kept["template"] = {"metadata": {"labels": spec["template"]["metadata"]["labels"]}}
    return {"kind": body["kind"], "metadata": body["metadata"], "spec": kept}


def held_status(fault: str, now: float) -> dict[str, Any]:
    """Return the status of a pod whose init container fails, that runs silently, or whose readiness gate stays."""
    at = timestamp(now)
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": at}
    if fault == "init":
        init = {"name": "agent-init", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
        return {"phase": "Pending", "conditions": [scheduled], "initContainerStatuses": [init]}
    trainer = {"name": "trainer", "ready": True, "state": {"running": {"startedAt": at}}}
    gate = {"type": "Ready", "status": "False", "reason": GATE, "lastTransitionTime": at}
    listed = [scheduled, gate] if fault == "gate" else [scheduled]
    return {"phase": "Running", "conditions": listed, "containerStatuses": [trainer]}


def conditions(child: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the conditions of an object."""
    result: list[dict[str, Any]] = child.get("status", {}).get("conditions", [])
    return result


def waits(workload: dict[str, Any]) -> bool:
    """Whether a Workload waits in the queue."""
    return not any(each["type"] == "QuotaReserved" and each["status"] == "True" for each in conditions(workload))


def true(kind: str) -> dict[str, Any]:
    """Return a condition that is True."""
    return {"type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": timestamp(0)}


def outcomes(child: dict[str, Any]) -> dict[str, Any]:
    """The data of a ConfigMap, without the progress."""
    return {name: text for name, text in child.get("data", {}).items() if name != PROGRESS_KEY}
