"""Measures what staleness costs in learning: the tiny task with maxStaleness 0, 1 and 4, and 4 without correction.

Key `staleness` of `bench.pipeline`: held-out pass@1 per seed at equal steps, its mean difference to maxStaleness 0 with
its standard error, and the seconds per step. The seed is the unit: the seeds differ by more than the evaluation error.
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
    Machine,
    Size,
    clear_stage,
    first_run_name,
    pass_at_1,
    read_metrics,
    runs_folder,
    save_result,
    saved_result,
    start_from,
    with_services,
    write_job,
)
from rstar2_train.api.state_dir import JobState
from rstar2_train.launch.local.run import add_tools_to_path


def measure(*, quick: bool) -> dict[str, Any]:
    """Return the value of the key `staleness`."""
    add_tools_to_path()
    return asyncio.run(measure_staleness(runs_folder(quick=quick), SHORT if quick else FULL))


async def measure_staleness(folder: Path, size: Size) -> dict[str, Any]:
    """Run the missing variants of every seed, and return the results of all."""
    rows = [await run_seed(folder, seed, size) for seed in range(size.seeds)]
    return {"sft": [row["0"]["sft"] for row in rows]} | {
        variant: summary([row[variant] for row in rows], [row["0"] for row in rows]) for variant in VARIANTS
    }


async def run_seed(folder: Path, seed: int, size: Size) -> dict[str, dict[str, Any]]:
    """Return the result of every variant of a seed; those with a saved result are not run again."""
    job, first = write_job(folder, name=first_run_name(seed), seed=seed, size=size, grpo=VARIANTS["0"])
    states = {variant: JobState(folder / _run_name(seed, variant)) for variant in VARIANTS}
    missing = [variant for variant, state in states.items() if saved_result(state, size) is None]

    async def run_missing(machine: Machine) -> None:
        await machine.run_stage(job, first, "sft")
        for variant in missing:
            name = _run_name(seed, variant)
            own_job, own = write_job(folder, name=name, seed=seed, size=size, grpo=VARIANTS[variant])
            clear_stage(own)
            start_from(first, own)
            await machine.run_stage(own_job, own, "rl-1")
            save_result(own, size, run_result(own, size))
            print(f"{name}: {saved_result(own, size)}", flush=True)

    if missing:
        await with_services(first, job, run_missing)
    rows = {variant: saved_result(state, size) for variant, state in states.items()}
    return {variant: row for variant, row in rows.items() if row is not None}


def run_result(state: JobState, size: Size) -> dict[str, Any]:
    """Return the figures of one finished run. Raises RuntimeError if it has another number of steps."""
    outcome = state.stage("rl-1").outcome()
    seconds = read_metrics(state, "time/step_seconds")
    trained = outcome.checkpoint.step if outcome is not None and outcome.checkpoint is not None else None
    if trained != size.steps or len(seconds) != size.steps:
        raise RuntimeError(f"{state.root}: the model has {trained} of {size.steps} steps; delete the folder and retry")
    ages = read_metrics(state, "staleness/mean")
    return {
        "sft": pass_at_1(state, "sft"),
        "pass_at_1": pass_at_1(state, "rl-1"),
        "seconds_per_step": round(statistics.fmean(seconds[1:]), 3),
        "staleness": round(statistics.fmean(ages), 3) if ages else 0.0,
    }


def summary(rows: list[dict[str, Any]], base: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of one variant over the seeds; `base`: those of maxStaleness 0, in the same order of seeds.

    `lower_bound`: mean difference to `base` minus two standard errors; the seed is the unit.
    """
    seconds = [row["seconds_per_step"] for row in rows]
    result: dict[str, Any] = {
        "pass_at_1": [row["pass_at_1"] for row in rows],
        "seconds_per_step": statistics.fmean(seconds),
        "seconds_per_step_by_seed": seconds,
        "staleness": statistics.fmean(row["staleness"] for row in rows),
    }
    differences = [own["pass_at_1"] - other["pass_at_1"] for own, other in zip(rows, base, strict=True)]
    gains = [row["pass_at_1"] - row["sft"] for row in rows]
    result["mean_gain_over_sft"] = statistics.fmean(gains)
    mean = result["mean_difference_to_0"] = statistics.fmean(differences)
    if len(rows) > 1:
        error = statistics.stdev(differences) / len(differences) ** 0.5
        result |= {"standard_error": error, "lower_bound": mean - 2 * error}
    return result


def _run_name(seed: int, variant: str) -> str:
    return f"staleness-{seed}-{variant.replace('_', '-')}"
