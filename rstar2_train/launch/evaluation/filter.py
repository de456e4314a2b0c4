"""`rstar2 filter`: from a file of problems to those that are worth training on.

    cli/filter.py -> plan_filtering (plan.py) -> run_filter (runner.py) -> kept problems and a report

With the same model, file, seed and settings it keeps the problems that a job's Filter stage keeps
(`orchestrator/stages/filter.py`): the same problem ids get the same random numbers, and `evaluation/difficulty.py`
decides for both.
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
from rstar2_train.launch.evaluation.runner import ProgressSink, run_plan
from rstar2_train.launch.local.preflight import PreflightError
from rstar2_train.utils.files import write_atomically

FOLDER = "_filters"
"""Folder of the filter runs in the folder of all jobs."""
KEPT = "kept.jsonl"
REPORT_SUFFIX = ".report.json"
"""Replaces the suffix of the kept problems' file."""


@dataclass(frozen=True)
class FilterPlan:
    """A planned filter run."""

    plan: SamplingPlan
    file: Path
    drop_solved: int

    @property
    def out(self) -> Path:
        """Default file of the kept problems."""
        return self.plan.state.root / f"{self.file.stem[:100]}-{self.drop_solved}-of-{self.plan.samples}" / KEPT


def plan_filtering(request: EvalRequest, file: Path) -> FilterPlan:
    """Plan a filter run. Raises PreflightError.

    A setting comes from the request, else from the manifest's last Filter stage, else from the paper (§4.3).
    """
    try:
        problems = list(read_problems(file))
    except DataError as error:
        raise PreflightError(str(error)) from error
    default = FilterStage(data=str(file.resolve()))
    base = base_job(request.manifest, otherwise=_stage(default))
    stages = [stage.filter for stage in base.spec.stages if stage.filter is not None] or [default]
    settings = adjusted(stages[-1], request.settings).model_copy(update={"data": default.data})
    if settings.drop_solved > settings.samples:
        raise PreflightError(
            f"--drop-solved {settings.drop_solved} drops no problem: there are only {settings.samples} samples per "
            f"problem. Pass --drop-solved {settings.samples} or less, or more --samples."
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
    return FilterPlan(make_plan(request, base, task), file, settings.drop_solved)


def run_filter(filtering: FilterPlan, progress: ProgressSink, *, out: Path) -> FilterReport:
    """Generate the missing samples; write the kept problems as `out` and the report next to it.

    If no problem is kept, nothing is written. Raises as `runner.run_plan` does.
    """
    plan = filtering.plan
    with run_plan(plan, progress, with_trajectories=False) as sampled:
        counts = count_solved(plan.problems, sampled.rows, drop_solved=filtering.drop_solved)
        kept = kept_problems(plan.problems, counts)
        report = FilterReport(
            model=plan.model,
            endpoint=plan.external.engine or None,
            file=str(filtering.file),
            settings=plan.settings,
            samples_per_problem=plan.samples,
            drop_solved=filtering.drop_solved,
            problems=len(plan.problems),
            kept=len(kept),
            dropped=len(plan.problems) - len(kept),
            excluded=sum(row.failed for row in sampled.rows),
            histogram=histogram(counts, samples=plan.samples),
            seconds=round(sampled.seconds, 3),
            counts=counts,
        )
        if kept:
            write_record(report_path(out), report)
            write_atomically(out, problems_to_jsonl(kept))
        return report


def kept_path(given: Path | None, *, default: Path) -> Path:
    """Return the file of the kept problems: `--out` if it ends in `.jsonl`, else `kept.jsonl` in that folder. Pure."""
    if given is None:
        return default
    return given if given.suffix == ".jsonl" else given / KEPT


def report_path(kept: Path) -> Path:
    """Return the report file of a file of kept problems. Pure."""
    return kept.with_suffix(REPORT_SUFFIX)


def _stage(settings: FilterStage) -> Stage:
    return Stage(name="filter", type="Filter", filter=settings)
