"""`rstar2 filter`: from a file of problems to those that are worth training on.

    cli/filter.py -> prepare_filter (one_stage_job.py) -> run_filter (measure.py) -> kept problems and a report

It runs a job with a Filter stage, so it keeps the problems that any job with this model, file, seed and settings keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rstar2_train.api.stages import FilterStage, Sampling, Stage
from rstar2_train.data.problems import DataError, read_problems
from rstar2_train.evaluation.difficulty import SEED_NAME, FilterReport, build_filter_report, save_filter
from rstar2_train.evaluation.records import write_record
from rstar2_train.evaluation.sample_cache import SampleCache
from rstar2_train.evaluation.sample_result import SampleResult
from rstar2_train.launch.evaluation.measure import MeasurementFailed, measured
from rstar2_train.launch.evaluation.one_stage_job import EvalRequest, EvalTask, OneStageJob, make_one_stage_job
from rstar2_train.launch.evaluation.settings import adjusted, base_job
from rstar2_train.launch.local.preflight import PreflightError
from rstar2_train.launch.local.run_view import RunView
from rstar2_train.utils.files import write_atomically

FOLDER = "_filters"
"""Folder of the filter runs in the folder of all jobs."""
KEPT = "kept.jsonl"
REPORT_SUFFIX = ".report.json"
"""Replaces the suffix of the kept problems' file."""


@dataclass(frozen=True)
class PreparedFilter:
    """A filter run that is ready."""

    measurement: OneStageJob
    file: Path
    drop_solved: int

    @property
    def out(self) -> Path:
        """Default file of the kept problems."""
        return (
            self.measurement.state.root
            / f"{self.file.stem[:100]}-{self.drop_solved}-of-{self.measurement.samples}"
            / KEPT
        )


def prepare_filter(request: EvalRequest, file: Path) -> PreparedFilter:
    """Prepare a filter run. Raises PreflightError.

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
    return PreparedFilter(make_one_stage_job(request, base, task), file, settings.drop_solved)


def run_filter(filtering: PreparedFilter, view: RunView, *, out: Path) -> FilterReport:
    """Generate the missing samples; write the kept problems as `out` and the report next to it.

    If no problem is kept, nothing is written. Raises as `measure.measured` does.
    """
    measurement = filtering.measurement

    def save(rows: Sequence[SampleResult], _: SampleCache) -> None:
        report = build_filter_report(
            measurement.problems,
            rows,
            model=measurement.model,
            endpoint=measurement.running.engine or None,
            file=str(filtering.file.resolve()),
            settings=measurement.settings,
            samples=measurement.samples,
            drop_solved=filtering.drop_solved,
            seconds=0.0,
        )
        save_filter(measurement.folder, report, measurement.problems)

    try:
        with measured(measurement, view, save=save, with_trajectories=False) as folder:
            report = _read_report(folder.filter_report_file)
            if report.kept:
                write_record(report_path(out), report)
                write_atomically(out, folder.kept_file.read_text(encoding="utf-8"))
            return report
    except MeasurementFailed as error:
        if error.outcome is None or error.outcome.reason != "NothingToTrain":
            raise
        return _read_report(measurement.folder.filter_report_file)


def _read_report(file: Path) -> FilterReport:
    return FilterReport.model_validate_json(file.read_text(encoding="utf-8"))


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
