"""What to do when an attempt of a stage has ended: one failure policy for the operator and `rstar2 run`. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rstar2_train.api.contracts import ExitCode, Outcome
from rstar2_train.api.job import FailurePolicy, FailureRule

Action = Literal["NextStage", "Suspend", "RestartStage", "FailJob"]


@dataclass(frozen=True, slots=True)
class FailureDecision:
    """What happens next, and why."""

    action: Action
    counts: bool = False
    """Whether the restart counts towards maxRestarts."""
    why: str = ""


def after_attempt(
    *, exit_code: int, outcome: Outcome | None, policy: FailurePolicy, counted_restarts: int | None
) -> FailureDecision:
    """The next action after an attempt.

    `exit_code`: of the driver (negative or above 128 when a signal ended it); `outcome`: of this attempt, None when it
    wrote none, which is a crash; `counted_restarts`: of the whole job so far, None where maxRestarts does not hold.
    """
    if exit_code == ExitCode.DONE and outcome is not None and outcome.ended_well:
        return FailureDecision("NextStage")
    if exit_code == ExitCode.SUSPENDED and outcome is not None and outcome.outcome == "suspended":
        return FailureDecision("Suspend")
    why = f"{outcome.reason}: {outcome.message}" if outcome is not None else _crash(exit_code)
    rule = next((rule for rule in policy.rules if _matches(rule, exit_code, outcome)), None)
    if rule is not None and rule.action == "FailJob":
        return FailureDecision("FailJob", why=why)
    if rule is None and exit_code == ExitCode.CONFIGURATION:
        return FailureDecision("FailJob", why=why)
    counts = rule.counts_towards_max if rule is not None else True
    if counts and counted_restarts is not None and counted_restarts >= policy.max_restarts:
        return FailureDecision(
            "FailJob", why=f"{why} (after {counted_restarts} restarts, the most that maxRestarts allows)"
        )
    return FailureDecision("RestartStage", counts=counts, why=why)


def _matches(rule: FailureRule, exit_code: int, outcome: Outcome | None) -> bool:
    reason = outcome.reason if outcome is not None else "Crashed"
    return exit_code in rule.on_exit_codes or reason in rule.on_reasons


def _crash(exit_code: int) -> str:
    if exit_code < 0:
        return f"Crashed: the driver was ended by signal {-exit_code}"
    return f"Crashed: the driver exited with {exit_code} and left no outcome"
