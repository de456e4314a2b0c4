"""Runs evaluations of a stage's model: validation runs on the held-out set, and the run of an Evaluate stage.

Every validation run of a job uses the same limits, so that stages are comparable. A stage with engines evaluates its
own final model. An SFT stage has no engines; the next stage that has them evaluates its model. Each sample is saved
when it finishes, under a key of the model's content and all settings: a restarted attempt samples only the missing
ones, and never uses samples of another model.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rstar2_train.api.contracts import StageFailed
from rstar2_train.api.stages import Sampling, Stage
from rstar2_train.data.problems import DataError, Problem, read_problems
from rstar2_train.evaluation.benchmarks import SEED_NAME
from rstar2_train.evaluation.model_fingerprint import ModelIncomplete, fingerprint
from rstar2_train.evaluation.records import write_evaluation
from rstar2_train.evaluation.sample_cache import SampleCache, cache_key, sampling_settings
from rstar2_train.evaluation.statistics import evaluation_metrics, measure
from rstar2_train.orchestrator.context import StageContext
from rstar2_train.orchestrator.rollout_session import RolloutSession
from rstar2_train.rollout import trajectory_store

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRun:
    """One evaluation of one model."""

    stage: Stage
    """Stage whose `evaluation.json` the run writes."""
    model: Path
    """Model folder that the engines serve."""
    problems: Sequence[Problem]
    samples: int
    """Samples per problem."""
    sampling: Sampling
    step: int | None = None
    """Step of the stage at which the model was exported; None: not known to this stage."""
    benchmarks: Mapping[str, str] | None = None
    """Benchmark name by problem id."""


def needs_validation(ctx: StageContext, stage: Stage) -> bool:
    """Return whether the validation run of `stage`'s model is still missing."""
    return ctx.job.spec.validation is not None and not ctx.state.stage(stage.name).evaluation_file.exists()


async def run_validation(ctx: StageContext, rollouts: RolloutSession, stage: Stage, *, step: int | None) -> None:
    """Evaluate the model of `stage`, which the engines serve, on the held-out set."""
    validation = ctx.job.spec.validation
    assert validation is not None
    folder = ctx.state.stage(stage.name)
    run = EvaluationRun(
        stage=stage,
        model=folder.model,
        problems=load_problems(validation.data)[: validation.max_problems],
        samples=validation.samples,
        sampling=validation.sampling,
        step=step,
    )
    await run_evaluation(ctx, rollouts, run)
    await asyncio.to_thread(shutil.rmtree, folder.samples, ignore_errors=True)  # the result is written


async def run_evaluation(ctx: StageContext, rollouts: RolloutSession, run: EvaluationRun) -> None:
    """Sample and score the problems; write the stage's `evaluation.json` and its trajectories.

    Samples that an earlier attempt saved are used. Raises SuspendRequested or StageFailed.
    """
    ctx.report(phase="Evaluating")
    started = time.monotonic()
    folder, spec = ctx.state.stage(run.stage.name), ctx.job.spec
    settings = {
        "model": await asyncio.to_thread(_content_hash, run.model),
        "engine_args": dict(spec.rollout.engine_args),
        **sampling_settings(spec, run.sampling, seed_name=SEED_NAME),
    }
    with SampleCache(folder.samples / f"{cache_key(settings)}.jsonl") as cache:
        results = await rollouts.measure(
            run.problems, samples=run.samples, sampling=run.sampling, seed=(ctx.seed, SEED_NAME), store=cache
        )
        lost = sum(result.failed for result in results)
        if lost:
            log.warning("excluded %d of %d evaluation samples: lost to infrastructure", lost, len(results))
        ctx.check_current()
        await asyncio.to_thread(trajectory_store.write, folder.evaluation_trajectories, cache.trajectories())
    evaluation = measure(
        results,
        stage=run.stage.name,
        sampling=run.sampling,
        seconds=time.monotonic() - started,
        attempt=ctx.attempt,
        step=run.step,
        benchmarks=run.benchmarks,
    )
    write_evaluation(folder.evaluation_file, evaluation)
    ctx.tracker.log_metrics(run.stage.name, step=run.step or 0, values=evaluation_metrics(evaluation))
    if run.stage.name == ctx.stage.name and evaluation.pass_at_1 is not None:
        ctx.report(metrics=ctx.progress.metrics | {"pass_at_1": evaluation.pass_at_1})


def load_problems(file: str) -> list[Problem]:
    """Return the problems of a data file. Raises StageFailed when the file cannot be read."""
    try:
        return list(read_problems(Path(file)))
    except DataError as error:
        raise StageFailed("BadData", str(error), retryable=False) from error


def _content_hash(model: Path) -> str:
    try:
        return fingerprint(model)
    except ModelIncomplete as error:
        raise StageFailed("BadConfiguration", str(error), retryable=False) from error
