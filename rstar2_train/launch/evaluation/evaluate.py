"""`rstar2 eval`: from benchmark files to the report.

cli/eval.py -> make_one_stage_job (one_stage_job.py) -> evaluate (measure.py) -> report files -> track (MLflow)
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import ValidationError

from rstar2_train.api.stages import BenchmarkSpec, EvaluateStage, Sampling, Stage
from rstar2_train.data.problems import DataError
from rstar2_train.evaluation.benchmarks import SEED_NAME, parse_benchmarks, read_benchmarks
from rstar2_train.evaluation.evaluation_files import save_evaluation
from rstar2_train.evaluation.records import Evaluation, read_evaluation
from rstar2_train.evaluation.result import build_evaluation
from rstar2_train.evaluation.sample_cache import SampleCache
from rstar2_train.evaluation.sample_result import SampleResult
from rstar2_train.evaluation.statistics import evaluation_metrics, figure_metrics
from rstar2_train.launch.evaluation.measure import measured
from rstar2_train.launch.evaluation.one_stage_job import EvalRequest, EvalTask, OneStageJob, make_one_stage_job
from rstar2_train.launch.evaluation.settings import adjusted, base_job
from rstar2_train.launch.local.preflight import PreflightError
from rstar2_train.launch.local.run_view import RunView
from rstar2_train.tracking.shipper import ShippingProgress, ship
from rstar2_train.tracking.tracker import JOB, Tracker
from rstar2_train.utils.text import reason

FOLDER = "_evaluations"
"""Folder of the evaluations in the folder of all jobs."""
REPORT = "evaluation.json"
PAGE = "evaluation.html"
TRAJECTORIES = "trajectories.parquet"
MLFLOW_SECONDS = 60.0
"""How long the end of the command waits for MLflow."""


@dataclass(frozen=True)
class PreparedEvaluation:
    """An evaluation that is ready to run."""

    measurement: OneStageJob
    benchmarks: dict[str, str]
    """Benchmark by problem id."""

    @property
    def out(self) -> Path:
        """Default folder of the report."""
        names = "+".join(dict.fromkeys(self.benchmarks.values()))
        return self.measurement.state.root / f"{names[:100]}-{self.measurement.samples}"


def prepare_evaluation(request: EvalRequest, benchmarks: Sequence[str], *, data: Path) -> PreparedEvaluation:
    """Prepare an evaluation. `data`: folder of the benchmarks that are given by name. Raises PreflightError.

    A setting comes from the request, else from the manifest's last Evaluate stage, else from the paper (§5.1).
    """
    try:
        named = parse_benchmarks(benchmarks, data=data)
        problems = list(read_benchmarks(named))
    except DataError as error:
        raise PreflightError(str(error)) from error
    files = [BenchmarkSpec(name=benchmark.name, data=str(benchmark.file.resolve())) for benchmark in named]
    try:
        default = EvaluateStage(benchmarks=files)
    except ValidationError as error:
        raise PreflightError(f"--benchmark: {error.errors()[0]['msg']}; split them over several commands") from error
    base = base_job(request.manifest, otherwise=_stage(default))
    stages = [stage.evaluate for stage in base.spec.stages if stage.evaluate is not None] or [default]
    settings = adjusted(stages[-1], request.settings).model_copy(update={"benchmarks": files})

    def stage(sampling: Sampling) -> Stage:
        return _stage(settings.model_copy(update={"sampling": sampling}))

    task = EvalTask(
        command="eval",
        folder=FOLDER,
        seed_name=SEED_NAME,
        problems=[problem for _, problem in problems],
        samples=settings.samples,
        sampling=settings.sampling,
        stage=stage,
    )
    return PreparedEvaluation(make_one_stage_job(request, base, task), {problem.id: name for name, problem in problems})


def evaluate(evaluation: PreparedEvaluation, view: RunView, *, out: Path) -> Evaluation:
    """Generate the missing samples, compute all figures and write the report into `out`.

    An older report is replaced only when the new one is complete. Raises as `measure.measured` does.
    """
    measurement = evaluation.measurement

    def save(rows: Sequence[SampleResult], cache: SampleCache) -> None:
        result = build_evaluation(
            rows,
            stage=measurement.stage.name,
            model=measurement.model,
            endpoint=measurement.running.engine or None,
            settings=measurement.settings,
            samples=measurement.samples,
            sampling=measurement.sampling,
            seconds=0.0,
            benchmarks=evaluation.benchmarks,
        )
        save_evaluation(measurement.folder, result, cache.trajectories())

    with measured(measurement, view, save=save, with_trajectories=True) as folder, _temporary_folder(out) as new:
        for source, name in (
            (folder.evaluation_trajectories, TRAJECTORIES),
            (folder.evaluation_page, PAGE),
            (folder.evaluation_file, REPORT),
        ):
            shutil.copyfile(source, new / name)
        for name in (TRAJECTORIES, PAGE, REPORT):
            (new / name).replace(out / name)
        return read_evaluation(out / REPORT)


def check_out(out: Path) -> None:
    """Raise PreflightError unless a report can be written into `out`. Called before sampling; creates no folder."""
    new = not out.exists()
    with _temporary_folder(out):
        pass
    if new:
        with suppress(OSError):  # another process uses it now
            out.rmdir()


@contextmanager
def _temporary_folder(out: Path) -> Iterator[Path]:
    """Yield a folder inside `out` for files that are published together. Raises PreflightError that names `out`."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".report-", dir=out) as folder:
            yield Path(folder)
    except OSError as error:
        cause = f"no report can be written into {out}: {reason(error)}"
        raise PreflightError(f"{cause}; samples are saved; fix the folder or pass a different --out") from error


def track(result: Evaluation, out: Path, *, uri: str, experiment: str, name: str) -> ShippingProgress:
    """Send a report to MLflow as the run `name`: settings, figures, and its files as artifacts.

    The journal is in `out`. If the server is unreachable, nothing is raised, and the next call sends the rest.
    """
    tracker = Tracker(out, job=name, uri=uri, experiment=experiment)
    tracker.start_job({"model": result.model, "samples": result.samples_per_problem, **result.settings})
    values: dict[str, float] = evaluation_metrics(result)
    for benchmark, figures in result.benchmarks.items():
        values |= {f"{benchmark}/{metric}": value for metric, value in figure_metrics(figures).items()}
    tracker.log_metrics(JOB, step=0, values=values)
    for file in (REPORT, PAGE, TRAJECTORIES):
        tracker.log_artifact(JOB, out / file)
    tracker.end_job("completed")
    tracker.close()
    return ship(out, timeout=MLFLOW_SECONDS)


def _stage(settings: EvaluateStage) -> Stage:
    return Stage(name="eval", type="Evaluate", evaluate=settings)
