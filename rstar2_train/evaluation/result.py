"""What `rstar2 eval` found: all figures of a whole evaluation, of each benchmark and of each problem. Pure.

Between the samples and what people read (`html_report.py`, the terminal's table, `evaluation.json`). The figures are
those of an Evaluate stage (`statistics.measure`), whose record is in here as it stands.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rstar2_train.api.stages import Sampling
from rstar2_train.evaluation.records import Evaluation, RecordModel
from rstar2_train.evaluation.sample_result import SampleResult
from rstar2_train.evaluation.statistics import group_by, measure, tool_error_ratio

STAGE = "eval"
"""What stands in the record where a job's has its stage."""
NORMAL_95 = 1.959964
"""Standard errors that a 95 % confidence interval reaches to each side."""


class ProblemResult(RecordModel):
    """One problem."""

    id: str
    """`<benchmark>/<id>`."""
    benchmark: str
    slice: str
    gold: str
    """The known answer, or the instructions."""
    samples: int
    """Valid samples."""
    excluded: int
    """Samples lost to infrastructure; in no other figure here."""
    correct: int
    """Valid samples with the right answer."""
    mean_tokens: float | None
    """Response tokens a sample, tool output included."""
    calls_per_sample: float | None
    tool_error_ratio: float | None
    """Failed tool calls over tool calls; null without calls."""
    truncated: int
    """Samples that a limit stopped before they answered."""
    answers: dict[str, int]
    """The final answers that were given, with how often, the most frequent first; none for samples without one.

    With instructions: what became of each, in their order (strict, loose or no)."""


class EvaluationResult(RecordModel):
    """An evaluation: `evaluation.json`."""

    format: int = 1
    """Version of this file."""
    model: str
    """The folder, or the name at the endpoint."""
    endpoint: str | None
    """Where the model was served; null: by this command."""
    settings: dict[str, Any]
    """All that the samples depend on, the model's fingerprint included."""
    samples_per_problem: int
    overall: Evaluation
    """Over all benchmarks; the same record as an Evaluate stage writes."""
    confidence: tuple[float, float] | None
    """95 % interval of overall.pass_at_1; null with fewer than two problems."""
    benchmarks: dict[str, Evaluation]
    """The same figures of each benchmark alone."""
    benchmark_confidence: dict[str, tuple[float, float] | None]
    """95 % interval of each benchmark's pass_at_1."""
    problems: list[ProblemResult]
    """In the order of the files."""


def build_result(
    rows: Sequence[SampleResult],
    *,
    benchmarks: Mapping[str, str],
    model: str,
    endpoint: str | None,
    settings: dict[str, Any],
    samples: int,
    sampling: Sampling,
    seconds: float,
) -> EvaluationResult:
    """All figures of `rows`: every sample of every problem, lost ones included.

    `benchmarks`: benchmark by problem id. `seconds`: wall time of the sampling, in the run that ended it.
    """
    overall = measure(rows, stage=STAGE, sampling=sampling, seconds=seconds, benchmarks=benchmarks)
    each = {
        name: measure(group, stage=name, sampling=sampling, seconds=seconds)
        for name, group in group_by(rows, lambda row: benchmarks[row.prompt_id]).items()
    }
    return EvaluationResult(
        model=model,
        endpoint=endpoint,
        settings=settings,
        samples_per_problem=samples,
        overall=overall,
        confidence=confidence(overall),
        benchmarks=each,
        benchmark_confidence={name: confidence(evaluation) for name, evaluation in each.items()},
        problems=[_problem(group, benchmarks) for group in group_by(rows, lambda row: row.prompt_id).values()],
    )


def confidence(evaluation: Evaluation) -> tuple[float, float] | None:
    """95 % interval of pass@1: mean ± 1.96 standard errors clustered by problem, within 0..1; None without an error."""
    mean, error = evaluation.pass_at_1, evaluation.pass_at_1_se
    if mean is None or error is None:
        return None
    return max(0.0, mean - NORMAL_95 * error), min(1.0, mean + NORMAL_95 * error)


def result_table(result: EvaluationResult) -> RenderableType:
    """The terminal's table: a row a benchmark, and one over all where there are several; then that of instructions."""
    table = Table(
        title=Text(f"{result.model}: samples a problem {result.samples_per_problem}, T {result.overall.temperature:g}"),
        title_justify="left", box=box.SIMPLE_HEAD, title_style="bold", pad_edge=False,
    )  # fmt: skip
    largest = max(result.overall.pass_at_k, default=None)
    table.add_column("benchmark", no_wrap=True)
    headings = ["problems", "pass@1", "95 %", "mean\ntokens", "calls", "tool\nerrors", "in correct", "cut off"]
    if largest is not None:
        headings.insert(3, f"pass@{largest}")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    rows = [(name, one, result.benchmark_confidence[name]) for name, one in result.benchmarks.items()]
    if len(rows) > 1:
        rows.append(("all", result.overall, result.confidence))
    for name, one, interval in rows:
        cells = [
            str(one.problems),
            format_number(one.pass_at_1, "{:.3f}"),
            "-" if interval is None else "{:.3f} to {:.3f}".format(*interval),
            format_number(one.mean_tokens, "{:.1f}"),
            format_number(one.calls_per_sample, "{:.2f}"),
            format_number(one.tool_error_ratio, "{:.1%}"),
            format_number(one.tool_error_ratio_correct, "{:.1%}"),
            format_number(one.truncated, "{:.1%}"),
        ]
        if largest is not None:
            cells.insert(3, format_number(one.pass_at_k.get(largest), "{:.3f}"))
        table.add_row(name, *cells)
    return table if result.overall.instructions is None else Group(table, _render_following(result))


def _render_following(result: EvaluationResult) -> Table:
    """Of each benchmark that is scored by instructions."""
    table = Table(title="instructions followed", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("benchmark", no_wrap=True)
    for heading in ("prompts", "strict", "loose", "instructions", "strict", "loose"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, one in result.benchmarks.items():
        if (found := one.instructions) is not None:
            accuracies = (found.prompt_strict, found.prompt_loose, found.instruction_strict, found.instruction_loose)
            whole_strict, whole_loose, strict, loose = (f"{accuracy:.3f}" for accuracy in accuracies)
            table.add_row(name, str(found.prompts), whole_strict, whole_loose, str(found.instructions), strict, loose)
    return table


def format_number(value: float | None, form: str) -> str:
    """A figure for people; a dash where nothing was measured."""
    return "-" if value is None else form.format(value)


def _problem(rows: Sequence[SampleResult], benchmarks: Mapping[str, str]) -> ProblemResult:
    first = rows[0]
    valid = [row for row in rows if not row.failed]
    count = len(valid)
    answers = Counter(row.answer for row in valid if row.answer is not None)
    return ProblemResult(
        id=first.prompt_id,
        benchmark=benchmarks[first.prompt_id],
        slice=first.slice,
        gold=first.gold,
        samples=count,
        excluded=len(rows) - count,
        correct=sum(row.correct for row in valid),
        mean_tokens=math.fsum(row.response_tokens for row in valid) / count if count else None,
        calls_per_sample=sum(row.calls for row in valid) / count if count else None,
        tool_error_ratio=tool_error_ratio(valid),
        truncated=sum(row.truncated for row in valid),
        answers=dict(answers.most_common()),
    )
