"""The report of a job: one row per stage with its effect on the held-out set, as JSON and as a table.

Built from `stages/<stage>/{evaluation,outcome,attempt}.json` in the job's state directory.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from rstar2_train.api.contracts import Outcome
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.stages import Stage
from rstar2_train.evaluation.records import Evaluation, JobReport, StageReport, read_evaluation, write_record

REPORT = "report.json"
WIDE = 112
"""Minimum terminal width, in characters, for all columns of the table."""


def build_report(state: Path, job: AgenticRLJob, *, seconds: float) -> JobReport:
    """Return the report of `job` from the files in its state directory `state`.

    Stages that have not started have 0 attempts and nulls. `seconds`: wall time of the job.
    """
    rows: list[StageReport] = []
    evaluations: list[Evaluation] = []
    for stage in job.spec.stages:
        folder = state / "stages" / stage.name
        path = folder / "evaluation.json"
        evaluation = read_evaluation(path) if path.exists() else None
        rows.append(_stage_report(stage, folder, evaluation, evaluations))
        if evaluation is not None:
            evaluations.append(evaluation)
    return JobReport(job=job.metadata.name, seconds=round(seconds, 3), seed=job.spec.seed, stages=rows)


def write_report(state: Path, report: JobReport) -> Path:
    """Write `report.json` into the state directory atomically, and return its path."""
    path = state / REPORT
    write_record(path, report)
    return path


def are_comparable(first: Evaluation, second: Evaluation) -> bool:
    """Whether two evaluations have the same problems, temperature and limits."""

    def conditions(evaluation: Evaluation) -> tuple[str, float, int, int]:
        return (
            evaluation.problem_set,
            evaluation.temperature,
            evaluation.max_response_tokens,
            evaluation.max_turns,
        )

    return conditions(first) == conditions(second)


def stage_table(report: JobReport, *, width: int = WIDE) -> Table:
    """Return the table of stages: pass@1 before and after each stage, its change, tool errors, length, truncation.

    A terminal of fewer than `WIDE` columns shows the most important columns only.
    """
    table = _table(f"{report.job}: seed {report.seed}, {format_duration(report.seconds)}")
    columns: list[tuple[str, bool, Callable[[StageReport], str | Text]]] = [
        ("stage", True, lambda row: row.name),
        ("type", False, lambda row: row.type),
        ("steps", True, lambda row: "-" if row.steps is None else str(row.steps)),
        ("attempts", False, lambda row: str(row.attempts)),
        ("T", False, lambda row: "-" if row.temperature is None else f"{row.temperature:g}"),
        ("pass@1\nbefore → after", True, lambda r: _before_after(r.pass_at_1_before, r.pass_at_1, r.pass_at_1_se)),
        ("change", True, lambda row: _change(row.pass_at_1_before, row.pass_at_1)),
        ("tool errors\nin correct", True, lambda row: _percent(row.tool_error_ratio_correct)),
        ("mean\ntokens", False, lambda row: "-" if row.mean_tokens is None else f"{row.mean_tokens:.1f}"),
        ("truncated", False, lambda row: _percent(row.truncated)),
        ("outcome", False, _outcome),
    ]
    visible = [column for column in columns if column[1] or width >= WIDE]
    for header, _, _ in visible:
        is_text = header in ("stage", "type", "outcome")
        table.add_column(header, justify="left" if is_text else "right", no_wrap=header != "outcome", overflow="fold")
    for row in report.stages:
        table.add_row(*(cell(row) for _, _, cell in visible))
    return table


def slice_table(report: JobReport) -> Table | None:
    """Return the table of pass@1 per slice, and of hard problems, after each stage; None without slices."""
    names = sorted({name for row in report.stages for name in row.slices})
    hard = any(row.hard_pass_at_1 is not None for row in report.stages)
    if not names and not hard:
        return None
    table = _table("pass@1 by slice (± standard error)")
    table.add_column("stage", no_wrap=True)
    for name in [*names, *(["hard"] if hard else [])]:
        table.add_column(name, justify="right", no_wrap=True)
    for row in report.stages:
        if row.pass_at_1 is not None:
            cells = [row.slices.get(name) for name in names]
            scores = [_score(cell.pass_at_1, cell.pass_at_1_se) if cell else "-" for cell in cells]
            table.add_row(row.name, *scores, *([_score(row.hard_pass_at_1, row.hard_pass_at_1_se)] if hard else []))
    return table


def _table(title: str) -> Table:
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )


def format_duration(seconds: float) -> str:
    """Return seconds as `1 h 02 min`, `3 min 20 s` or `12 s`."""
    total = int(seconds)
    if total >= 3600:
        return f"{total // 3600} h {total % 3600 // 60:02d} min"
    return f"{total // 60} min {total % 60:02d} s" if total >= 60 else f"{total} s"


def _stage_report(stage: Stage, folder: Path, evaluation: Evaluation | None, earlier: list[Evaluation]) -> StageReport:
    outcome_path = folder / "outcome.json"
    outcome = Outcome.model_validate_json(outcome_path.read_text(encoding="utf-8")) if outcome_path.exists() else None
    steps = None
    if stage.type in ("SFT", "GRPO"):
        steps = evaluation.step if evaluation else None
        if steps is None and outcome is not None and outcome.checkpoint is not None:
            steps = outcome.checkpoint.step
    row = StageReport(
        name=stage.name,
        type=stage.type,
        steps=steps,
        attempts=_attempts(folder),
        pass_at_1=None,
        hard_pass_at_1=None,
        tool_error_ratio_correct=None,
        mean_tokens=None,
        truncated=None,
        outcome=outcome.outcome if outcome else None,
        reason=outcome.reason if outcome else None,
    )
    if evaluation is None:
        return row
    before = next((previous for previous in reversed(earlier) if are_comparable(previous, evaluation)), None)
    shared = set(Evaluation.model_fields) & set(StageReport.model_fields)
    return row.model_copy(
        update={name: getattr(evaluation, name) for name in shared}
        | {
            "pass_at_1_before": before.pass_at_1 if before else None,
            "hard_pass_at_1_before": before.hard_pass_at_1 if before else None,
        }
    )


def _attempts(folder: Path) -> int:
    path = folder / "attempt.json"
    return int(json.loads(path.read_text(encoding="utf-8"))["attempt"]) if path.exists() else 0


def _score(value: float | None, error: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if error is None else f"{value:.3f} ±{error:.3f}"


def _before_after(before: float | None, after: float | None, error: float | None) -> str:
    if after is None:
        return "-"
    return f"{'-' if before is None else f'{before:.3f}'} → {_score(after, error)}"


def _change(before: float | None, after: float | None) -> Text:
    if before is None or after is None:
        return Text("-")
    change = after - before
    return Text(f"{change:+.3f}", style="green" if change > 0 else "red" if change < 0 else "")


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _outcome(row: StageReport) -> str:
    if row.outcome is None:
        return "running" if row.attempts else "not started"
    if row.outcome == "completed":
        return "done"
    return row.outcome if row.outcome == "suspended" else f"{row.outcome}: {row.reason}"
