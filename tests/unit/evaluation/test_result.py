"""The result of an evaluation, compared with manual values, and its page: complete, escaped, reproducible."""

import dataclasses
from html.parser import HTMLParser
from io import StringIO

import pytest
from rich.console import Console

from rstar2_train.api.stages import Sampling
from rstar2_train.benchmarks.ifeval.instructions import encode_instructions, read_instructions
from rstar2_train.cli.evaluation_tables import EvaluationTables
from rstar2_train.evaluation.html_report import render_page
from rstar2_train.evaluation.records import Evaluation
from rstar2_train.evaluation.result import build_evaluation
from rstar2_train.evaluation.sample_result import SampleResult
from rstar2_train.evaluation.scores import NORMAL_95, pass_at_1
from rstar2_train.evaluation.statistics import measure
from rstar2_train.rollout.trajectory import Segment, StopReason, ToolCall, Trajectory

HOSTILE = "<script>alert(1)</script>\"'&{{ 7*7 }}[red]"
SAMPLING = Sampling(temperature=0.6, max_response_tokens=100, max_turns=4)


def row(
    prompt: str, sample: int, *, answer: str | None, tokens: int = 10, calls: str = "", stop: StopReason = "answered"
) -> SampleResult:
    """Return a sample, which is correct if `answer` is 1."""
    return SampleResult.from_trajectory(
        Trajectory(
            prompt_id=prompt,
            sample=sample,
            prompt_ids=[1],
            segments=[Segment("model", [0] * tokens)],
            calls=[ToolCall(0, "run", "", "", "ok" if letter == "o" else "error", "") for letter in calls],
            stop=stop,
            gold="1",
            answer=answer,
            verdict="correct" if answer == "1" else "wrong" if answer else "no_answer",
            slice="L1",
        )
    )


ROWS = [
    row("a/1", 0, answer="1", tokens=10, calls="oe"),
    row("a/1", 1, answer="1", tokens=20, calls="oo"),
    row("a/2", 0, answer=HOSTILE, tokens=30, calls="e"),
    row("a/2", 1, answer=None, tokens=40, stop="length"),
    row("b/1", 0, answer="1", tokens=50),
    row("b/1", 1, answer="2", tokens=9000, stop="infrastructure"),
]
BENCHMARKS = {"a/1": "a", "a/2": "a", "b/1": "b"}


def result(rows: list[SampleResult] = ROWS) -> Evaluation:
    return build_evaluation(
        rows,
        stage="eval",
        benchmarks=BENCHMARKS,
        model=HOSTILE,
        endpoint=None,
        settings={"seed": 0},
        samples=2,
        sampling=SAMPLING,
        seconds=3,
    )


def test_build_evaluation_equals_manual_computation() -> None:
    """Problems: 2/2, 0/2, 1/1 (one lost). Mean 2/3; clustered error sqrt((1/9 + 4/9 + 1/9) / 6) = 1/3."""
    evaluation = result()
    assert evaluation.benchmarks["a"] == measure(ROWS[:4])
    assert (evaluation.pass_at_1, evaluation.excluded) == (pytest.approx(2 / 3), 1)
    assert evaluation.confidence == (pytest.approx(2 / 3 - NORMAL_95 / 3), 1.0)
    assert evaluation.benchmarks["a"].pass_at_1 == 0.5 and evaluation.benchmarks["a"].pass_at_k == {2: 0.5}
    assert evaluation.benchmarks["b"].pass_at_1 == 1.0 and evaluation.benchmarks["b"].confidence is None
    first, second, third = evaluation.problem_results
    assert (first.correct, first.samples, first.excluded, first.answers) == (2, 2, 0, {"1": 2})
    assert (first.mean_tokens, first.calls_per_sample, first.tool_error_ratio) == (15.0, 2.0, 0.25)
    assert (second.correct, second.truncated, second.answers) == (0, 1, {HOSTILE: 1})
    assert (third.samples, third.excluded, third.mean_tokens, third.tool_error_ratio) == (1, 1, 50.0, None)


def test_evaluation_round_trips_as_json() -> None:
    """The JSON file gives the same result."""
    evaluation = result()
    assert Evaluation.model_validate_json(evaluation.model_dump_json()) == evaluation


def test_confidence_is_within_0_and_1() -> None:
    """The confidence interval is within 0 and 1."""
    rows = [row(f"p{number}", 0, answer="2" if number else "1") for number in range(3)]
    low, high = pass_at_1(rows).confidence or (None, None)
    assert low == 0.0 and high == pytest.approx(1 / 3 + NORMAL_95 / 3)


class Page(HTMLParser):
    """The tags and the text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_render_page_escapes_texts_of_models() -> None:
    """The page is complete HTML without scripts or external resources, and texts of models are escaped."""
    text = render_page(result())
    page = Page(text)
    assert page.open == [] and "script" not in page.tags
    assert page.text.count(HOSTILE) == 3  # title, heading, an answer
    for part in ("66.7%", "2 / 2", "0 / 2", "1 / 1", "Samples lost to infrastructure failures: 1.", "pass@2"):
        assert part in page.text, part
    assert "http" not in text.replace("http-equiv", "")  # no external resource
    assert render_page(result()) == text


def test_page_and_table_have_instruction_metrics() -> None:
    """The page and the table have the accuracy on instructions."""
    keywords = {"id": "keywords:existence", "keywords": [HOSTILE]}
    gold = encode_instructions(read_instructions([{"id": "punctuation:no_comma"}, keywords]))
    rows = [
        dataclasses.replace(row("b/1", number, answer="strict, no" if number else "loose, strict"), gold=gold)
        for number in range(4)
    ]
    evaluation = result([*ROWS[:4], *rows])
    page = Page(render_page(evaluation))
    assert page.open == [] and "script" not in page.tags
    for part in ("Instructions", "loose, strict", "75.0%", "punctuation:no_comma; keywords:existence (keywords ["):
        assert part in page.text, part
    assert HOSTILE.split("&")[0] in page.text
    out = StringIO()
    Console(file=out, width=120).print(EvaluationTables(evaluation))
    (line,) = [line.split() for line in out.getvalue().partition("Instructions")[2].splitlines() if "b " in line]
    assert line == ["b", "1", "0.000", "0.250", "2", "0.500", "0.625"]


def test_render_page_without_valid_samples() -> None:
    """The page of an evaluation without a valid sample."""
    lost = [row("a/1", number, answer=None, stop="infrastructure") for number in range(2)]
    page = Page(render_page(result(lost)))
    assert "0 / 0" in page.text and "none" in page.text


def test_result_table_has_row_per_benchmark() -> None:
    """The table has a row per benchmark and one for all."""
    out = StringIO()
    Console(file=out, width=120).print(EvaluationTables(result()))
    assert HOSTILE in out.getvalue()
    lines = {line.split()[0]: line.split() for line in out.getvalue().splitlines() if line.strip()}
    assert lines["all"][1:] == [
        "3",
        "0.667",
        "0.013",
        "to",
        "1.000",
        "0.500",
        "30.0",
        "1.00",
        "40.0%",
        "25.0%",
        "20.0%",
    ]
    assert lines["b"][1:4] == ["1", "1.000", "-"]
