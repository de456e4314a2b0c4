"""The status of a job from the observed objects and the decision: all that `kubectl get` and `describe` show. Pure.

The fields are those of rstar2_train/api/status.py, from which the CRD is generated; lists have the same bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rstar2_operator import names
from rstar2_operator.decide import deletion_blocked, disruption, stage_progress, storage, stuck
from rstar2_operator.decide.conditions import (
    CONDITIONS_OF_PROBLEMS,
    conditions,
    generation_of_end,
    spec_ignored,
    with_times,
)
from rstar2_operator.decide.decision import DELETING, FINAL, INVALID_SPEC, QUEUED, AttemptEnd, Decision, Phase
from rstar2_operator.decide.deletion import is_deleted
from rstar2_operator.decide.diagnostics import Diagnosis, diagnoses
from rstar2_operator.decide.kueue import is_evicted
from rstar2_operator.decide.node_loss import pods_to_move
from rstar2_operator.decide.plan_fits import plan_fits
from rstar2_operator.decide.repeated_preparation import preparation_status
from rstar2_operator.decide.restarts import NO_RESTARTS
from rstar2_operator.decide.storage import prepared_sources
from rstar2_operator.observed import ObservedJob, job_finished_at, ready_of, timestamp, wanted_pods
from rstar2_train.api.contracts import Progress
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.stages import Stage

Status = dict[str, Any]
MESSAGE_LENGTH = 1024
MAX_NODES = 64
"""Faulty nodes that the status lists."""
TIMERS = frozenset({"faultyNodes", "activeSince", "suspendedSince", "finalizingSince", "nextRetryTime"})


def status_of(
    job: AgenticRLJob,
    observed: ObservedJob,
    decision: Decision,
    *,
    now: float,
    rejected: Sequence[Diagnosis] = (),
    missing: Sequence[Diagnosis] = (),
) -> Status:
    """Return the whole status.

    `rejected`: objects that the API server rejected in this round; `missing`: those that pods of any stage need.
    """
    old = observed.status
    generation = int(observed.job["metadata"].get("generation", 0))
    ran = generation_of_end(observed, fails=decision.ending == "failed")
    problems = [*rejected, *diagnoses(observed, now=now), *stuck.problems(job, observed, now=now)]
    problems += [*storage.problems(observed, now=now), *deletion_blocked.problems(observed, now=now)]
    problems += _unreported(missing, problems)
    progress = observed.progress()
    rows = [_stage(job, stage, observed, decision, progress, now=now) for stage in job.spec.stages]
    status: Status = {
        "observedGeneration": generation,
        "phase": decision.phase,
        "reason": decision.reason,
        "message": decision.message[:MESSAGE_LENGTH],
        "restarts": decision.restarts.total,
        "restartsCountedTowardsMax": decision.restarts.counted.number,
        "startTime": old.get("startTime") or timestamp(now),
        **_times(decision, observed, now=now),
        "conditions": with_times(old.get("conditions") or (),
                                 [*conditions(decision, observed, problems, needs_judge=job.spec.needs_judge),
                                  *plan_fits(job), *spec_ignored(observed, ran)],
                                 now=now, generation=generation, ran=ran),
        "stages": rows,
        "roles": _roles(observed, decision),
        "rolloutReplicas": _engines(observed),
        "rolloutSelector": ",".join(f"{k}={v}" for k, v in names.labels(observed.name, "rollout").items()),
    }  # fmt: skip
    done = sum(row["phase"] == "Succeeded" for row in rows)
    current = next((row for row in rows if row["name"] == decision.stage), rows[-1] if done == len(rows) else None)
    if current is not None:
        status |= {key: current[key] for key in ("step", "totalSteps", "checkpoint", "mlflowRunId") if key in current}
        status["stage"] = current["name"]
        up_to_current = rows[: rows.index(current) + 1]
        rewards = [row["metrics"]["reward"] for row in up_to_current if "reward" in (row.get("metrics") or {})]
        if rewards:  # of the current stage, or of the last stage that had any
            status["reward"] = rewards[-1]
    if (record := preparation_status(observed, decision, now=now)) is not None:
        status["preparation"] = record
    if (prepared := prepared_sources(job, observed)) is not None:
        status["preparedSources"] = prepared
    status["progressPercentage"] = round(100 * _share_done(job, rows, progress))
    if decision.phase == "Running" and progress is not None and (left := progress.estimated_remaining_seconds):
        attempt = decision.attempt
        if attempt is not None and (progress.stage, progress.attempt) == (attempt.stage, attempt.number):
            status["estimatedRemainingSeconds"] = round(left)
    return status


def _unreported(missing: Sequence[Diagnosis], problems: Sequence[Diagnosis]) -> list[Diagnosis]:
    """Return the missing objects that no other problem names, such as the rejection of the pods that need them."""
    texts = [f"{problem.subject} {problem.message}" for problem in problems]
    return [problem for problem in missing if not any(problem.subject.partition("/")[2] in text for text in texts)]


def _engines(observed: ObservedJob) -> int:
    """Return the number of engine pods, also of a rollout in progress: an autoscaler computes with them."""
    deployment = observed.child("Deployment", names.rollout(observed.name)) or {}
    return int((deployment.get("status") or {}).get("replicas") or 0)


def _times(decision: Decision, observed: ObservedJob, *, now: float) -> Status:
    """Return the timers that policies read in later rounds."""
    times, old = Status(), observed.status
    if pods := pods_to_move(observed):
        known = {node["name"]: node["since"] for node in old.get("faultyNodes") or ()}
        faulty = sorted({pod["spec"]["nodeName"] for pod in pods})[:MAX_NODES]
        times["faultyNodes"] = [{"name": name, "since": known.get(name) or timestamp(now)} for name in faulty]
    if decision.phase == "Suspended":
        times["suspendedSince"] = old.get("suspendedSince") or timestamp(now)
    elif decision.reason != QUEUED:
        times["activeSince"] = old.get("activeSince") or timestamp(now)
    given_up = decision.phase == DELETING and "finalizingSince" in old
    if given_up or (decision.phase in ("Finalizing", DELETING) and decision.report):
        times["finalizingSince"] = old.get("finalizingSince") or timestamp(now)
    if decision.phase in FINAL:
        times["completionTime"] = old.get("completionTime") or timestamp(now)
    if (window_start := decision.restarts.counted.since) is not None:
        times["restartWindowStartTime"] = timestamp(window_start)
    if decision.retry_at is not None:
        times["nextRetryTime"] = timestamp(decision.retry_at)
    return times


def invalid_status(
    observed: ObservedJob, errors: str, *, now: float, running: bool, rejected: Sequence[Diagnosis] = ()
) -> Status:
    """Return the status of a job whose spec is invalid: the last status, with every error in the message.

    `running`: objects of the job still exist; `rejected`: deletions that the API server rejected.
    """
    old = observed.status
    generation = int(observed.job["metadata"].get("generation", 0))
    if old.get("phase") in FINAL:
        # Nothing reads the spec of a finished job.
        own = [condition for condition in old.get("conditions", ()) if condition["type"] != "SpecIgnored"]
        own += spec_ignored(observed, ran := generation_of_end(observed, fails=False))
        ended = with_times(old.get("conditions") or (), own, now=now, generation=generation, ran=ran)
        return {**old, "conditions": ended, "observedGeneration": generation}
    phase: Phase
    if is_deleted(observed.job):
        phase, note = DELETING, "The job is being deleted."
    elif observed.job["spec"].get("suspend"):
        phase = "Suspending" if running else "Suspended"
        note = "The job is being suspended." if running else "The job is suspended; only its storage is kept."
    elif is_evicted(observed):
        phase = "Suspending" if running else "Pending"
        note = "Kueue evicted the job, so its pods are stopped."
    else:
        phase = (old.get("phase") if running else None) or "Pending"
        note = "Running pods are left unchanged. To stop them, set spec.suspend to true." if running else ""
    message = f"{errors}\n{note}" if note else errors
    decision = Decision(None, NO_RESTARTS, phase=phase, reason=INVALID_SPEC, message=message)
    problems = [*rejected, *diagnoses(observed, now=now), *deletion_blocked.problems(observed, now=now)]
    described = conditions(decision, observed, problems)
    rows = [
        {**row, "attempts": max([row.get("attempts", 0), *observed.attempts(row["name"])])}
        for row in old.get("stages", ())
    ]
    return {
        **{name: value for name, value in old.items() if name not in TIMERS},
        **({"stages": rows} if rows else {}),
        **_times(decision, observed, now=now),
        "observedGeneration": generation,
        "phase": phase,
        "reason": INVALID_SPEC,
        "message": message[:MESSAGE_LENGTH],
        "conditions": with_times(old.get("conditions") or (), described, now=now, generation=generation),
    }


def failed_status(observed: ObservedJob, problems: list[Diagnosis], *, now: float) -> Status:
    """Return the last status of a job that the operator cannot reconcile, with its problems. It observes no new spec.

    `problems`: the cause is the first one.
    """
    old = observed.status
    phase: Phase = old.get("phase") or "Pending"
    message = str(problems[0])[:MESSAGE_LENGTH]
    decision = Decision(None, NO_RESTARTS, phase=phase, reason=problems[0].reason, message=message)
    before = {condition["type"]: condition for condition in old.get("conditions") or ()}
    kept = {kind: condition for kind, condition in before.items() if kind not in CONDITIONS_OF_PROBLEMS}
    generation = int(old.get("observedGeneration", observed.job["metadata"].get("generation", 0)))
    described = conditions(decision, observed, problems)
    described = with_times(before.values(), described, now=now, generation=generation)
    first = {} if "phase" in old else {"phase": phase, "reason": decision.reason, "message": message}
    by_type = {condition["type"]: condition for condition in described}
    return {**old, **first, "conditions": [*(by_type | kept).values()]}


def _stage(
    job: AgenticRLJob, stage: Stage, observed: ObservedJob, decision: Decision, progress: Progress | None, *, now: float
) -> Status:
    """Return one row of `stages`: the orchestrator's report over the last known row."""
    row: Status = {**observed.stage_status(stage.name), "name": stage.name, "type": stage.type}
    row["attempts"] = stage_progress.last_attempt(stage, observed)
    last = observed.attempts(stage.name).get(row["attempts"])
    if last is not None and disruption.disruption(last, stage.name, row["attempts"], observed):
        row["disruptedAttempt"] = row["attempts"]
    if (reported := observed.outcome(stage.name)) is not None and reported.attempt == row["attempts"]:
        row.setdefault("outcomeTime", timestamp(now))
    else:
        row.pop("outcomeTime", None)
    if decision.attempt is not None and decision.attempt.stage == stage.name:
        row["attempts"] = max(row["attempts"], decision.attempt.number)
        row.setdefault("startTime", timestamp(now))
    if decision.ended is not None and decision.ended.stage == stage.name:
        row["ended"] = _ended(decision.ended)
    row["phase"] = _stage_phase(stage, observed, decision)
    if progress is not None and progress.stage == stage.name:
        attempt = observed.attempts(stage.name).get(progress.attempt)
        row |= stuck.step_times(row, progress, attempt, reported_at=observed.reported_at(progress)) | _progress_fields(
            progress, int(row.get("step") or 0)
        )
    elif (total := job.total_steps(stage)) is not None:
        row.setdefault("totalSteps", total)
    outcome = observed.outcome(stage.name)
    if outcome is not None and row["phase"] in FINAL:
        row |= {
            "outcome": outcome.outcome.capitalize(),
            "reason": outcome.reason,
            "message": outcome.message[:MESSAGE_LENGTH],
        }
        if outcome.checkpoint is not None:
            row["checkpoint"] = {"path": outcome.checkpoint.path, "step": outcome.checkpoint.step}
        row.setdefault("completionTime", timestamp(_attempt_finished_at(stage, observed) or now))
    return row


def _ended(ended: AttemptEnd) -> Status:
    return {
        "attempt": ended.attempt,
        "action": ended.action,
        "reason": ended.reason,
        "message": ended.message[:MESSAGE_LENGTH],
        "disruptions": ended.disruptions,
        "failures": ended.failures,
        **({} if ended.step is None else {"step": ended.step}),
        "time": timestamp(ended.ended_at),
    }


def _stage_phase(stage: Stage, observed: ObservedJob, decision: Decision) -> str:
    if stage_progress.succeeded(stage.name, observed):
        return "Succeeded"
    if decision.stage != stage.name:
        return "Pending"
    if decision.phase in ("Failed", "Suspended", "Suspending"):
        return decision.phase
    if decision.phase == DELETING:
        return "Suspending"
    if decision.phase == "Finalizing":
        return "Failed" if decision.ending == "failed" else "Succeeded"
    return "Running" if decision.attempt is not None else "Pending"


def _progress_fields(progress: Progress, step: int) -> Status:
    """Return the fields of a row that an orchestrator reports. `step`: the last one; a resume repeats steps."""
    row: Status = {}
    if progress.metrics:  # server-side apply would turn an emptied map into null, which the schema rejects
        row["metrics"] = {name: _number(v) for name, v in progress.metrics.items()}
    if progress.total_steps is not None:  # the steps of a Filter or Evaluate stage mean nothing to a person
        row |= {"step": min(max(step, progress.step), progress.total_steps), "totalSteps": progress.total_steps}
    if progress.checkpoint is not None:
        row["checkpoint"] = {"path": progress.checkpoint.path, "step": progress.checkpoint.step}
    if progress.mlflow_run_id is not None:
        row["mlflowRunId"] = progress.mlflow_run_id
    return row


def _number(value: float) -> str:
    """Return a decimal as text: clients of the API do not read floats alike."""
    return f"{value:.4g}"


def _attempt_finished_at(stage: Stage, observed: ObservedJob) -> float | None:
    last = observed.attempts(stage.name).get(stage_progress.last_attempt(stage, observed))
    return job_finished_at(last) if last is not None else None


def _share_done(job: AgenticRLJob, rows: list[Status], progress: Progress | None) -> float:
    """Share of the curriculum that is done. Every stage that trains has the same weight, the others a fifth of it.

    `progress`: of the current attempt.
    """
    total = done = 0.0
    for stage, row in zip(job.spec.stages, rows, strict=True):
        weight = 1.0 if stage.learns else 0.2
        total += weight
        if row["phase"] == "Succeeded":
            done += weight
        elif row.get("totalSteps"):
            done += weight * min(1.0, float(row.get("step") or 0) / row["totalSteps"])
        elif progress is not None and progress.stage == stage.name and not stage.learns and progress.rollouts_total:
            done += weight * min(1.0, progress.rollouts_done / progress.rollouts_total)
    return done / total if total else 0.0


def _roles(observed: ObservedJob, decision: Decision) -> list[Status]:
    """Return the ready and desired pods per role; the trainer's are those of the current attempt."""
    rows = []
    if decision.attempt is not None:
        child = observed.attempts(decision.attempt.stage).get(decision.attempt.number)
        desired = wanted_pods(child) if child is not None else 0
        ready = int((child.get("status") or {}).get("ready") or 0) if child is not None else 0
        rows.append({"name": "trainer", "ready": ready, "desired": desired})
    if decision.serving:
        for role in ("rollout", "teacher", "judge", "executor", "redis", "environment", "agent"):
            ready, desired = ready_of(observed, role)
            if role != "rollout" and not desired:
                continue
            rows.append({"name": role, "ready": ready, "desired": desired})
    return rows
