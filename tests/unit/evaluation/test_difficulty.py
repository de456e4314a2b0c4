"""The problems that a filter keeps, its counts, and its file, which training reads."""

from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from rstar2_train.cli.evaluation_tables import filter_table
from rstar2_train.data.problems import Problem, read_problems
from rstar2_train.evaluation.difficulty import (
    FilterReport,
    count_solved,
    histogram,
    kept_problems,
    problems_to_jsonl,
)
from rstar2_train.evaluation.sample_result import SampleResult

SAMPLES = 4


def problem(name: str) -> Problem:
    return Problem(id=name, problem=f"what is {name}?\u2028", answer="é", slice="L1", hard=True)


def rows(name: str, ended: str) -> list[SampleResult]:
    """Return one sample per letter: r for correct, w for wrong, l for lost."""
    return [
        SampleResult(
            name, number, "correct" if letter == "r" else "wrong" if letter == "w" else "internal", letter == "l"
        )
        for number, letter in enumerate(ended)
    ]


ENDED = {"all": "rrrr", "most": "rrwr", "none": "wwww", "unseen": "rlrr"}
PROBLEMS = [problem(name) for name in ENDED]
ROWS = [row for name, ended in ENDED.items() for row in rows(name, ended)]


@pytest.mark.parametrize(
    ("drop", "kept"), [(4, ["most", "none", "unseen"]), (3, ["none"]), (1, ["none"]), (5, list(ENDED))]
)
def test_kept_problems_are_solved_less_often_than_limit(drop: int, kept: list[str]) -> None:
    """A problem that is solved fewer than `drop_solved` times is kept."""
    counts = count_solved(PROBLEMS, ROWS, drop_solved=drop)
    assert [problem.id for problem in kept_problems(PROBLEMS, counts)] == kept
    assert [(count.solved, count.valid) for count in counts] == [(4, 4), (3, 4), (0, 4), (3, 3)]
    assert histogram(counts, samples=SAMPLES) == {0: 1, 1: 0, 2: 0, 3: 2, 4: 1}


def test_count_solved_ignores_lost_samples() -> None:
    """A lost sample counts as not solved."""
    lost = [SampleResult("p", 0, "correct"), SampleResult("p", 1, "internal", failed=True)]
    (counts,) = count_solved([problem("p")], lost, drop_solved=2)
    assert (counts.solved, counts.valid, counts.kept) == (1, 1, True)


@given(st.lists(st.text("rwl", min_size=SAMPLES, max_size=SAMPLES), min_size=1, max_size=8), st.integers(1, SAMPLES))
def test_histogram_sums_to_problems_in_any_order(ended: list[str], drop: int) -> None:
    """The histogram counts every problem once, in any order of the samples."""
    problems = [problem(str(number)) for number in range(len(ended))]
    samples = [row for number, text in enumerate(ended) for row in rows(str(number), text)]
    counts = count_solved(problems, reversed(samples), drop_solved=drop)
    assert [count.solved for count in counts] == [text.count("r") for text in ended]
    numbers = histogram(counts, samples=SAMPLES)
    assert sum(numbers.values()) == len(problems)
    assert len(kept_problems(problems, counts)) == sum(number for times, number in numbers.items() if times < drop)


def test_problems_to_jsonl_round_trips(tmp_path: Path) -> None:
    """The file of the kept problems gives the same problems."""
    (tmp_path / "kept.jsonl").write_text(problems_to_jsonl(PROBLEMS), encoding="utf-8")
    assert list(read_problems(tmp_path / "kept.jsonl")) == PROBLEMS


def test_filter_table_has_row_per_solve_count() -> None:
    """The table has a row per number of solved samples and marks the dropped ones."""
    counts = count_solved(PROBLEMS, ROWS, drop_solved=3)
    report = FilterReport(
        model="[red]m", endpoint=None, file="f", settings={}, samples_per_problem=SAMPLES, drop_solved=3, problems=4,
        kept=1, dropped=3, excluded=1, histogram=histogram(counts, samples=SAMPLES), seconds=1, counts=counts,
    )  # fmt: skip
    page = StringIO()
    Console(file=page, width=100).print(filter_table(report))
    text = page.getvalue()
    assert "[red]m: 1 of 4 problems kept, 3 dropped" in text
    lines = [line.split() for line in text.splitlines() if line.strip()[:1].isdigit()]
    assert [(int(line[0]), int(line[1]), line[-1] == "dropped") for line in lines] == [
        (0, 1, False), (1, 0, False), (2, 0, False), (3, 2, True), (4, 1, True),
    ]  # fmt: skip
    assert FilterReport.model_validate_json(report.model_dump_json()) == report
