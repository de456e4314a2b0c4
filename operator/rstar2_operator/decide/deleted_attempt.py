"""An attempt whose batch Job another client has deleted, by hand or by a TTL, before the operator saw its end.

Its end is recorded like that of a finished attempt. The operator deletes the Job of an attempt only after the status
has another phase, or the record of the end. What the Job knew about earlier attempts, the record of the last one knows.
"""

from __future__ import annotations

from rstar2_operator import names
from rstar2_operator.decide.decision import Verdict
from rstar2_operator.decide.facts import Facts
from rstar2_operator.decide.failure_policy import react
from rstar2_operator.observed import Object, timestamp


def deleted_attempt(facts: Facts) -> Verdict:
    """Record the end of an attempt whose Job was deleted while it ran, by the last status: a disruption."""
    if facts.stage is None or facts.ended or not _ran(facts):
        return None
    job = facts.attempt_job
    if job is not None and not job["metadata"].get("deletionTimestamp"):
        return None
    return react(facts, facts.stage, job or _remains(facts), failed_at=facts.now)


def _ran(facts: Facts) -> bool:
    """Return whether the last attempt ran when the status was written."""
    status, row = facts.observed.status, facts.observed.stage_status(str(facts.stage_name))
    phases = status.get("phase"), row.get("phase")
    return phases == ("Running", "Running") and row.get("attempts") == facts.attempt


def _remains(facts: Facts) -> Object:
    """Return a Job with the counters of the deleted one, which the record of the attempt before it has too."""
    record = facts.observed.stage_status(str(facts.stage_name)).get("ended") or {}
    annotations: dict[str, str] = {}
    if record.get("attempt") == facts.attempt - 1:
        annotations[names.DISRUPTIONS] = str(record.get("disruptions", 0))
        annotations[names.FAILURES] = str(record.get("failures", 0) + 1)
        annotations[names.START_STEP] = str(record.get("step", -1))
    name = names.attempt(facts.observed.name, str(facts.stage_name), facts.attempt)
    own = {"name": name, "uid": "", "annotations": annotations}
    return {"metadata": {**own, "deletionTimestamp": timestamp(facts.now)}}
