"""spec.suspend: the orchestrator writes a checkpoint, then everything but the storage is deleted.

A plan without attempt and roles deletes their objects. The deletion of the attempt's Job sends SIGTERM to the
orchestrator. Engines and judge stay until its pods are gone, because the checkpoint may need them. The job is suspended
when no pod is left.
"""

from __future__ import annotations

from rstar2_operator.decide import stage_progress
from rstar2_operator.decide.failure_policy import RestartCounters
from rstar2_operator.decide.plan import Plan
from rstar2_operator.decide.pod_termination import listed, running_pods
from rstar2_operator.observed import ObservedJob
from rstar2_train.api.stages import Stage


def suspend(stage: Stage | None, observed: ObservedJob, restarts: RestartCounters) -> Plan:
    """Return the plan of a job with spec.suspend: true. `stage`: its current stage, None if all have succeeded."""
    name = None if stage is None else stage.name
    if stage_progress.running_attempts(observed):
        message = "Waiting for pods to terminate. A training orchestrator writes a checkpoint first."
        return restarts.plan(phase="Suspending", reason="Suspending", stage=name, message=message,
                             serving=stage is not None and stage.needs_engines)  # fmt: skip
    if pods := running_pods(observed):
        message = f"Waiting for pods to terminate: {listed(pods)}."
        return restarts.plan(phase="Suspending", reason="Suspending", stage=name, message=message)
    message = "All pods are deleted; the storage is kept. Set spec.suspend to false to resume."
    if stage is not None and _killed_before_checkpoint(stage, observed):
        message += (
            f" Stage {stage.name} will resume from its last checkpoint: its orchestrator was killed before it could "
            "write a new one. If it needs more time, increase spec.trainer.terminationGracePeriodSeconds."
        )
    return restarts.plan(phase="Suspended", reason="Suspended", stage=name, message=message)


def _killed_before_checkpoint(stage: Stage, observed: ObservedJob) -> bool:
    """Whether the orchestrator of the last attempt reported progress and never an outcome."""
    number = stage_progress.last_attempt(stage, observed)
    progress, outcome = observed.progress(), observed.outcome(stage.name)
    reported = progress is not None and (progress.stage, progress.attempt) == (stage.name, number)
    return reported and (outcome is None or outcome.attempt != number)
