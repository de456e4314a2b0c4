"""The metrics of instructions, compared with values that were computed by hand."""

import pytest

from rstar2_train.benchmarks.ifeval.figures import instruction_metrics
from rstar2_train.benchmarks.ifeval.instructions import encode_instructions, read_instructions
from rstar2_train.evaluation.sample_result import SampleResult
from rstar2_train.evaluation.statistics import figure_metrics, measure
from rstar2_train.rewards.verdict import Verdict

COMMA, QUOTED = {"id": "punctuation:no_comma"}, {"id": "startend:quotation"}
BOTH, COMMA_ONLY = (encode_instructions(read_instructions(rows)) for rows in ([COMMA, QUOTED], [COMMA]))


def row(prompt: str, gold: str, answer: str | None, *, failed: bool = False) -> SampleResult:
    right = answer is not None and set(answer.split(", ")) <= {"strict", "42"}
    verdict: Verdict = "correct" if right else "wrong" if answer else "no_answer"
    return SampleResult(prompt_id=prompt, sample=0, verdict=verdict, failed=failed, answer=answer, gold=gold)


ROWS = [
    row("i/1", BOTH, "strict, strict"),
    row("i/1", BOTH, "strict, loose"),
    row("i/1", BOTH, "no, strict"),
    row("i/1", BOTH, None),
    row("i/2", COMMA_ONLY, "loose"),
    row("i/2", COMMA_ONLY, None, failed=True),
    row("m/1", "42", "42"),
]


def test_measure_of_instructions_equals_manual_computation() -> None:
    """The first prompt is followed in 1/4 of its samples (loose: 2/4), its instructions in 2/4 and 2/4 (loose: 2/4 and
    3/4).
    """
    evaluation = measure(ROWS)
    figures = evaluation.instructions
    assert figures is not None
    assert (figures.prompts, figures.instructions) == (2, 3)
    assert figures.prompt_strict == pytest.approx((1 / 4 + 0) / 2) == measure(ROWS[:-1]).pass_at_1
    assert figures.prompt_loose == pytest.approx((2 / 4 + 1) / 2)
    assert figures.instruction_strict == pytest.approx((2 / 4 + 2 / 4 + 0) / 3)
    assert figures.instruction_loose == pytest.approx((2 / 4 + 3 / 4 + 1) / 3)
    assert figures.kinds == {"punctuation:no_comma": pytest.approx(0.25), "startend:quotation": pytest.approx(0.5)}
    tracked = figure_metrics(evaluation)
    assert tracked["prompt_loose"] == figures.prompt_loose
    assert tracked["instruction_strict"] == figures.instruction_strict


def test_measure_without_instructions_has_no_metrics() -> None:
    """Without instructions there are no metrics for them."""
    assert instruction_metrics(ROWS[-1:]) is None
    evaluation = measure(ROWS[-1:])
    assert evaluation.instructions is None and "prompt_strict" not in figure_metrics(evaluation)
