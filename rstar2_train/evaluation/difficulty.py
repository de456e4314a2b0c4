"""Selects problems by difficulty: a filter drops problems that a model solves too often to learn from (paper §4.3).

Shared by the Filter stage and `rstar2 filter`: the same samples give the same file, byte for byte. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from rstar2_train.data.problems import Problem
from rstar2_train.evaluation.records import RecordModel
from rstar2_train.evaluation.sample_result import SampleResult

SEED_NAME = "filter"
"""Second part of the seed of every filter, after the job's seed."""
BAR = 32
"""Length of the table's longest bar, in characters."""


class SolveCounts(RecordModel):
    """The solved samples of one problem."""

    id: str
    solved: int
    """Valid samples with the correct answer."""
    valid: int
    """Samples that infrastructure did not lose."""
    kept: bool
    """Whether the filter keeps the problem."""


class FilterReport(RecordModel):
    """The report of a filter: the JSON file next to the kept problems. Counts are numbers of problems by default."""

    format: int = 1
    """Version of this file."""
    model: str
    """Folder of the model, or its name at the endpoint."""
    endpoint: str | None
    """URL of the endpoint that served the model; null: this command served it."""
    file: str
    """File of the filtered problems."""
    settings: dict[str, Any]
    """All settings that determine the samples, with the model's fingerprint."""
    samples_per_problem: int
    drop_solved: int
    """Minimum correct samples of a dropped problem."""
    problems: int
    kept: int
    dropped: int
    excluded: int
    """Samples lost to infrastructure failures; they count as not solved."""
    histogram: dict[int, int]
    """Number of solved samples, from 0 -> number of problems."""
    seconds: float
    """Wall time of the sampling in the last run, in seconds."""
    counts: list[SolveCounts]
    """Every problem, in the order of the file."""


def count_solved(problems: Sequence[Problem], rows: Iterable[SampleResult], *, drop_solved: int) -> list[SolveCounts]:
    """Return the solved samples of each problem. A problem is kept if it has fewer than `drop_solved`.

    A lost sample counts as not solved.
    """
    solved = dict.fromkeys((problem.id for problem in problems), 0)
    valid = dict(solved)
    for row in rows:
        solved[row.prompt_id] += row.correct
        valid[row.prompt_id] += not row.failed
    return [
        SolveCounts(id=name, solved=times, valid=valid[name], kept=times < drop_solved)
        for name, times in solved.items()
    ]


def kept_problems(problems: Sequence[Problem], counts: Iterable[SolveCounts]) -> list[Problem]:
    """Return the kept problems, in their order."""
    kept = {count.id for count in counts if count.kept}
    return [problem for problem in problems if problem.id in kept]


def histogram(counts: Iterable[SolveCounts], *, samples: int) -> dict[int, int]:
    """Return number of solved samples (0 to `samples`) -> number of problems."""
    problems = dict.fromkeys(range(samples + 1), 0)
    for count in counts:
        problems[count.solved] += 1
    return problems


def problems_to_jsonl(problems: Iterable[Problem]) -> str:
    """Return the problems as JSON Lines, the format of `grpo.data`."""
    return "".join(json.dumps(problem.to_row()) + "\n" for problem in problems)


def filter_table(report: FilterReport) -> Table:
    """Return the table of the terminal, with one row per number of solved samples."""
    table = Table(
        title=Text(f"{report.model}: {report.kept} of {report.problems} problems kept, {report.dropped} dropped"),
        title_justify="left", box=box.SIMPLE_HEAD, title_style="bold", pad_edge=False,
    )  # fmt: skip
    table.add_column(f"solved\nof {report.samples_per_problem}", justify="right", no_wrap=True)
    table.add_column("problems", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("", no_wrap=True)
    for times, number in report.histogram.items():
        dropped = times >= report.drop_solved
        style = "red" if dropped else "green"
        bar = Text(_bar(number, report.histogram), style=style)
        table.add_row(
            str(times), str(number), f"{number / report.problems:.1%}", bar, "dropped" if dropped and number else ""
        )
    return table


def _bar(number: int, counts: Mapping[int, int]) -> str:
    """Return a bar proportional to `number`, rounded up, so that a single problem is visible."""
    return "█" * -(-BAR * number // max(1, *counts.values()))
