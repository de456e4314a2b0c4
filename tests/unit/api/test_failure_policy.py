"""The failure policy that the operator and `rstar2 run` share."""

import pytest

from rstar2_train.api.contracts import Outcome
from rstar2_train.api.failure_policy import after_attempt
from rstar2_train.api.job import FailurePolicy, FailureRule


def outcome(kind: str, reason: str, *, retryable: bool = False) -> Outcome:
    return Outcome(stage="s", attempt=1, outcome=kind, reason=reason, retryable=retryable)


@pytest.mark.parametrize(
    ("code", "ended", "restarts", "action", "counts"),
    [
        (0, outcome("completed", "Completed"), 0, "NextStage", False),
        (0, outcome("advanced", "AllCorrect"), 0, "NextStage", False),
        (75, outcome("suspended", "Suspended"), 0, "Suspend", False),
        (76, outcome("failed", "EngineUnavailable", retryable=True), 0, "RestartStage", True),
        (78, outcome("failed", "BadData"), 0, "FailJob", False),
        (70, outcome("failed", "Defect"), 0, "RestartStage", True),
        (-9, None, 0, "RestartStage", True),
        (0, None, 0, "RestartStage", True),  # exit code 0 without an outcome
        (-9, None, 2, "FailJob", False),
    ],
)
def test_failure_policy_default_by_exit_code_and_outcome(code, ended, restarts, action, counts) -> None:
    """Without rules the exit code and the outcome determine the action."""
    decision = after_attempt(
        exit_code=code, outcome=ended, policy=FailurePolicy(max_restarts=2), counted_restarts=restarts
    )
    assert (decision.action, decision.counts) == (action, counts)


def test_failure_policy_first_matching_rule_decides() -> None:
    """Rules precede the default, and the first match decides."""
    policy = FailurePolicy(
        max_restarts=0,
        rules=[
            FailureRule(on_exit_codes=[70], action="FailJob"),
            FailureRule(on_reasons=["Crashed"], action="RestartStage", counts_towards_max=False),
            FailureRule(on_reasons=["JudgeUnavailable"], action="RestartStage", counts_towards_max=False),
        ],
    )
    ask = lambda code, ended: after_attempt(exit_code=code, outcome=ended, policy=policy, counted_restarts=5)  # noqa: E731
    assert ask(70, outcome("failed", "Defect")).action == "FailJob"
    assert ask(-9, None).action == "RestartStage"
    assert ask(76, outcome("failed", "JudgeUnavailable", retryable=True)).action == "RestartStage"
    limited = ask(76, outcome("failed", "EngineUnavailable", retryable=True))
    assert limited.action == "FailJob"
    assert "maxRestarts" in limited.reason
