"""A job's status from what was observed and decided: everything that `kubectl get` and `describe` show. Pure.

The fields are those of rstar2_train/api/status.py, from which the CRD is made; lists are bounded as they are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rstar2_operator import names
from rstar2_operator.decide import stage_progress
from rstar2_operator.decide.conditions import conditions, merged, ready_of
from rstar2_operator.decide.diagnostics import Diagnosis, diagnoses
from rstar2_operator.decide.plan import FINAL, Plan
from rstar2_operator.observed import Object, ObservedJob, job_finished_at, timestamp
from rstar2_train.api.contracts import Progress
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.stages import Stage

Status = dict[str, Any]


def status_of(
    job: AgenticRLJob, observed: ObservedJob, plan: Plan, *, now: float, refused: Sequence[Diagnosis] = ()
) -> Status:
    """The whole status; `refused`: what the API server did not take."""
    old = observed.status
    generation = int(observed.job["metadata"].get("generation", 0))
    found = [*refused, *diagnoses(observed, now=now)]
    progress = observed.progress()
    rows = [_stage(job, stage, observed, plan, progress, now=now) for stage in job.spec.stages]
    status: Status = {
        "observedGeneration": generation,
        "phase": plan.phase,
        "message": plan.message[:1024],
        "restarts": plan.restarts,
        "restartsCountedTowardsMax": plan.counted,
        "startTime": old.get("startTime") or timestamp(now),
        "conditions": merged(old.get("conditions") or (), conditions(plan, observed, found), now=now,
                             generation=generation),
        "stages": rows,
        "roles": _roles(observed, plan),
        "rolloutReplicas": ready_of(observed, "rollout")[1],
        "rolloutSelector": ",".join(f"{k}={v}" for k, v in names.labels(observed.name, "rollout").items()),
    }  # fmt: skip
    done = sum(row["phase"] == "Done" for row in rows)
    at = next((row for row in rows if row["name"] == plan.stage), rows[-1] if done == len(rows) else None)
    if at is not None:
        status |= {key: at[key] for key in ("step", "totalSteps", "checkpoint", "mlflowRunId") if key in at}
        status["stage"] = at["name"]
        so_far = rows[: rows.index(at) + 1]
        rewards = [row["metrics"]["reward"] for row in so_far if "reward" in (row.get("metrics") or {})]
        if rewards:  # of the present stage, or of the last one that had any
            status["reward"] = rewards[-1]
    status["progressPercentage"] = round(100 * _share(job, rows))
    if plan.phase == "Running" and progress is not None and progress.estimated_remaining_seconds is not None:
        status["estimatedRemainingSeconds"] = round(progress.estimated_remaining_seconds)
    if plan.phase in FINAL:
        status["completionTime"] = old.get("completionTime") or timestamp(now)
    return status


def invalid_status(
    observed: ObservedJob, errors: str, *, now: float, left: bool, refused: Sequence[Diagnosis] = ()
) -> Status:
    """The status of a job whose spec cannot be used: what was known stays, and every error is told.

    `left`: something of it still runs; `refused`: what the API server did not let go.
    """
    asked = bool(observed.job["spec"].get("suspend"))
    if asked:
        what = "it is being suspended" if left else "it is suspended, and holds nothing but the storage"
    else:
        what = "what runs goes on as it was; spec.suspend: true stops it" if left else ""
    message = f"{errors}\n({what})" if what else errors
    plan = Plan(phase="Invalid", why="InvalidSpec", message=message)
    generation = int(observed.job["metadata"].get("generation", 0))
    old = observed.status
    found = [*refused, *diagnoses(observed, now=now)]
    told = merged(old.get("conditions") or (), conditions(plan, observed, found), now=now, generation=generation)
    return {**old, "observedGeneration": generation, "phase": plan.phase, "message": message[:1024], "conditions": told}


def _stage(
    job: AgenticRLJob, stage: Stage, observed: ObservedJob, plan: Plan, progress: Progress | None, *, now: float
) -> Status:
    """One row of `stages`: what its driver told, over what was known before."""
    row: Status = {**observed.stage_status(stage.name), "name": stage.name, "type": stage.type}
    row["attempts"] = stage_progress.last_attempt(stage, observed)
    if plan.attempt is not None and plan.attempt.stage == stage.name:
        row["attempts"] = max(row["attempts"], plan.attempt.number)
        row.setdefault("startTime", timestamp(now))
    row["phase"] = _phase(stage, observed, plan)
    if progress is not None and progress.stage == stage.name:
        row |= _told(progress)
    elif (total := job.total_steps(stage)) is not None:
        row.setdefault("totalSteps", total)
    outcome = observed.outcome(stage.name)
    if outcome is not None and row["phase"] in ("Done", "Failed"):
        row |= {"outcome": outcome.outcome, "reason": outcome.reason, "message": outcome.message[:1024]}
        if outcome.checkpoint is not None:
            row["checkpoint"] = {"path": outcome.checkpoint.path, "step": outcome.checkpoint.step}
        row.setdefault("endTime", timestamp(_ended(stage, observed) or now))
    return row


def _phase(stage: Stage, observed: ObservedJob, plan: Plan) -> str:
    if stage_progress.ended_well(stage.name, observed):
        return "Done"
    if plan.stage != stage.name:
        return "Waiting"
    if plan.phase in ("Failed", "Suspended", "Suspending", "Restarting"):
        return plan.phase
    if plan.phase == "Finishing":
        return "Failed" if plan.report == "failed" else "Done"
    return "Running" if plan.attempt is not None else "Waiting"


def _told(progress: Progress) -> Status:
    row: Status = {}
    if progress.metrics:  # an attempt that has none yet: server-side apply would make null of a map that is emptied
        row["metrics"] = {name: _number(v) for name, v in progress.metrics.items()}
    if progress.total_steps is not None:  # a filter or an evaluation has no steps that mean something to a person
        row |= {"step": progress.step, "totalSteps": progress.total_steps}
    if progress.checkpoint is not None:
        row["checkpoint"] = {"path": progress.checkpoint.path, "step": progress.checkpoint.step}
    if progress.mlflow_run_id is not None:
        row["mlflowRunId"] = progress.mlflow_run_id
    return row


def _number(value: float) -> str:
    """Metrics are strings: the API has no floats that all clients read alike."""
    return f"{value:.4g}"


def _ended(stage: Stage, observed: ObservedJob) -> float | None:
    last: Object | None = observed.attempts(stage.name).get(stage_progress.last_attempt(stage, observed))
    return job_finished_at(last) if last is not None else None


def _share(job: AgenticRLJob, rows: list[Status]) -> float:
    """Share of the curriculum that is done: stages that learn count alike, however long; the others a fifth."""
    total = done = 0.0
    for stage, row in zip(job.spec.stages, rows, strict=True):
        weight = 1.0 if stage.learns else 0.2
        total += weight
        if row["phase"] == "Done":
            done += weight
        elif row.get("totalSteps"):
            done += weight * min(1.0, float(row.get("step") or 0) / row["totalSteps"])
    return done / total if total else 0.0


def _roles(observed: ObservedJob, plan: Plan) -> list[Status]:
    """Ready and wanted pods a role; the trainer's are those of the present attempt."""
    rows = []
    if plan.attempt is not None:
        child = observed.attempts(plan.attempt.stage).get(plan.attempt.number)
        desired = int(child["spec"].get("parallelism", 1)) if child is not None else 0
        ready = int((child.get("status") or {}).get("ready") or 0) if child is not None else 0
        rows.append({"name": "trainer", "ready": ready, "desired": desired})
    if plan.serving:
        for role in ("rollout", "judge", "executor", "redis"):
            ready, desired = ready_of(observed, role)
            rows.append({"name": role, "ready": ready, "desired": desired})
    return rows
