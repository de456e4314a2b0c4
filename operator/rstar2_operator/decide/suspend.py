"""spec.suspend: the orchestrator writes a checkpoint, then everything but the storage is deleted.

A decision without attempt and roles deletes their objects. The deletion of the attempt's Job sends SIGTERM to the
orchestrator. Engines and judge stay until its pods are gone, because the checkpoint may need them. The job is suspended
when no pod is left.
"""

from __future__ import annotations

from rstar2_operator.decide import stage_progress
from rstar2_operator.decide.decision import Decision, Verdict, listed
from rstar2_operator.decide.facts import Facts
from rstar2_operator.decide.pod_termination import running_pods


def suspend(facts: Facts) -> Verdict:
    """End the pods of a job with spec.suspend: true."""
    if not facts.job.spec.suspend:
        return None
    if stage_progress.running_attempts(facts.observed) or facts.running_job is not None:
        message = "Waiting for pods to terminate. A training orchestrator writes a checkpoint first."
        return Decision(
            facts.stage_name,
            facts.restarts,
            phase="Suspending",
            reason="Suspending",
            message=message,
            serving=facts.needs_engines,
        )
    if pods := running_pods(facts.observed):
        message = f"Waiting for pods to terminate: {listed(pods)}."
        return Decision(facts.stage_name, facts.restarts, phase="Suspending", reason="Suspending", message=message)
    message = "All pods are deleted; the storage is kept. Set spec.suspend to false to resume."
    if _killed_before_checkpoint(facts):
        message += (
            f" Stage {facts.stage_name} will resume from its last checkpoint: its orchestrator was killed before it "
            "could write a new one. If it needs more time, increase spec.trainer.terminationGracePeriodSeconds."
        )
    return Decision(facts.stage_name, facts.restarts, phase="Suspended", reason="Suspended", message=message)


def _killed_before_checkpoint(facts: Facts) -> bool:
    """Return whether the orchestrator of the last attempt reported progress and never an outcome."""
    if facts.stage is None:
        return False
    progress, outcome = facts.observed.progress(), facts.observed.outcome(facts.stage.name)
    reported = progress is not None and (progress.stage, progress.attempt) == (facts.stage.name, facts.attempt)
    return reported and (outcome is None or outcome.attempt != facts.attempt)
