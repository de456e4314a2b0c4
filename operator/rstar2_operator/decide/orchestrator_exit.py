"""An attempt that has ended by itself, while its pods still run. Its own end decides, not that of its pods.

Admission webhooks inject containers that never exit (a service mesh, a secrets agent), and an orchestrator may hang
after its outcome. Then the Job never finishes. The Job is deleted some time later, as for a stage that succeeded.
"""

from __future__ import annotations

from rstar2_operator.decide.decision import ORCHESTRATOR_EXITED, Defer, Verdict
from rstar2_operator.decide.ended_attempt import end_attempt
from rstar2_operator.decide.facts import Facts
from rstar2_operator.decide.failure_policy import decide_next
from rstar2_operator.decide.stage_progress import EXIT_SECONDS, first_pod
from rstar2_operator.observed import injected_containers


def orchestrator_exit(facts: Facts) -> Verdict:
    """End the running attempt if its orchestrator has exited, or reported a failure, EXIT_SECONDS ago."""
    job, exited_at = facts.running_job, facts.exited_at
    if facts.stage is None or job is None or exited_at is None:
        return None
    if facts.now < exited_at + EXIT_SECONDS:
        return Defer(wake_at=exited_at + EXIT_SECONDS)
    decision = decide_next(facts, facts.stage, job)
    pod = first_pod(job, facts.observed)
    message = decision.reason
    if pod is not None:
        cause = f"container {', '.join(injected)}" if (injected := injected_containers(pod)) else "its orchestrator"
        message += f". Pod/{pod['metadata']['name']} does not exit: {cause} still runs"
    return end_attempt(
        facts,
        ORCHESTRATOR_EXITED,
        message,
        fails=decision.action == "FailJob",
        counts=decision.counts,
        disruptions=decision.disruptions,
    )
