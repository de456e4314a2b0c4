"""The Evaluate stage: the final policy on named benchmarks (paper §5.1). Needs engines and judge, no trainer."""

from __future__ import annotations

import dataclasses

from rstar2_train.curriculum.context import Context
from rstar2_train.curriculum.handover import incoming
from rstar2_train.curriculum.measure import load_problems, measure_problems, measure_validation, wants_validation
from rstar2_train.curriculum.rollouts import Rollouts
from rstar2_train.curriculum.sft import load_protocol
from rstar2_train.job.contracts import Outcome


async def run(ctx: Context) -> Outcome:
    """Run the stage to its end. Raises Suspend or StageFailed."""
    settings = ctx.stage.evaluate
    assert settings is not None
    source = incoming(ctx.job, ctx.stage, ctx.state)
    problems, benchmarks = [], {}
    for benchmark in settings.benchmarks:
        for problem in load_problems(benchmark.data):
            named = dataclasses.replace(problem, id=f"{benchmark.name}/{problem.id}")
            problems.append(named)
            benchmarks[named.id] = benchmark.name
    async with Rollouts(ctx, load_protocol(ctx, source.model)) as rollouts:
        await rollouts.push_folder(source.model, source.version)
        if source.stage is not None and wants_validation(ctx, source.stage):
            await measure_validation(ctx, rollouts, source.stage, step=None)
        await measure_problems(
            ctx,
            rollouts,
            ctx.stage,
            problems,
            samples=settings.samples,
            sampling=settings.sampling,
            step=None,
            benchmarks=benchmarks,
        )
    return ctx.outcome("completed", "Completed", f"measured {len(problems)} problems")
