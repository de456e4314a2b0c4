"""Measures what staleness costs in learning: the tiny task with maxStaleness 0, 1 and 4, and 4 without correction.

Key `staleness` of `bench.pipeline`: held-out pass@1 per seed, its difference to maxStaleness 0, and seconds per step.
The seed is the unit: the seeds differ by more than the evaluation error.
"""

from __future__ import annotations

import asyncio
import statistics
from pathlib import Path
from typing import Any

from bench.pipeline_runs import (
    FULL,
    SHORT,
    VARIANTS,
    Size,
    first_run_name,
    pass_at_1,
    read_metrics,
    run_stage,
    running_services,
    runs_folder,
    start_from,
    write_job,
)
from rstar2_train.launch.local.run import add_tools_to_path


def measure(*, quick: bool) -> dict[str, Any]:
    """Return the value of the key `staleness`."""
    add_tools_to_path()
    return asyncio.run(measure_staleness(runs_folder(quick=quick), SHORT if quick else FULL))


async def measure_staleness(state: Path, size: Size) -> dict[str, Any]:
    """Run every variant of every seed, and return the results."""
    result: dict[str, Any] = {"sft": []} | {name: {"pass_at_1": [], "seconds_per_step": []} for name in VARIANTS}
    for seed in range(size.seeds):
        job, first = write_job(state, name=first_run_name(seed), seed=seed, size=size, grpo=VARIANTS["0"])
        async with running_services(first, job) as services:
            await run_stage(services, job, first, "sft")
            for variant, grpo in VARIANTS.items():
                name = f"staleness-{seed}-{variant.replace('_', '-')}"
                job, own = write_job(state, name=name, seed=seed, size=size, grpo=grpo)
                start_from(first, own)
                await run_stage(services, job, own, "rl-1")
                values = read_metrics(own, "time/step_seconds")
                result[variant]["pass_at_1"].append(pass_at_1(own, "rl-1"))
                result[variant]["seconds_per_step"].append(statistics.fmean(values[1:]))
            result["sft"].append(pass_at_1(first, "sft"))
    for variant in VARIANTS:
        result[variant]["seconds_per_step"] = statistics.fmean(result[variant]["seconds_per_step"])
        if variant != "0" and size.seeds > 1:
            pairs = zip(result[variant]["pass_at_1"], result["0"]["pass_at_1"], strict=True)
            differences = [own - base for own, base in pairs]
            result[variant]["mean_difference_to_0"] = statistics.fmean(differences)
            result[variant]["standard_error"] = statistics.stdev(differences) / len(differences) ** 0.5
    return result
