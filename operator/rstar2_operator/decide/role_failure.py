"""spec.failurePolicy.rules with `roles`: failures of engines, judge, executors and Redis end the attempt.

Without such a rule their controllers replace them, and the attempt continues.
"""

from __future__ import annotations

from collections.abc import Iterator

from rstar2_operator import names
from rstar2_operator.decide.containers import changed_at
from rstar2_operator.decide.decision import ROLE_FAILED, Verdict
from rstar2_operator.decide.disruption import DISRUPTION_TARGET, REJECTED, cause_of_rejection
from rstar2_operator.decide.ended_attempt import end_attempt
from rstar2_operator.decide.facts import Facts
from rstar2_operator.observed import Object, created_at, labels, own_statuses, seconds, true_conditions
from rstar2_train.api.failure_policy import Failure, matching_rule

DISRUPTED = "Disrupted"
"""Reason of rules, for the condition DisruptionTarget."""


def role_failure(facts: Facts) -> Verdict:
    """End the running attempt if a rule matches a failure since its start."""
    policy = facts.job.spec.failure_policy
    if facts.running_job is None or all(rule.roles == ["trainer"] for rule in policy.rules):
        return None
    since = created_at(facts.running_job, facts.now)
    for pod in facts.observed.pods:
        for failure, description in _failures(pod, since):
            rule = matching_rule(policy, failure)
            if rule is not None:
                message = f"Pod/{pod['metadata']['name']} of role {failure.role} failed: {description}."
                fails = rule.action == "FailJob"
                return end_attempt(facts, ROLE_FAILED, message, fails=fails, counts=rule.counts_towards_max)
    return None


def _failures(pod: Object, since: float) -> Iterator[tuple[Failure, str]]:
    """Return every failure of a pod of another role than the trainer's after `since`, with a description."""
    role, status = labels(pod).get(names.ROLE_LABEL, ""), pod.get("status") or {}
    if names.STAGE_LABEL in labels(pod):
        return
    for container in own_statuses(pod):
        for state in (container.get("state") or {}, container.get("lastState") or {}):
            ended = state.get("terminated") or {}
            if ended.get("exitCode") and ended.get("finishedAt") and seconds(ended["finishedAt"]) >= since:
                code, reason = int(ended["exitCode"]), str(ended.get("reason", ""))
                description = f"container {container.get('name', '')} exited with code {code} ({reason})"
                yield Failure(exit_code=code, reasons=frozenset({reason}), role=role), description
    rejected = cause_of_rejection(pod)
    if (status.get("reason") or rejected) and changed_at(pod) >= since:  # it stays until the garbage collection
        reasons = {status.get("reason", ""), REJECTED} if rejected else {status["reason"]}
        description = rejected or f"{status['reason']}: {status.get('message', '')}"
        yield Failure(reasons=frozenset(reasons), role=role), description
    for kind in true_conditions(pod, since=since):
        named = frozenset({DISRUPTED} if kind == DISRUPTION_TARGET else ())
        failure = Failure(reasons=named, pod_conditions=frozenset({kind}), role=role)
        yield failure, f"condition {kind} is True"
