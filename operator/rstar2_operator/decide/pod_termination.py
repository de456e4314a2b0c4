"""Pods of at most one attempt: nothing new starts, and no job ends, until the pods of other attempts are gone.

A pod that terminates still holds its accelerators and may write to the storage, up to its grace period.
"""

from __future__ import annotations

from collections.abc import Sequence

from rstar2_operator import names
from rstar2_operator.decide import stage_progress
from rstar2_operator.decide.decision import WAITING_FOR_PODS, Decision, Verdict
from rstar2_operator.decide.facts import Facts
from rstar2_operator.observed import ObservedJob, is_alive, labels


def pod_termination(facts: Facts) -> Verdict:
    """Wait while pods of earlier attempts run. Existing engines stay, because a checkpoint may need them."""
    observed = facts.observed
    attempts = stage_progress.running_attempts(observed)
    if not attempts:
        return None
    name, number = attempts[0]
    succeeded = all(stage_progress.succeeded(stage, observed) for stage, _ in attempts)
    stage = name if succeeded and observed.stage_status(name) else facts.stage_name
    return Decision(
        stage,
        facts.restarts,
        # After a success the job is not pending: its stage is the old one for some seconds more.
        phase="Running" if succeeded else "Pending",
        reason=WAITING_FOR_PODS,
        message=f"Waiting for the pods of attempt {number} of stage {name} to terminate.",
        serving=facts.has_engines and (not succeeded or facts.needs_engines),
        wake_at=exit_deadline(observed, now=facts.now),
    )


def exit_deadline(observed: ObservedJob, *, now: float) -> float | None:
    """Return when the pods of a succeeded stage that do not exit will be terminated; None if there are none."""
    stages = {stage for stage, _ in stage_progress.running_attempts(observed)}
    times = [stage_progress.hung_at(stage, observed) for stage in stages if stage_progress.succeeded(stage, observed)]
    return min((when for when in times if when is not None and when > now), default=None)


def running_pods(observed: ObservedJob, *, except_roles: Sequence[str] = ()) -> list[str]:
    """Return the names of all pods that have not terminated, of any role."""
    alive = (pod for pod in observed.pods if is_alive(pod))
    return sorted(pod["metadata"]["name"] for pod in alive if labels(pod).get(names.ROLE_LABEL) not in except_roles)
