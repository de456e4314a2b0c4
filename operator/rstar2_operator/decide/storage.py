"""spec.storage: model and datasets are downloaded into the storage before the first stage."""

from __future__ import annotations

from rstar2_operator import names
from rstar2_operator.decide.facts import Facts
from rstar2_operator.decide.finalize import fail
from rstar2_operator.decide.plan import Plan, Verdict
from rstar2_operator.decide.pod_termination import pod_termination
from rstar2_operator.observed import ObservedJob, condition


def storage(facts: Facts) -> Verdict:
    """Prepare the storage; fail the job if that fails."""
    if facts.preparation == "missing" and (waiting := pod_termination(facts)) is not None:
        return waiting
    if facts.preparation in ("missing", "running"):
        message = "Downloading model and datasets."
        return Plan(
            facts.stage_name, facts.restarts, phase="Preparing", reason="Preparing", prepare=True, message=message
        )
    return fail(facts, *_failure(facts.observed)) if facts.preparation == "failed" else None


def _failure(observed: ObservedJob) -> tuple[str, str]:
    """Reason and message of a failed preparation."""
    outcome = observed.prepared()
    if outcome is not None:
        return outcome.reason, outcome.message
    failed = condition(observed.child("Job", names.prepare(observed.name)) or {}, "Failed") or {}
    return "PrepareFailed", f"{failed.get('reason', 'The Job failed')}: {failed.get('message', '')}"
