"""`rstar2 filter`, from a file of problems to those that are worth training on: what it asks, and what it keeps.

Between `cli/filter.py`, which shows it, and `plan.py` and `runner.py`, which do the asking. With the same model, file,
seed and settings it keeps what a job's Filter stage keeps (`orchestrator/stages/filter.py`): the same problem ids meet
the same random numbers, and `evaluation/difficulty.py` decides for both.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rstar2_train.api.stages import FilterStage, Sampling, Stage
from rstar2_train.data.problems import DataError, read_problems
from rstar2_train.evaluation.difficulty import (
    SEED_NAME,
    FilterReport,
    count_solved,
    histogram,
    kept_problems,
    problems_to_jsonl,
)
from rstar2_train.evaluation.records import write_record
from rstar2_train.launch.evaluation.plan import EvalRequest, EvalTask, SamplingPlan, adjusted, base_job, make_plan
from rstar2_train.launch.evaluation.runner import ExternalJudge, ProgressSink, run_plan
from rstar2_train.launch.local.preflight import PreflightError
from rstar2_train.utils.files import write_atomically

FOLDER = "_filters"
"""In the folder of all jobs' state."""
KEPT = "kept.jsonl"
REPORT_SUFFIX = ".report.json"
"""Stands in place of the kept problems' own suffix."""


@dataclass(frozen=True)
class FilterRun:
    """What is filtered, settled."""

    plan: SamplingPlan
    file: Path
    drop_solved: int

    @property
    def out(self) -> Path:
        """The file of what is kept, unless told otherwise."""
        return self.plan.state.root / f"{self.file.stem[:100]}-{self.drop_solved}-of-{self.plan.samples}" / KEPT


def plan_filtering(wanted: EvalRequest, file: Path) -> FilterRun:
    """Settle everything. Raises PreflightError with what is wrong and where.

    Settings are those given, else those of the manifest's last Filter stage, else the paper's (§4.3).
    """
    try:
        problems = list(read_problems(file))
    except DataError as error:
        raise PreflightError(str(error)) from error
    default = FilterStage(data=str(file.resolve()))
    base = base_job(wanted.manifest, otherwise=_stage(default))
    stages = [stage.filter for stage in base.spec.stages if stage.filter is not None] or [default]
    settings = adjusted(stages[-1], wanted.settings).model_copy(update={"data": default.data})
    if settings.drop_solved > settings.samples:
        raise PreflightError(
            f"no problem can be solved {settings.drop_solved} times with {settings.samples} samples, so that none "
            f"would be dropped: give --drop-solved {settings.samples} or less, or more --samples"
        )

    def stage(sampling: Sampling) -> Stage:
        return _stage(settings.model_copy(update={"sampling": sampling}))

    task = EvalTask(
        command="filter",
        folder=FOLDER,
        seed_name=SEED_NAME,
        problems=problems,
        samples=settings.samples,
        sampling=settings.sampling,
        stage=stage,
    )
    return FilterRun(make_plan(wanted, base, task), file, settings.drop_solved)


def run_filter(filtering: FilterRun, elsewhere: ExternalJudge, shown: ProgressSink, *, out: Path) -> FilterReport:
    """Ask what is missing; write the problems that are kept as `out`, and the report beside it.

    Nothing is written when none is kept: an empty file is nothing to train on. Raises as `run.run_plan` does.
    """
    plan = filtering.plan
    with run_plan(plan, elsewhere, shown, whole=False) as found:
        counts = count_solved(plan.problems, found.rows, drop_solved=filtering.drop_solved)
        kept = kept_problems(plan.problems, counts)
        report = FilterReport(
            model=plan.model,
            endpoint=plan.endpoint or None,
            file=str(filtering.file),
            settings=plan.settings,
            samples_per_problem=plan.samples,
            drop_solved=filtering.drop_solved,
            problems=len(plan.problems),
            kept=len(kept),
            dropped=len(plan.problems) - len(kept),
            excluded=sum(row.failed for row in found.rows),
            histogram=histogram(counts, samples=plan.samples),
            seconds=round(found.seconds, 3),
            counts=counts,
        )
        if kept:
            write_record(report_path(out), report)
            write_atomically(out, problems_to_jsonl(kept))
        return report


def kept_path(given: Path | None, *, default: Path) -> Path:
    """The file of what is kept: `--out` itself when it ends in `.jsonl`, else `kept.jsonl` in that folder. Pure."""
    if given is None:
        return default
    return given if given.suffix == ".jsonl" else given / KEPT


def report_path(kept: Path) -> Path:
    """The report beside a file of kept problems. Pure."""
    return kept.with_suffix(REPORT_SUFFIX)


def _stage(settings: FilterStage) -> Stage:
    return Stage(name="filter", type="Filter", filter=settings)
