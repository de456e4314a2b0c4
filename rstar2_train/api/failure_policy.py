"""spec.failurePolicy: the action after an attempt of a stage, for the operator and for `rstar2 run`. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from rstar2_train.api.contracts import ExitCode, Outcome
from rstar2_train.api.job import FailurePolicy, FailureRule

Action = Literal["NextStage", "Suspend", "RestartStage", "FailJob"]


@dataclass(frozen=True, slots=True)
class FailureDecision:
    """The next action."""

    action: Action
    counts: bool = False
    """Whether the restart counts towards maxRestarts."""
    reason: str = ""
    """Why: the outcome's reason and message."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The facts that a rule of the policy is compared with."""

    exit_code: int | None = None
    reasons: frozenset[str] = frozenset()
    pod_conditions: frozenset[str] = frozenset()
    """Types of the pod conditions that are True."""
    role: str = "trainer"


@dataclass(frozen=True, slots=True)
class CountedRestarts:
    """Restarts that count towards maxRestarts, in the window of spec.failurePolicy.windowSeconds."""

    number: int = 0
    since: float | None = None
    """First of them, which starts the window; seconds since the epoch."""

    def at(self, when: float, policy: FailurePolicy) -> CountedRestarts:
        """Return the restarts in the window of a failure at `when`."""
        window = policy.window_seconds
        expired = window is not None and self.since is not None and when >= self.since + window
        return CountedRestarts() if expired else self

    def plus_one(self, when: float) -> CountedRestarts:
        """Return the restarts with that after a failure at `when`."""
        return CountedRestarts(self.number + 1, when if self.since is None else self.since)


def after_attempt(
    *,
    exit_code: int,
    outcome: Outcome | None,
    policy: FailurePolicy,
    counted_restarts: int | None,
    pods: Failure = Failure(),
) -> FailureDecision:
    """Return the next action after an attempt.

    `exit_code`: of the orchestrator (negative or above 128 if a signal killed it); `outcome`: of this attempt, None if
    it wrote none, which is a crash; `counted_restarts`: of the whole job so far, None if maxRestarts does not apply;
    `pods`: reasons and conditions of the attempt's pods.
    """
    if exit_code == ExitCode.DONE and outcome is not None and outcome.ended_well:
        return FailureDecision("NextStage")
    if exit_code == ExitCode.SUSPENDED and outcome is not None and outcome.outcome == "suspended":
        return FailureDecision("Suspend")
    reason = f"{outcome.reason}: {outcome.message}" if outcome is not None else _crash(exit_code)
    rule = matching_rule(policy, attempt_failure(exit_code, outcome, pods))
    fails = exit_code == ExitCode.CONFIGURATION if rule is None else rule.action == "FailJob"
    if fails:
        return FailureDecision("FailJob", reason=reason)
    counts = rule.counts_towards_max if rule is not None else True
    if counts and counted_restarts is not None and counted_restarts >= policy.max_restarts:
        return FailureDecision("FailJob", reason=exhausted(reason, counted_restarts))
    return FailureDecision("RestartStage", counts=counts, reason=reason)


def exhausted(reason: str, restarts: int) -> str:
    """Return the reason of a failure after the last restart that maxRestarts allows."""
    return f"{reason} (after {restarts} restarts, the maximum of spec.failurePolicy.maxRestarts)"


def attempt_failure(exit_code: int, outcome: Outcome | None, pods: Failure = Failure()) -> Failure:
    """Return the failure of an attempt; arguments as for `after_attempt`."""
    reason = outcome.reason if outcome is not None else "Crashed"
    return replace(pods, exit_code=exit_code, reasons=pods.reasons | {reason})


def matching_rule(policy: FailurePolicy, failure: Failure) -> FailureRule | None:
    """Return the first rule that matches a failure."""
    return next((rule for rule in policy.rules if _matches(rule, failure)), None)


def _matches(rule: FailureRule, failure: Failure) -> bool:
    return failure.role in rule.roles and (
        failure.exit_code in rule.on_exit_codes
        or not failure.reasons.isdisjoint(rule.on_reasons)
        or not failure.pod_conditions.isdisjoint(rule.on_pod_conditions)
    )


def _crash(exit_code: int) -> str:
    if exit_code < 0:
        return f"Crashed: the orchestrator was killed by signal {-exit_code}"
    return f"Crashed: the orchestrator exited with code {exit_code} without an outcome"
