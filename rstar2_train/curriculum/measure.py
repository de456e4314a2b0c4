"""Measures a stage's model on the held-out set, under the same limits after every stage, so that stages compare.

A stage that has engines measures its own final model. A stage without (SFT) leaves it to the next one that has: the
model is the same, and no GPU waits for an engine to start.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from pathlib import Path

from rstar2_train.curriculum.context import Context
from rstar2_train.curriculum.rollouts import Rollouts
from rstar2_train.data.problems import DataError, Problem, read_problems
from rstar2_train.evaluate.benchmarks import SEED_NAME
from rstar2_train.evaluate.records import write_evaluation
from rstar2_train.evaluate.statistics import evaluation_metrics, measure
from rstar2_train.job.contracts import StageFailed
from rstar2_train.job.stages import Sampling, Stage
from rstar2_train.rollout import store

log = logging.getLogger(__name__)


def wants_validation(ctx: Context, stage: Stage) -> bool:
    """Whether `stage`'s model still has to be measured on the held-out set."""
    return ctx.job.spec.validation is not None and not ctx.state.stage(stage.name).evaluation_file.exists()


async def measure_validation(ctx: Context, rollouts: Rollouts, stage: Stage, *, step: int | None) -> None:
    """Measure the weights that the engines now serve as those of `stage`, and write its evaluation."""
    validation = ctx.job.spec.validation
    assert validation is not None
    problems = load_problems(validation.data)[: validation.max_problems]
    await measure_problems(
        ctx, rollouts, stage, problems, samples=validation.samples, sampling=validation.sampling, step=step
    )


async def measure_problems(
    ctx: Context,
    rollouts: Rollouts,
    stage: Stage,
    problems: list[Problem],
    *,
    samples: int,
    sampling: Sampling,
    step: int | None,
    benchmarks: Mapping[str, str] | None = None,
) -> None:
    """Sample, score and write `evaluation.json` of `stage`; its trajectories are kept beside it."""
    ctx.report(phase="Evaluating")
    started = time.monotonic()
    groups = await rollouts.sample(problems, samples=samples, sampling=sampling, seed=(ctx.seed, SEED_NAME))
    rows = [trajectory for group in groups for trajectory in group]
    lost = sum(trajectory.failed for trajectory in rows)
    if lost:
        log.warning("%d of %d evaluation samples were lost to infrastructure and are excluded", lost, len(rows))
    folder = ctx.state.stage(stage.name)
    ctx.check_current()
    await asyncio.to_thread(store.write, folder.evaluation_trajectories, rows)
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


def load_problems(file: str) -> list[Problem]:
    """The problems of a data file. Raises StageFailed when they cannot be read."""
    try:
        return list(read_problems(Path(file)))
    except DataError as error:
        raise StageFailed("BadData", str(error), retryable=False) from error
