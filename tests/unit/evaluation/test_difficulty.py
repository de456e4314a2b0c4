"""Which problems a filter keeps, what it counts, and that its file is one that training reads."""

from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from rstar2_train.data.problems import Problem, read_problems
from rstar2_train.evaluation.difficulty import (
    FilterReport,
    count_solved,
    filter_table,
    histogram,
    kept_problems,
    problems_to_jsonl,
)
from rstar2_train.evaluation.sample_result import SampleResult

SAMPLES = 4


def problem(name: str) -> Problem:
    return Problem(id=name, problem=f"what is {name}?\u2028", answer="é", slice="L1", hard=True)


def rows(name: str, ended: str) -> list[SampleResult]:
    """A sample a letter: right, wrong, lost."""
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
def test_what_is_solved_less_often_stays(drop: int, kept: list[str]) -> None:
    counts = count_solved(PROBLEMS, ROWS, drop_solved=drop)
    assert [one.id for one in kept_problems(PROBLEMS, counts)] == kept
    assert [(one.solved, one.valid) for one in counts] == [(4, 4), (3, 4), (0, 4), (3, 3)]
    assert histogram(counts, samples=SAMPLES) == {0: 1, 1: 0, 2: 0, 3: 2, 4: 1}


def test_a_lost_sample_was_not_seen_solved() -> None:
    lost = [SampleResult("p", 0, "correct"), SampleResult("p", 1, "correct", failed=True)]
    (counts,) = count_solved([problem("p")], lost, drop_solved=2)
    assert (counts.solved, counts.valid, counts.kept) == (1, 1, True)


@given(st.lists(st.text("rwl", min_size=SAMPLES, max_size=SAMPLES), min_size=1, max_size=8), st.integers(1, SAMPLES))
def test_the_counts_add_up_in_any_order(ended: list[str], drop: int) -> None:
    problems = [problem(str(number)) for number in range(len(ended))]
    found = [row for number, text in enumerate(ended) for row in rows(str(number), text)]
    counts = count_solved(problems, reversed(found), drop_solved=drop)
    assert [one.solved for one in counts] == [text.count("r") for text in ended]
    numbers = histogram(counts, samples=SAMPLES)
    assert sum(numbers.values()) == len(problems)
    assert len(kept_problems(problems, counts)) == sum(number for times, number in numbers.items() if times < drop)


def test_the_file_is_read_back_as_the_same_problems(tmp_path: Path) -> None:
    (tmp_path / "kept.jsonl").write_text(problems_to_jsonl(PROBLEMS), encoding="utf-8")
    assert list(read_problems(tmp_path / "kept.jsonl")) == PROBLEMS


def test_the_table_has_a_row_for_each_count_and_says_what_was_dropped() -> None:
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
