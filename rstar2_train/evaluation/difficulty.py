"""Selects problems by difficulty: a filter drops problems that a model solves too often to learn from (paper §4.3).

The Filter stage writes the kept problems and the report; `rstar2 filter` runs that stage. The same samples give the
same file, byte for byte.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from rstar2_train.api.state_dir import StageState
from rstar2_train.data.problems import Problem
from rstar2_train.evaluation.records import RecordModel, write_record
from rstar2_train.evaluation.sample_result import SampleResult
from rstar2_train.utils.files import write_atomically

SEED_NAME = "filter"
"""Second part of the seed of every filter, after the job's seed."""


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
    """The report of a filter, next to the kept problems. Counts are numbers of problems by default."""

    format: int = 1
    """Version of this file."""
    model: str
    """Folder of the model, or its name at the endpoint."""
    endpoint: str | None
    """URL of the endpoint that served the model; null: engines of the job."""
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


def build_filter_report(
    problems: Sequence[Problem],
    rows: Sequence[SampleResult],
    *,
    model: str,
    endpoint: str | None,
    file: str,
    settings: dict[str, Any],
    samples: int,
    drop_solved: int,
    seconds: float,
) -> FilterReport:
    """Return the report of `rows`: every sample of every problem, with the lost ones. Pure."""
    counts = count_solved(problems, rows, drop_solved=drop_solved)
    kept = sum(count.kept for count in counts)
    return FilterReport(
        model=model,
        endpoint=endpoint,
        file=file,
        settings=settings,
        samples_per_problem=samples,
        drop_solved=drop_solved,
        problems=len(problems),
        kept=kept,
        dropped=len(problems) - kept,
        excluded=sum(row.failed for row in rows),
        histogram=histogram(counts, samples=samples),
        seconds=round(seconds, 3),
        counts=counts,
    )


def save_filter(folder: StageState, report: FilterReport, problems: Sequence[Problem]) -> None:
    """Write the report and the kept problems; without kept problems, the report alone."""
    write_record(folder.filter_report_file, report)
    kept = kept_problems(problems, report.counts)
    if kept:
        write_atomically(folder.kept_file, problems_to_jsonl(kept))
    else:
        folder.kept_file.unlink(missing_ok=True)


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
