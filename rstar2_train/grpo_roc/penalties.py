"""The two penalties of Resample-on-Correct, from recorded counts, never from text.

They rank the correct rollouts of a group by the quality of their traces (paper §2.2.3, eqs. 4 and 5).
`rollout/scoring.py` computes them once per trajectory; `resample` converts them to sampling weights. Imports only the
standard library.
"""

from __future__ import annotations

NO_CALL_PENALTY = 0.5
"""p_err of a trajectory without a tool call: worse than clean calls, better than failing ones (eq. 4)."""


def error_penalty(*, calls: int, errors: int) -> float:
    """Return p_err of eq. 4: the share of tool calls that failed, or 0.5 if there is none.

    Args:
        calls: tool calls of the model, malformed ones included.
        errors: tool errors: malformed, unknown tool, exception, time, memory or output limit.

    Raises:
        ValueError: unless 0 <= errors <= calls.
    """
    if not 0 <= errors <= calls:
        raise ValueError(f"errors must be between 0 and calls: errors={errors}, calls={calls}")
    return errors / calls if calls else NO_CALL_PENALTY


def format_penalty(*, answers: int, turns: int, balanced: bool) -> float:
    """Return p_format of eq. 5: 1 without an answer, else the answers after the first per turn, at most 1.

    Args:
        answers: complete answer blocks in the model's own text.
        turns: assistant turns, the first one included.
        balanced: whether every answer tag is closed, in order; if not, p_format is 1.

    Raises:
        ValueError: for negative counts, or an answer in no turn.
    """
    if answers < 0 or turns < 0 or (answers and not turns):
        raise ValueError(f"impossible counts: answers={answers}, turns={turns}")
    if not answers or not balanced:
        return 1.0
    return min(1.0, (answers - 1) / turns)
