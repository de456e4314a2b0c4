"""`rstar2 eval`, from benchmark files to the report: what it asks, and what it makes of the samples.

Between `cli/eval.py`, which shows it, and `plan.py` and `runner.py`, which do the asking.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import ValidationError

from rstar2_train.api.stages import BenchmarkSpec, EvaluateStage, Sampling, Stage
from rstar2_train.data.problems import DataError
from rstar2_train.evaluation.benchmarks import SEED_NAME, parse_benchmarks, read_benchmarks
from rstar2_train.evaluation.html_report import render_page
from rstar2_train.evaluation.records import write_record
from rstar2_train.evaluation.result import EvaluationResult, build_result
from rstar2_train.evaluation.statistics import evaluation_metrics
from rstar2_train.launch.evaluation.plan import EvalRequest, EvalTask, SamplingPlan, adjusted, base_job, make_plan
from rstar2_train.launch.evaluation.runner import ExternalJudge, ProgressSink, run_plan
from rstar2_train.launch.local.preflight import PreflightError
from rstar2_train.rollout import trajectory_store
from rstar2_train.tracking.shipper import ShippingProgress, ship
from rstar2_train.tracking.tracker import JOB, Tracker
from rstar2_train.utils.files import write_atomically

FOLDER = "_evaluations"
"""In the folder of all jobs' state."""
REPORT = "evaluation.json"
PAGE = "evaluation.html"
TRAJECTORIES = "trajectories.parquet"
MLFLOW_SECONDS = 60.0
"""How long the end waits for MLflow."""


@dataclass(frozen=True)
class EvaluationRun:
    """What is measured, settled."""

    plan: SamplingPlan
    benchmarks: dict[str, str]
    """Benchmark by problem id."""

    @property
    def out(self) -> Path:
        """Where the report goes unless told otherwise."""
        names = "+".join(dict.fromkeys(self.benchmarks.values()))
        return self.plan.state.root / f"{names[:100]}-{self.plan.samples}"


def plan_evaluation(wanted: EvalRequest, benchmarks: Sequence[str], *, data: Path) -> EvaluationRun:
    """Settle everything. `data`: folder of benchmarks given by name. Raises PreflightError.

    Settings are those given, else those of the manifest's last Evaluate stage, else the paper's (§5.1).
    """
    try:
        named = parse_benchmarks(benchmarks, data=data)
        asked = list(read_benchmarks(named))
    except DataError as error:
        raise PreflightError(str(error)) from error
    files = [BenchmarkSpec(name=one.name, data=str(one.file.resolve())) for one in named]
    try:
        default = EvaluateStage(benchmarks=files)
    except ValidationError as error:
        raise PreflightError(f"--benchmark: {error.errors()[0]['msg']}; ask them in several commands") from error
    base = base_job(wanted.manifest, otherwise=_stage(default))
    stages = [stage.evaluate for stage in base.spec.stages if stage.evaluate is not None] or [default]
    settings = adjusted(stages[-1], wanted.settings).model_copy(update={"benchmarks": files})

    def stage(sampling: Sampling) -> Stage:
        return _stage(settings.model_copy(update={"sampling": sampling}))

    task = EvalTask(
        command="eval",
        folder=FOLDER,
        seed_name=SEED_NAME,
        problems=[problem for _, problem in asked],
        samples=settings.samples,
        sampling=settings.sampling,
        stage=stage,
    )
    return EvaluationRun(make_plan(wanted, base, task), {problem.id: name for name, problem in asked})


def evaluate(
    evaluation: EvaluationRun, elsewhere: ExternalJudge, shown: ProgressSink, *, out: Path
) -> EvaluationResult:
    """Ask what is missing, compute all figures, write the report into `out`.

    Raises as `run.run_plan` does; an older report stays as it is until the new one is there.
    """
    plan = evaluation.plan
    with run_plan(plan, elsewhere, shown, whole=True) as found:
        result = build_result(
            found.rows,
            benchmarks=evaluation.benchmarks,
            model=plan.model,
            endpoint=plan.endpoint or None,
            settings=plan.settings,
            samples=plan.samples,
            sampling=plan.sampling,
            seconds=found.seconds,
        )
        with _aside(out) as new:
            trajectory_store.write(new / TRAJECTORIES, found.samples.trajectories())
            write_atomically(new / PAGE, render_page(result))
            write_record(new / REPORT, result)
            for file in (TRAJECTORIES, PAGE, REPORT):
                (new / file).replace(out / file)
        return result


def check_out(out: Path) -> None:
    """Raise CannotRun unless a report can be written into `out`, before anything is asked for it. Leaves no folder."""
    new = not out.exists()
    with _aside(out):
        pass
    if new:
        with suppress(OSError):  # somebody else has found it meanwhile
            out.rmdir()


@contextmanager
def _aside(out: Path) -> Iterator[Path]:
    """A folder in `out` for files that are to be there together or not at all. Raises PreflightError naming `out`."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".report-", dir=out) as folder:
            yield Path(folder)
    except OSError as error:
        what = f"no report can be written into {out}: {error.strerror or error}"
        raise PreflightError(f"{what}; what was sampled is kept: see to it, or give another --out") from error


def track(result: EvaluationResult, out: Path, *, uri: str, experiment: str, name: str) -> ShippingProgress:
    """Send a report to MLflow as the run `name`: settings, figures, and its files as artifacts.

    The journal lies in `out`: what a server that is away has not taken is sent by the next call. Never raises for it.
    """
    tracker = Tracker(out, job=name, uri=uri, experiment=experiment)
    tracker.start_job({"model": result.model, "samples": result.samples_per_problem, **result.settings})
    values: dict[str, float] = evaluation_metrics(result.overall)
    for benchmark, figures in result.benchmarks.items():
        values |= {
            f"{benchmark}/{metric.removeprefix('evaluation/')}": value
            for metric, value in evaluation_metrics(figures).items()
            if metric.startswith("evaluation/")
        }
    tracker.log_metrics(JOB, step=0, values=values)
    for file in (REPORT, PAGE, TRAJECTORIES):
        tracker.log_artifact(JOB, out / file)
    tracker.end_job("completed")
    tracker.close()
    return ship(out, timeout=MLFLOW_SECONDS)


def _stage(settings: EvaluateStage) -> Stage:
    return Stage(name="eval", type="Evaluate", evaluate=settings)
