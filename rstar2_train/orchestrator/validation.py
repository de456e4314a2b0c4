"""Measures a stage's model on the held-out set, under the same limits after every stage, so that stages compare.

A stage that has engines measures its own final model. A stage without (SFT) leaves it to the next one that has: the
model is the same, and no GPU waits for an engine to start. Each sample is kept as it ends, under the model's content
and all settings: an attempt after a kill asks no finished sample again, and never takes that of another model.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Mapping
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


def wants_validation(ctx: StageContext, stage: Stage) -> bool:
    """Whether `stage`'s model still has to be measured on the held-out set."""
    return ctx.job.spec.validation is not None and not ctx.state.stage(stage.name).evaluation_file.exists()


async def measure_validation(ctx: StageContext, rollouts: RolloutSession, stage: Stage, *, step: int | None) -> None:
    """Measure the model of `stage`, which the engines now serve, and write its evaluation."""
    validation = ctx.job.spec.validation
    assert validation is not None
    folder = ctx.state.stage(stage.name)
    problems = load_problems(validation.data)[: validation.max_problems]
    await measure_problems(
        ctx,
        rollouts,
        stage,
        problems,
        model=folder.model,
        samples=validation.samples,
        sampling=validation.sampling,
        step=step,
    )
    await asyncio.to_thread(shutil.rmtree, folder.samples, ignore_errors=True)  # never measured again: it is written


async def measure_problems(
    ctx: StageContext,
    rollouts: RolloutSession,
    stage: Stage,
    problems: list[Problem],
    *,
    model: Path,
    samples: int,
    sampling: Sampling,
    step: int | None,
    benchmarks: Mapping[str, str] | None = None,
) -> None:
    """Sample, score and write `evaluation.json` of `stage`; its trajectories are kept beside it.

    `model`: folder of what the engines serve. What an earlier attempt has sampled of it is not asked again.
    """
    ctx.report(phase="Evaluating")
    started = time.monotonic()
    folder, spec = ctx.state.stage(stage.name), ctx.job.spec
    settings = {
        "model": await asyncio.to_thread(_content, model),
        "engine_args": dict(spec.rollout.engine_args),
        **sampling_settings(spec, sampling, seed_name=SEED_NAME),
    }
    with SampleCache(folder.samples / f"{cache_key(settings)}.jsonl") as kept:
        rows = await rollouts.measure(
            problems, samples=samples, sampling=sampling, seed=(ctx.seed, SEED_NAME), store=kept
        )
        lost = sum(row.failed for row in rows)
        if lost:
            log.warning("%d of %d evaluation samples were lost to infrastructure and are excluded", lost, len(rows))
        ctx.check_current()
        await asyncio.to_thread(trajectory_store.write, folder.evaluation_trajectories, kept.trajectories())
    evaluation = measure(
        rows,
        stage=stage.name,
        sampling=sampling,
        seconds=time.monotonic() - started,
        attempt=ctx.attempt,
        step=step,
        benchmarks=benchmarks,
    )
    write_evaluation(folder.evaluation_file, evaluation)
    ctx.tracker.metrics(stage.name, step=step or 0, values=evaluation_metrics(evaluation))
    if stage.name == ctx.stage.name and evaluation.pass_at_1 is not None:
        ctx.report(metrics=ctx.progress.metrics | {"pass_at_1": evaluation.pass_at_1})


def _content(model: Path) -> str:
    try:
        return fingerprint(model)
    except ModelIncomplete as error:
        raise StageFailed("BadConfiguration", str(error), retryable=False) from error


def load_problems(file: str) -> list[Problem]:
    """The problems of a data file. Raises StageFailed when they cannot be read."""
    try:
        return list(read_problems(Path(file)))
    except DataError as error:
        raise StageFailed("BadData", str(error), retryable=False) from error
