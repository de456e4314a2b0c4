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
from typing import Any

from rstar2_train.api.contracts import StageFailed
from rstar2_train.api.stages import Sampling, Stage
from rstar2_train.data.problems import Problem
from rstar2_train.evaluation.benchmarks import SEED_NAME
from rstar2_train.evaluation.evaluation_files import save_evaluation
from rstar2_train.evaluation.model_fingerprint import ModelIncomplete
from rstar2_train.evaluation.result import build_evaluation
from rstar2_train.evaluation.sample_cache import SampleCache
from rstar2_train.evaluation.sample_result import SampleResult
from rstar2_train.evaluation.settings import endpoint_identity, folder_identity, sample_file, sampling_settings
from rstar2_train.evaluation.statistics import evaluation_metrics
from rstar2_train.orchestrator.context import StageContext
from rstar2_train.orchestrator.problem_files import load_problems
from rstar2_train.orchestrator.rollout_session import RolloutSession

log = logging.getLogger(__name__)

SO_FAR = "correct_so_far"
"""Figure of the progress report during an evaluation; those of the last training step stay next to it."""


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
    problems = await asyncio.to_thread(load_problems, validation.data)
    run = EvaluationRun(
        stage=stage,
        model=folder.model,
        problems=problems[: validation.max_problems],
        samples=validation.samples,
        sampling=validation.sampling,
        step=step,
    )
    await run_evaluation(ctx, rollouts, run)
    await asyncio.to_thread(shutil.rmtree, folder.samples, ignore_errors=True)  # the result is written


async def run_evaluation(ctx: StageContext, rollouts: RolloutSession, run: EvaluationRun) -> None:
    """Sample and score the problems; write the stage's `evaluation.json`, its page and its trajectories.

    Samples that an earlier attempt saved are used. Raises SuspendRequested or StageFailed.
    """
    ctx.report(phase="Evaluating")
    started = time.monotonic()
    folder = ctx.state.stage(run.stage.name)
    settings = await measured_settings(ctx, run.model, run.sampling, seed_name=SEED_NAME)
    correct, valid = 0, 0

    def on_sample(result: SampleResult, *, saved: bool) -> None:
        nonlocal correct, valid
        correct, valid = correct + result.correct, valid + (not result.failed)
        metrics = ctx.progress.metrics | {SO_FAR: correct / max(1, valid)}
        ctx.progress = ctx.progress.model_copy(update={"metrics": metrics})

    with SampleCache(sample_file(folder, settings)) as cache:
        results = await rollouts.measure(
            run.problems,
            samples=run.samples,
            sampling=run.sampling,
            seed=(ctx.seed, SEED_NAME),
            cache=cache,
            on_sample=on_sample,
        )
        lost = sum(result.failed for result in results)
        if lost:
            log.warning("excluded %d of %d evaluation samples: lost to infrastructure", lost, len(results))
        ctx.check_current()
        evaluation = build_evaluation(
            results,
            stage=run.stage.name,
            attempt=ctx.attempt,
            step=run.step,
            model=ctx.endpoints.served_model or str(run.model),
            endpoint=ctx.endpoints.engines[0] if ctx.endpoints.served_model else None,
            settings=settings,
            samples=run.samples,
            sampling=run.sampling,
            seconds=time.monotonic() - started,
            benchmarks=run.benchmarks,
        )
        # Before the file: no later attempt repeats a measurement that has one.
        ctx.tracker.log_metrics(run.stage.name, step=run.step or 0, values=evaluation_metrics(evaluation))
        await asyncio.to_thread(save_evaluation, folder, evaluation, cache.trajectories())
    metrics = {name: value for name, value in ctx.progress.metrics.items() if name != SO_FAR}
    if run.stage.name == ctx.stage.name and evaluation.pass_at_1 is not None:
        metrics["pass_at_1"] = evaluation.pass_at_1
    ctx.report(metrics=metrics)


async def measured_settings(ctx: StageContext, model: Path, sampling: Sampling, *, seed_name: str) -> dict[str, Any]:
    """Return everything that determines the samples of a measurement, except the prompts. Raises StageFailed.

    `model`: folder that the engines serve, unless an engine of another project serves the model.
    """
    spec, served = ctx.job.spec, ctx.endpoints.served_model
    if served:
        identity = endpoint_identity(served, ctx.endpoints.engines[0])
    else:
        try:
            identity = await asyncio.to_thread(folder_identity, model, spec.rollout)
        except ModelIncomplete as error:
            raise StageFailed("BadConfiguration", str(error), retryable=False) from error
    return identity | sampling_settings(spec, sampling, seed_name=seed_name)
