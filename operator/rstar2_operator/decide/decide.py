"""`decide(job, observed, now)`: the policies in their order; the first that returns a decision applies.

All state that must survive a restart of the operator is in the objects themselves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from rstar2_operator.decide.active_deadline import active_deadline
from rstar2_operator.decide.attempt import next_attempt, running_attempt
from rstar2_operator.decide.decision import Decision, Defer, Verdict, wake_earlier
from rstar2_operator.decide.deleted_attempt import deleted_attempt
from rstar2_operator.decide.deletion import deletion
from rstar2_operator.decide.deletion_blocked import stop_pods
from rstar2_operator.decide.ended_attempt import ended_attempt, restart_ended
from rstar2_operator.decide.facts import Facts
from rstar2_operator.decide.failure_policy import failure_policy
from rstar2_operator.decide.finalize import completion
from rstar2_operator.decide.kueue import kueue
from rstar2_operator.decide.node_loss import node_loss, remove_lost_pods
from rstar2_operator.decide.orchestrator_exit import orchestrator_exit
from rstar2_operator.decide.pending_deadline import pending_deadline
from rstar2_operator.decide.pod_termination import pod_termination
from rstar2_operator.decide.role_failure import role_failure
from rstar2_operator.decide.shared_secret import shared_secret
from rstar2_operator.decide.storage import storage
from rstar2_operator.decide.stuck import stuck
from rstar2_operator.decide.suspend import suspend
from rstar2_operator.decide.ttl_after_finished import ttl_after_finished
from rstar2_operator.observed import ObservedJob
from rstar2_train.api.job import AgenticRLJob

Policy = Callable[[Facts], Verdict]
POLICIES: tuple[Policy, ...] = (
    remove_lost_pods,
    stop_pods,
    deletion,
    ttl_after_finished,
    active_deadline,
    suspend,
    shared_secret,
    ended_attempt,
    deleted_attempt,
    pending_deadline,
    storage,
    completion,
    kueue,
    node_loss,
    orchestrator_exit,
    role_failure,
    stuck,
    running_attempt,
    pod_termination,
    restart_ended,
    failure_policy,
    next_attempt,
)
"""Every policy, in order. The last one always returns a decision."""


def decide(job: AgenticRLJob, observed: ObservedJob, *, now: float) -> Decision:
    """Return what the job should have at `now` (seconds since the epoch)."""
    facts, deferred = Facts(job, observed, now), list[Defer]()
    for policy in POLICIES:
        verdict = policy(facts)
        if isinstance(verdict, Decision):
            return _with_deferred(verdict, deferred)
        if verdict is not None:
            deferred.append(verdict)
    raise AssertionError("no policy returned a decision")


def _with_deferred(decision: Decision, deferred: list[Defer]) -> Decision:
    """Return the decision with the wake-ups and removals of the policies that deferred to it."""
    for verdict in deferred:
        decision = wake_earlier(decision, verdict.wake_at)
        decision = dataclasses.replace(decision, workload=decision.workload or verdict.workload)
    lost = tuple(pod for verdict in deferred for pod in verdict.remove_pods)
    stopped = tuple(pod for verdict in deferred for pod in verdict.stop_pods)
    return dataclasses.replace(decision, remove_pods=decision.remove_pods + lost, stop_pods=stopped)
