"""Which problems are too easy: those that a model solves so often that they teach it nothing more (paper §4.3).

Pure. For the Filter stage and `rstar2 filter` alike: the same samples keep the same problems, as the same bytes.
"""

from __future__ import annotations

import dataclasses
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
"""Follows the job's seed in the seed of every filter: the same problems meet the same random numbers."""
BAR = 32
"""Characters of the table's longest bar."""


class SolveCounts(RecordModel):
    """How often one problem was solved."""

    id: str
    solved: int
    """Valid samples with the right answer."""
    valid: int
    """Samples that infrastructure did not lose."""
    kept: bool


class FilterReport(RecordModel):
    """What a filter found: the JSON beside the problems that it kept. Counts are of problems unless said."""

    format: int = 1
    """Version of this file."""
    model: str
    """The folder, or the name at the endpoint."""
    endpoint: str | None
    """Where the model was served; null: by this command."""
    file: str
    """The problems that were filtered."""
    settings: dict[str, Any]
    """All that the samples depend on, the model's fingerprint included."""
    samples_per_problem: int
    drop_solved: int
    """A problem with at least so many right samples was dropped."""
    problems: int
    kept: int
    dropped: int
    excluded: int
    """Samples lost to infrastructure; they count as not solved, since nobody saw them solved."""
    histogram: dict[int, int]
    """How many problems were solved so many times, for every number of times from 0 on."""
    seconds: float
    """Wall time of the sampling, in the run that ended it."""
    counts: list[SolveCounts]
    """Every problem, in the order of the file."""


def count_solved(problems: Sequence[Problem], rows: Iterable[SampleResult], *, drop_solved: int) -> list[SolveCounts]:
    """How often each problem was solved, and whether it is kept: solved fewer than `drop_solved` times.

    A sample that was lost to infrastructure counts as not solved: it was not shown to be.
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
    """The problems that stay, in their order."""
    kept = {one.id for one in counts if one.kept}
    return [problem for problem in problems if problem.id in kept]


def histogram(counts: Iterable[SolveCounts], *, samples: int) -> dict[int, int]:
    """Problems by how often they were solved, for 0 to `samples` times."""
    found = dict.fromkeys(range(samples + 1), 0)
    for one in counts:
        found[one.solved] += 1
    return found


def problems_to_jsonl(problems: Iterable[Problem]) -> str:
    """The problems as JSON Lines that `grpo.data` takes."""
    return "".join(json.dumps(dataclasses.asdict(problem)) + "\n" for problem in problems)


def filter_table(report: FilterReport) -> Table:
    """The terminal's table: a row for each number of times that a problem was solved."""
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


def _bar(number: int, all_of_them: Mapping[int, int]) -> str:
    """A bar as long as `number` is beside the largest; any problem at all shows."""
    return "█" * -(-BAR * number // max(1, *all_of_them.values()))
