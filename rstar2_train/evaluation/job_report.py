"""The report of a job: one row per stage with its effect on the held-out set.

Built from `stages/<stage>/{evaluation,outcome,attempt}.json` in the job's state directory. A file that is damaged is an
error: a report without it would be another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rstar2_train.api.contracts import AttemptRecord, Outcome
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.stages import Stage
from rstar2_train.api.state_dir import JobState, StageState
from rstar2_train.api.state_files import UnreadableState, read_state
from rstar2_train.evaluation.records import (
    Evaluation,
    Figures,
    JobReport,
    SliceMetrics,
    StageReport,
    write_record,
)

REPORT = "report.json"


def read_report(state: JobState) -> JobReport:
    """Return the report of a state directory, which has a job file. Raises UnreadableState."""
    job = read_state(state.job_file, AgenticRLJob.model_validate_json)
    if job is None:
        raise UnreadableState(f"{state.job_file}: no such file")
    return build_report(state.root, job, seconds=state.seconds())


def build_report(state: Path, job: AgenticRLJob, *, seconds: float) -> JobReport:
    """Return the report of `job` from the files in its state directory `state`.

    Stages that have not started have 0 attempts and nulls. `seconds`: wall time of the job. Raises UnreadableState.
    """
    rows: list[StageReport] = []
    evaluations: list[Evaluation] = []
    for stage in job.spec.stages:
        folder = JobState(state).stage(stage.name)
        evaluation = read_state(folder.evaluation_file, Evaluation.model_validate_json)
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
    """Return whether two evaluations have the same problems, temperature and limits."""

    def conditions(evaluation: Evaluation) -> tuple[str, float, int, int]:
        return (
            evaluation.problem_set,
            evaluation.temperature,
            evaluation.max_response_tokens,
            evaluation.max_turns,
        )

    return conditions(first) == conditions(second)


def format_duration(seconds: float) -> str:
    """Return seconds as `1 h 02 min`, `3 min 20 s` or `12 s`."""
    total = int(seconds)
    if total >= 3600:
        return f"{total // 3600} h {total % 3600 // 60:02d} min"
    return f"{total // 60} min {total % 60:02d} s" if total >= 60 else f"{total} s"


def _stage_report(
    stage: Stage, folder: StageState, evaluation: Evaluation | None, earlier: list[Evaluation]
) -> StageReport:
    attempt = read_state(folder.attempt_file, AttemptRecord.model_validate_json)
    outcome = read_state(folder.outcome_file, Outcome.model_validate_json)
    steps = None
    if stage.type in ("SFT", "GRPO"):
        steps = evaluation.step if evaluation else None
        if steps is None and outcome is not None and outcome.checkpoint is not None:
            steps = outcome.checkpoint.step
    row = StageReport(
        name=stage.name,
        type=stage.type,
        steps=steps,
        attempts=attempt.attempt if attempt else 0,
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
            "benchmarks": _scores(evaluation.benchmarks),
            "pass_at_1_before": before.pass_at_1 if before else None,
            "hard_pass_at_1_before": before.hard_pass_at_1 if before else None,
        }
    )


def _scores(benchmarks: Mapping[str, Figures]) -> dict[str, SliceMetrics]:
    return {
        name: SliceMetrics(
            problems=figures.problems,
            samples=figures.samples,
            pass_at_1=figures.pass_at_1,
            pass_at_1_se=figures.pass_at_1_se,
        )
        for name, figures in benchmarks.items()
        if figures.pass_at_1 is not None
    }
