"""The result of an evaluation against a table computed by hand, and its page: whole, escaped, the same again."""

import dataclasses
from html.parser import HTMLParser
from io import StringIO

import pytest
from rich.console import Console

from rstar2_train.api.stages import Sampling
from rstar2_train.evaluation.html_report import render_page
from rstar2_train.evaluation.result import NORMAL_95, EvaluationResult, build_result, confidence, result_table
from rstar2_train.evaluation.sample_result import SampleResult
from rstar2_train.evaluation.statistics import measure
from rstar2_train.rewards.instructions import as_gold, read_instructions
from rstar2_train.rollout.trajectory import Segment, StopReason, ToolCall, Trajectory

HOSTILE = "<script>alert(1)</script>\"'&{{ 7*7 }}[red]"
SAMPLING = Sampling(temperature=0.6, max_response_tokens=100, max_turns=4)


def row(
    prompt: str, sample: int, *, answer: str | None, tokens: int = 10, calls: str = "", stop: StopReason = "answered"
) -> SampleResult:
    """Right when `answer` is 1."""
    return SampleResult.of(
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


def result(rows: list[SampleResult] = ROWS) -> EvaluationResult:
    return build_result(
        rows,
        benchmarks=BENCHMARKS,
        model=HOSTILE,
        endpoint=None,
        settings={"seed": 0},
        samples=2,
        sampling=SAMPLING,
        seconds=3,
    )


def test_figures_by_hand() -> None:
    """Problems: 2/2, 0/2, 1/1 (one lost). Mean 2/3; clustered error sqrt((1/9 + 4/9 + 1/9) / 6) = 1/3."""
    found = result()
    assert found.overall == measure(ROWS, stage="eval", sampling=SAMPLING, seconds=3, benchmarks=BENCHMARKS)
    assert (found.overall.pass_at_1, found.overall.excluded) == (pytest.approx(2 / 3), 1)
    assert found.confidence == (pytest.approx(2 / 3 - NORMAL_95 / 3), 1.0)
    assert found.benchmarks["a"].pass_at_1 == 0.5 and found.benchmarks["a"].pass_at_k == {2: 0.5}
    assert found.benchmarks["b"].pass_at_1 == 1.0 and found.benchmark_confidence["b"] is None
    first, second, third = found.problems
    assert (first.correct, first.samples, first.excluded, first.answers) == (2, 2, 0, {"1": 2})
    assert (first.mean_tokens, first.calls_per_sample, first.tool_error_ratio) == (15.0, 2.0, 0.25)
    assert (second.correct, second.truncated, second.answers) == (0, 1, {HOSTILE: 1})
    assert (third.samples, third.excluded, third.mean_tokens, third.tool_error_ratio) == (1, 1, 50.0, None)


def test_the_file_is_read_back_as_it_was() -> None:
    found = result()
    assert EvaluationResult.model_validate_json(found.model_dump_json()) == found


def test_the_interval_stays_within_what_a_share_can_be() -> None:
    rows = [row(f"p{number}", 0, answer="2" if number else "1") for number in range(3)]
    low, high = confidence(measure(rows, stage="", sampling=SAMPLING, seconds=0)) or (None, None)
    assert low == 0.0 and high == pytest.approx(1 / 3 + NORMAL_95 / 3)


class Page(HTMLParser):
    """What a browser would see."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def test_the_page_is_whole_and_what_models_wrote_is_text() -> None:
    text = render_page(result())
    page = Page(text)
    assert page.open == [] and "script" not in page.tags
    assert page.words.count(HOSTILE) == 3  # title, heading, an answer
    for shown in ("66.7%", "2 / 2", "0 / 2", "1 / 1", "Samples lost to infrastructure: 1.", "pass@2"):
        assert shown in page.words, shown
    assert "http" not in text.replace("http-equiv", "")  # nothing from elsewhere
    assert render_page(result()) == text


def test_the_page_and_the_terminal_show_how_instructions_were_followed() -> None:
    keywords = {"id": "keywords:existence", "keywords": [HOSTILE]}
    gold = as_gold(read_instructions([{"id": "punctuation:no_comma"}, keywords]))
    rows = [
        dataclasses.replace(row("b/1", number, answer="strict, no" if number else "loose, strict"), gold=gold)
        for number in range(4)
    ]
    found = result([*ROWS[:4], *rows])
    page = Page(render_page(found))
    assert page.open == [] and "script" not in page.tags
    for shown in ("Instructions", "loose, strict", "75.0%", "punctuation:no_comma; keywords:existence (keywords ["):
        assert shown in page.words, shown
    assert HOSTILE.split("&")[0] in page.words
    out = StringIO()
    Console(file=out, width=120).print(result_table(found))
    (line,) = [
        line.split() for line in out.getvalue().partition("instructions followed")[2].splitlines() if "b " in line
    ]
    assert line == ["b", "1", "0.000", "0.250", "2", "0.500", "0.625"]


def test_the_page_of_one_benchmark_without_any_valid_sample() -> None:
    lost = [row("a/1", number, answer=None, stop="infrastructure") for number in range(2)]
    page = Page(render_page(result(lost)))
    assert "0 / 0" in page.words and "none" in page.words


def test_the_terminals_table() -> None:
    out = StringIO()
    Console(file=out, width=120).print(result_table(result()))
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
