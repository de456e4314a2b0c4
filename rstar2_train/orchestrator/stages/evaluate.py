"""The Evaluate stage: the final policy on named benchmarks (paper §5.1). Needs engines and judge, no trainer.

A driver that died or was suspended goes on: its next attempt asks only what was not finished
(`orchestrator/validation.py`).
"""

from __future__ import annotations

from pathlib import Path

from rstar2_train.api.contracts import Outcome, StageFailed
from rstar2_train.data.problems import DataError
from rstar2_train.evaluation.benchmarks import BenchmarkFile, read_benchmarks
from rstar2_train.orchestrator.context import StageContext
from rstar2_train.orchestrator.initial_policy import initial_policy
from rstar2_train.orchestrator.rollout_session import RolloutSession
from rstar2_train.orchestrator.sessions import load_chat_format
from rstar2_train.orchestrator.validation import measure_problems, measure_validation, wants_validation


async def run(ctx: StageContext) -> Outcome:
    """Run the stage to its end. Raises Suspend or StageFailed."""
    settings = ctx.stage.evaluate
    assert settings is not None
    source = initial_policy(ctx.job, ctx.stage, ctx.state)
    try:
        named = list(read_benchmarks(BenchmarkFile(one.name, Path(one.data)) for one in settings.benchmarks))
    except DataError as error:
        raise StageFailed("BadData", str(error), retryable=False) from error
    async with RolloutSession(ctx, load_chat_format(ctx, source.model)) as rollouts:
        await rollouts.push_folder(source.model, source.version)
        if source.stage is not None and wants_validation(ctx, source.stage):
            await measure_validation(ctx, rollouts, source.stage, step=None)
        await measure_problems(
            ctx,
            rollouts,
            ctx.stage,
            [problem for _, problem in named],
            model=source.model,
            samples=settings.samples,
            sampling=settings.sampling,
            step=None,
            benchmarks={problem.id: name for name, problem in named},
        )
    return ctx.outcome("completed", "Completed", f"measured {len(named)} problems")
