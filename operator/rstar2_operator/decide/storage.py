"""spec.storage: model and datasets are downloaded into the storage before the first stage."""

from __future__ import annotations

from rstar2_operator import names
from rstar2_operator.decide import stage_progress
from rstar2_operator.decide.facts import Facts
from rstar2_operator.decide.finalize import fail
from rstar2_operator.decide.plan import Plan, Verdict
from rstar2_operator.decide.pod_termination import pod_termination
from rstar2_operator.observed import Object, ObservedJob, condition, exit_code, exited_at


def storage(facts: Facts) -> Verdict:
    """Prepare the storage; fail the job if that fails."""
    if facts.preparation == "missing" and (waiting := pod_termination(facts)) is not None:
        return waiting
    if facts.preparation in ("missing", "running"):
        message = "Downloading model and datasets."
        return Plan(
            facts.stage_name,
            facts.restarts,
            phase="Preparing",
            reason="Preparing",
            message=message,
            prepare=True,
            remove_pods=_failed_pods(facts.observed),
        )
    return fail(facts, *_failure(facts.observed)) if facts.preparation == "failed" else None


def _failure(observed: ObservedJob) -> tuple[str, str]:
    """Reason and message of a failed preparation."""
    outcome = observed.prepared()
    if outcome is not None:
        return outcome.reason, outcome.message
    prepare = observed.child("Job", names.prepare(observed.name)) or {}
    failed = condition(prepare, "Failed") or {}
    return "PrepareFailed", f"{failed.get('reason', 'The Job failed')}: {failed.get('message', '')}"


def _failed_pods(observed: ObservedJob) -> tuple[Object, ...]:
    """Return the pod whose container failed, and which an injected one keeps running: its Job could not retry."""
    prepare = observed.child("Job", names.prepare(observed.name))
    pod = None if prepare is None else stage_progress.first_pod(prepare, observed)
    return (pod,) if pod is not None and exited_at(pod) is not None and exit_code(pod) != 0 else ()
