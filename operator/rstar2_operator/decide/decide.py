"""`decide(job, observed, now)`: the whole policy in the order in which its questions are asked. Pure.

Finished? Too long? Storage prepared? Suspended? Released? Which stage, which attempt? Each answer is a Plan; nothing
here remembers anything: what must survive a restart of the operator stands in the objects themselves.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from rstar2_operator import names
from rstar2_operator.decide import pending_deadline, stage_progress
from rstar2_operator.decide.conditions import ready_of
from rstar2_operator.decide.diagnostics import diagnoses
from rstar2_operator.decide.failure_policy import RestartCounters, counters, decide_next, restart_at
from rstar2_operator.decide.plan import FINAL, Ending, Phase, Plan, StageAttempt
from rstar2_operator.observed import (
    Object,
    ObservedJob,
    condition,
    is_true,
    job_finished_at,
    labels,
    seconds,
    timestamp,
)
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.stages import Stage

CAUSES = 2
"""Of what kept pods from running, told when they are released."""
REPORT_SECONDS = 300.0
"""How long the end of a job waits for its report."""


def decide(job: AgenticRLJob, observed: ObservedJob, *, now: float) -> Plan:
    """What the job should have at `now` (seconds since the epoch)."""
    for last in FINAL:
        if is_true(observed.job, last):
            return _finished(job, observed, last, now=now)
    began, limit = _active_since(observed, now), job.spec.active_deadline_seconds
    if limit is None or began is None or job.spec.suspend or (stage := stage_progress.current(job, observed)) is None:
        return _running(job, observed, now=now)
    if now >= began + limit:
        message = f"active for longer than spec.activeDeadlineSeconds ({limit} s)"
        return _fail(observed, "DeadlineExceeded", message, stage=stage, now=now)
    return _earlier(_running(job, observed, now=now), began + limit)


def _active_since(observed: ObservedJob, now: float) -> float | None:
    """When the job was begun or last resumed, as the deadline of a batch Job counts; None before its first status."""
    began, suspended = observed.status.get("startTime"), condition(observed.job, "Suspended")
    if began is None or suspended is None:
        return None
    return now if suspended["status"] == "True" else seconds(suspended["lastTransitionTime"])


def _running(job: AgenticRLJob, observed: ObservedJob, *, now: float) -> Plan:
    stage = stage_progress.current(job, observed)
    told = counters(observed, _last_job(stage, observed))
    if job.spec.suspend:
        return _suspended(stage, observed, told)
    if observed.secret_missing:
        return _without_secret(stage, observed, told)
    again = pending_deadline.resume_at(job, observed)
    if again is not None and now < again:
        admitted = condition(observed.job, "Admitted")
        message = str(admitted["message"]) if admitted is not None else ""
        return _counted(told, phase="Pending", why="PendingDeadline", message=message, stage=_name(stage),
                        released=True, wake_at=again)  # fmt: skip
    preparation = stage_progress.preparation(observed)
    if preparation in ("missing", "running"):
        plan = _counted(told, phase="Preparing", why="Preparing", stage=_name(stage), prepare=True,
                        message="data and model are being brought into the storage")  # fmt: skip
        return _or_release(plan, job, observed, began=_created(_prepare(observed), now), now=now)
    if preparation == "failed":
        return _fail(observed, *_why_unprepared(observed), stage=stage, now=now)
    if stage is None:
        return _report(observed, ending="completed", told=told, why="Completed", message="every stage is done", now=now)
    return _at_stage(job, stage, observed, told, now=now)


def _at_stage(job: AgenticRLJob, stage: Stage, observed: ObservedJob, told: RestartCounters, *, now: float) -> Plan:
    number = stage_progress.last_attempt(stage, observed)
    last = observed.attempts(stage.name).get(number)
    serving = stage.needs_engines
    if last is not None and last["metadata"].get("deletionTimestamp"):
        last = None  # it is on its way out: its pods say when it is gone
    if last is not None and job_finished_at(last) is None:
        attempt = StageAttempt(stage.name, number, told.restarts, told.counted)
        plan = _counted(told, phase="Running", why="Running", stage=stage.name, serving=serving, attempt=attempt,
                        message=f"attempt {number} of stage {stage.name}")  # fmt: skip
        if _gets_on(stage, number, observed):
            return plan  # what is replaced from now on is a role's own affair
        return _or_release(plan, job, observed, began=_created(last, now), now=now)
    if _alive(stage, observed):
        message = f"waiting for the pods of attempt {number} to end"
        return _counted(told, phase="Restarting", why="OldPodsEnding", message=message, stage=stage.name,
                        serving=serving)  # fmt: skip
    why = ""
    if last is not None:
        decision = decide_next(job, stage, observed, number=number, counted=told.counted)
        if decision.action == "FailJob":
            return _fail(observed, "StageFailed", f"stage {stage.name}: {decision.why}", stage=stage, now=now)
        if decision.action == "RestartStage":
            why, wait = decision.why, restart_at(last, restarts=told.restarts)
            if now < wait:
                return _counted(told, phase="Restarting", why="BackOff", message=f"stage {stage.name}: {why}",
                                stage=stage.name, serving=serving, wake_at=wait)  # fmt: skip
            # Counted when the new attempt is made, whose Job carries the numbers: never twice.
            told = RestartCounters(told.restarts + 1, told.counted + decision.counts)
    attempt = StageAttempt(stage.name, number + 1, told.restarts, told.counted)
    message = f"attempt {number + 1} of stage {stage.name}" + (f", after {why}" if why else "")
    return _counted(told, phase="Running", why="Restarted" if why else "Running", message=message, stage=stage.name,
                    serving=serving, attempt=attempt)  # fmt: skip


def _gets_on(stage: Stage, number: int, observed: ObservedJob) -> bool:
    """Whether the attempt's driver is at work, or waits for nothing but what comes up by itself."""
    progress = observed.progress()
    if progress is None or (progress.stage, progress.attempt) != (stage.name, number):
        return False
    if progress.phase != "Starting" or not stage.needs_engines:
        return True
    counts = [ready_of(observed, role) for role in ("redis", "judge", "executor", "rollout")]
    return all(ready or not desired for ready, desired in counts)


def _suspended(stage: Stage | None, observed: ObservedJob, told: RestartCounters) -> Plan:
    """Without attempt and roles in the plan everything is deleted: the driver gets SIGTERM and checkpoints."""
    if stage is not None and _alive(stage, observed):
        message = "its pods are ending; a driver that trains writes its checkpoint first"
        return _counted(told, phase="Suspending", why="Suspending", stage=stage.name, message=message,
                        serving=stage.needs_engines)  # fmt: skip
    message = "nothing is held but the storage; set spec.suspend to false to go on"
    if stage is not None and _ended_by_force(stage, observed):
        message += (f" from the last checkpoint: the driver of stage {stage.name} was ended before it had written one "
                    "(spec.trainer.terminationGracePeriodSeconds)")  # fmt: skip
    return _counted(told, phase="Suspended", why="Suspended", stage=_name(stage), message=message)


def _ended_by_force(stage: Stage, observed: ObservedJob) -> bool:
    """Whether the driver of the last attempt was at work and never told how it ended."""
    number, progress, outcome = (
        stage_progress.last_attempt(stage, observed),
        observed.progress(),
        observed.outcome(stage.name),
    )
    at_work = progress is not None and (progress.stage, progress.attempt) == (stage.name, number)
    return at_work and (outcome is None or outcome.attempt != number)


def _without_secret(stage: Stage | None, observed: ObservedJob, told: RestartCounters) -> Plan:
    """Everything that holds the lost passwords ends, as for a suspension; then all is made anew, with others."""
    message = f"the Secret {names.secrets(observed.name)} was deleted: all that used its passwords is started anew"
    serving = stage is not None and stage.needs_engines and _alive(stage, observed)
    return _counted(told, phase="Restarting", why="SecretMissing", stage=_name(stage), serving=serving, message=message)


def _fail(observed: ObservedJob, why: str, message: str, *, stage: Stage | None, now: float) -> Plan:
    told = counters(observed, _last_job(stage, observed))
    return _report(observed, ending="failed", told=told, why=why, message=message, stage=_name(stage), now=now)


def _report(
    observed: ObservedJob,
    *,
    ending: Ending,
    told: RestartCounters,
    why: str,
    message: str,
    now: float,
    stage: str | None = None,
) -> Plan:
    """The report comes before the end, so that who waits for the end finds it."""
    report = observed.child("Job", names.report(observed.name))
    over = report is not None and job_finished_at(report) is not None
    given_up = _asked_for_report(observed, report, now) + REPORT_SECONDS
    nothing = stage_progress.preparation(observed) in ("missing", "failed")
    if nothing or over or now >= given_up:
        last: Phase = "Complete" if ending == "completed" else "Failed"
        return _counted(told, phase=last, why=why, message=message, stage=stage, report=ending if over else None)
    return _counted(told, phase="Finishing", why=why, message=message, stage=stage, report=ending, wake_at=given_up)


def _asked_for_report(observed: ObservedJob, report: Object | None, now: float) -> float:
    """Since when there should be a report: also one that the API server refuses must not hold the end up."""
    told = condition(observed.job, "Training")
    if report is None and told is not None and observed.status.get("phase") == "Finishing":
        return seconds(told["lastTransitionTime"])
    return _created(report, now)


def _finished(job: AgenticRLJob, observed: ObservedJob, phase: Phase, *, now: float) -> Plan:
    ended = condition(observed.job, phase)
    assert ended is not None
    told = counters(observed, None)
    ttl = job.spec.ttl_seconds_after_finished
    expires = None if ttl is None else seconds(ended["lastTransitionTime"]) + ttl
    return _counted(told, phase=phase, why=ended["reason"], message=ended["message"],
                    stage=observed.status.get("stage"), remove=expires is not None and now >= expires,
                    wake_at=expires)  # fmt: skip


def _or_release(plan: Plan, job: AgenticRLJob, observed: ObservedJob, *, began: float, now: float) -> Plan:
    """The plan, unless its pods have waited for nodes for too long: then nothing, for a while."""
    deadline = pending_deadline.release_at(job, observed, began=began)
    if deadline is None:
        return plan
    if now < deadline:
        return _earlier(plan, deadline)
    waiting = pending_deadline.waiting(observed)
    names_shown = ", ".join(waiting[:3]) + (", ..." if len(waiting) > 3 else "")
    message = (
        f"after {job.spec.pending_deadline_seconds} s not all pods could run (waiting: {names_shown}): "
        f"all were released, and are tried again at {timestamp(now + pending_deadline.pause(job, observed))}"
    )
    message += "".join(f"\n{cause}" for cause in diagnoses(observed, now=now)[:CAUSES])
    return Plan(phase="Pending", why="PendingDeadline", message=message, stage=plan.stage, restarts=plan.restarts,
                counted=plan.counted, released=True)  # fmt: skip


def _prepare(observed: ObservedJob) -> Object | None:
    return observed.child("Job", names.prepare(observed.name))


def _why_unprepared(observed: ObservedJob) -> tuple[str, str]:
    outcome = observed.prepared()
    if outcome is not None:
        return outcome.reason, outcome.message
    failed = condition(_prepare(observed) or {}, "Failed") or {}
    return "PrepareFailed", f"{failed.get('reason', 'the Job failed')}: {failed.get('message', '')}"


def _alive(stage: Stage, observed: ObservedJob) -> bool:
    """Whether a pod of any attempt of the stage may still write."""
    return any(
        labels(pod).get(names.STAGE_LABEL) == stage.name
        and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
        for pod in observed.pods
    )


def _last_job(stage: Stage | None, observed: ObservedJob) -> Object | None:
    return None if stage is None else observed.attempts(stage.name).get(stage_progress.last_attempt(stage, observed))


def _created(thing: Object | None, now: float) -> float:
    return now if thing is None else seconds(thing["metadata"]["creationTimestamp"])


def _name(stage: Stage | None) -> str | None:
    return None if stage is None else stage.name


def _earlier(plan: Plan, when: float) -> Plan:
    wake = when if plan.wake_at is None else min(plan.wake_at, when)
    return dataclasses.replace(plan, wake_at=wake)


def _counted(told: RestartCounters, **fields: Any) -> Plan:
    return Plan(restarts=told.restarts, counted=told.counted, **fields)
