"""spec.failurePolicy: the action after an attempt of a stage, for the operator and for `rstar2 run`. Pure."""

from __future__ import annotations

from dataclasses import dataclass
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


def after_attempt(
    *, exit_code: int, outcome: Outcome | None, policy: FailurePolicy, counted_restarts: int | None
) -> FailureDecision:
    """Return the next action after an attempt.

    `exit_code`: of the orchestrator (negative or above 128 if a signal killed it); `outcome`: of this attempt, None if
    it wrote none, which is a crash; `counted_restarts`: of the whole job so far, None if maxRestarts does not apply.
    """
    if exit_code == ExitCode.DONE and outcome is not None and outcome.ended_well:
        return FailureDecision("NextStage")
    if exit_code == ExitCode.SUSPENDED and outcome is not None and outcome.outcome == "suspended":
        return FailureDecision("Suspend")
    reason = f"{outcome.reason}: {outcome.message}" if outcome is not None else _crash(exit_code)
    rule = matching_rule(policy, exit_code, outcome)
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


def matching_rule(policy: FailurePolicy, exit_code: int, outcome: Outcome | None) -> FailureRule | None:
    """Return the first rule that matches an attempt; arguments as for `after_attempt`."""
    reason = outcome.reason if outcome is not None else "Crashed"
    return next((rule for rule in policy.rules if exit_code in rule.on_exit_codes or reason in rule.on_reasons), None)


def _crash(exit_code: int) -> str:
    if exit_code < 0:
        return f"Crashed: the orchestrator was killed by signal {-exit_code}"
    return f"Crashed: the orchestrator exited with code {exit_code} without an outcome"
