"""The Evaluate stage: measures the final policy on named benchmarks (paper §5.1). Needs engines and judge, no trainer.

A restarted attempt samples only the missing samples (`orchestrator/validation.py`).
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from rstar2_train.api.contracts import Outcome, StageFailed
from rstar2_train.data.problems import DataError
from rstar2_train.evaluation.benchmarks import BenchmarkFile, read_benchmarks
from rstar2_train.orchestrator.context import StageContext
from rstar2_train.orchestrator.initial_policy import initial_policy
from rstar2_train.orchestrator.sessions import SESSIONS, Sessions
from rstar2_train.orchestrator.validation import EvaluationRun, needs_validation, run_evaluation, run_validation


async def run(ctx: StageContext, sessions: Sessions = SESSIONS) -> Outcome:
    """Run the stage to its end. Raises SuspendRequested or StageFailed."""
    settings = ctx.stage.evaluate
    assert settings is not None
    source = initial_policy(ctx.job, ctx.stage, ctx.state)
    files = [BenchmarkFile(benchmark.name, Path(benchmark.data)) for benchmark in settings.benchmarks]
    try:
        named_problems = await asyncio.to_thread(list, read_benchmarks(files))
    except DataError as error:
        raise StageFailed("BadData", str(error), retryable=False) from error
    chat_format = await asyncio.to_thread(sessions.chat_format, ctx, source.model)
    async with sessions.rollouts(ctx, chat_format) as rollouts:
        await rollouts.weights.push_folder(source.model, source.version)
        if source.stage is not None and needs_validation(ctx, source.stage):
            await run_validation(ctx, rollouts, source.stage, step=None)
        run = EvaluationRun(
            stage=ctx.stage,
            model=source.model,
            problems=[problem for _, problem in named_problems],
            samples=settings.samples,
            sampling=settings.sampling,
            benchmarks={problem.id: name for name, problem in named_problems},
        )
        await run_evaluation(ctx, rollouts, run)
    return ctx.outcome("completed", "Completed", f"evaluated {len(named_problems)} problems")
