"""Eqs. 4 and 5: hand-computed values and worked traces."""

from __future__ import annotations

import pytest

from rstar2_train.grpo_roc.penalties import error_penalty, format_penalty


@pytest.mark.parametrize(
    ("calls", "errors", "expected"),
    [(0, 0, 0.5), (1, 0, 0.0), (1, 1, 1.0), (2, 1, 0.5), (4, 1, 0.25), (3, 2, 2 / 3)],
)
def test_error_penalty_is_the_share_of_failed_calls(calls: int, errors: int, expected: float) -> None:
    """Eq. 4; a trajectory without calls has 0.5."""
    assert error_penalty(calls=calls, errors=errors) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("answers", "turns", "expected"),
    [(0, 0, 1.0), (0, 3, 1.0), (1, 1, 0.0), (1, 5, 0.0), (2, 3, 1 / 3), (2, 1, 1.0), (5, 2, 1.0), (3, 4, 0.5)],
)
def test_format_penalty_counts_answers_after_the_first(answers: int, turns: int, expected: float) -> None:
    """Eq. 5, at most 1."""
    assert format_penalty(answers=answers, turns=turns, balanced=True) == pytest.approx(expected)


def test_format_penalty_unbalanced_tags_is_one() -> None:
    """An unclosed answer tag is no answer."""
    assert format_penalty(answers=1, turns=2, balanced=False) == 1.0


@pytest.mark.parametrize(
    ("trace", "calls", "errors", "answers", "turns", "balanced", "p_err", "p_format"),
    [
        ("one turn, no tool, one answer", 0, 0, 1, 1, True, 0.5, 0.0),
        ("two turns, clean call", 1, 0, 1, 2, True, 0.0, 0.0),
        ("two turns, the call timed out", 1, 1, 1, 2, True, 1.0, 0.0),
        ("two turns, malformed call", 1, 1, 1, 2, True, 1.0, 0.0),
        ("two turns, NameError", 1, 1, 1, 2, True, 1.0, 0.0),
        ("two turns, success that prints the word error", 1, 0, 1, 2, True, 0.0, 0.0),
        ("three turns, two answers", 2, 0, 2, 3, True, 0.0, 1 / 3),
        ("no answer", 1, 0, 0, 2, True, 0.0, 1.0),
        ("unclosed answer", 1, 0, 0, 2, False, 0.0, 1.0),
    ],
)
def test_penalties_of_worked_traces(
    trace: str, calls: int, errors: int, answers: int, turns: int, balanced: bool, p_err: float, p_format: float
) -> None:
    """The penalties of worked traces, as the definitions give them."""
    assert error_penalty(calls=calls, errors=errors) == pytest.approx(p_err), trace
    assert format_penalty(answers=answers, turns=turns, balanced=balanced) == pytest.approx(p_format), trace


@pytest.mark.parametrize(("calls", "errors"), [(1, 2), (0, 1), (3, -1)])
def test_error_penalty_impossible_counts_raise(calls: int, errors: int) -> None:
    """More errors than calls, or negative counts, are rejected."""
    with pytest.raises(ValueError, match="errors"):
        error_penalty(calls=calls, errors=errors)


@pytest.mark.parametrize(("answers", "turns"), [(-1, 1), (1, 0), (0, -1)])
def test_format_penalty_impossible_counts_raise(answers: int, turns: int) -> None:
    """Negative counts, or an answer in no turn, are rejected."""
    with pytest.raises(ValueError, match="impossible"):
        format_penalty(answers=answers, turns=turns, balanced=True)
