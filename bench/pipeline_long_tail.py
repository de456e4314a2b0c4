"""Measures what overlap gains with a slow tool: steps per second with maxStaleness 1 against 0, and idle shares.

Key `long_tail` of `bench.pipeline`. The slowest calls of the tool need 20 times the median. The idle shares are those
of the trainer (no batch to train on) and of the engine (no running request), from the first step to the last.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp

from bench.pipeline_runs import (
    FULL,
    SHORT,
    VARIANTS,
    Machine,
    Size,
    clear_stage,
    first_run_name,
    read_metrics,
    runs_folder,
    save_result,
    saved_result,
    start_from,
    with_services,
    write_job,
)
from rstar2_train.api.contracts import Outcome
from rstar2_train.api.state_dir import JobState
from rstar2_train.launch.local.run import add_tools_to_path
from rstar2_train.launch.local.services import Services

SLOW_SECONDS = 6.0
"""Seconds of a slow tool call; the others take a twentieth."""
SLOW_SHARE = 0.02
"""Share of slow calls, so that the 99th percentile is a slow call."""


def measure(*, quick: bool) -> dict[str, Any]:
    """Return the value of the key `long_tail`."""
    add_tools_to_path()
    return asyncio.run(measure_long_tail(runs_folder(quick=quick), SHORT if quick else FULL))


async def measure_long_tail(folder: Path, size: Size) -> dict[str, Any]:
    """Run the missing variants with a slow tool, and return the results of both. Their validation is a short one."""
    job, first = write_job(folder, name=first_run_name(0), seed=0, size=size, grpo=VARIANTS["0"])
    states = {variant: JobState(folder / f"tail-{variant}") for variant in ("0", "1")}
    missing = [variant for variant, state in states.items() if saved_result(state, size) is None]

    async def run_missing(machine: Machine) -> None:
        await machine.run_stage(job, first, "sft")
        for variant in missing:
            grpo = VARIANTS[variant] | {"steps": size.tail_steps}
            short = replace(size, problems=8, samples=1)
            own_job, own = write_job(folder, name=f"tail-{variant}", seed=0, size=short, grpo=grpo)
            clear_stage(own)
            start_from(first, own)
            watching = asyncio.create_task(watch_engine(machine.services, own))
            await machine.run_stage(own_job, own, "rl-1", module=("bench.pipeline_long_tail",))
            save_result(own, size, run_result(own, idle_engines=await watching))

    if missing:
        await with_services(first, job, run_missing)
    rows = {variant: saved_result(state, size) or {} for variant, state in states.items()}
    steps = {variant: row["steps_per_second"] for variant, row in rows.items()}
    idle = {
        f"idle_{part}_{variant}": row[f"idle_{part}"]
        for part in ("trainer", "engines")
        for variant, row in rows.items()
    }
    return {"speedup_1": steps["1"] / steps["0"], "steps_per_second": steps, **idle}


def run_result(state: JobState, *, idle_engines: float) -> dict[str, float]:
    """Return the figures of one finished run, without its first step, which overlaps nothing."""
    seconds = read_metrics(state, "time/step_seconds")[1:]
    waited = read_metrics(state, "time/wait_seconds")[1:]
    return {
        "steps_per_second": len(seconds) / sum(seconds),
        "idle_trainer": sum(waited) / sum(seconds),
        "idle_engines": idle_engines,
    }


async def watch_engine(services: Services, state: JobState) -> float:
    """Return the share of time without a running request, from the first step to the last; ten samples per second."""
    headers = {"Authorization": f"Bearer {services.engine_token}"}
    samples: list[bool] = []
    folder = state.stage("rl-1")
    async with aiohttp.ClientSession(headers=headers) as session:
        while not folder.outcome_file.exists():
            await asyncio.sleep(0.1)
            progress = state.progress()
            if progress is None or progress.phase != "Training" or progress.stage != "rl-1" or progress.step < 1:
                continue
            async with session.get(f"{services.engine_urls[0]}/metrics") as response:
                lines = (await response.text()).splitlines()
            running = [line for line in lines if line.startswith("vllm:num_requests_running")]
            samples.append(float(running[0].rsplit(" ", 1)[1]) == 0)
    return statistics.fmean(samples) if samples else 0.0


def run_slow_stage(arguments: list[str]) -> int:
    """Run an orchestrator whose tool calls sleep: a few of them 20 times as long as the median."""
    from rstar2_train.orchestrator import __main__ as orchestrator
    from rstar2_train.orchestrator.rollout_session import RolloutSession
    from rstar2_train.orchestrator.sessions import Sessions
    from rstar2_train.orchestrator.stages import grpo

    class SlowToolSession(RolloutSession):
        """Engines, and a judge whose calls have a long tail."""

        def __init__(self, *inputs: Any) -> None:
            super().__init__(*inputs)
            draw, fast = random.Random(0), self._judge.run

            async def run(*call: Any, **options: Any) -> Any:
                slow = draw.random() < SLOW_SHARE
                result = await fast(*call, **options)
                await asyncio.sleep(SLOW_SECONDS if slow else SLOW_SECONDS / 20)
                return result

            self._judge.run = run  # type: ignore[method-assign]

    async def run_stage_slowly(ctx: Any) -> Outcome:
        return await grpo.run(ctx, Sessions(rollouts=SlowToolSession))

    orchestrator.run_stage = run_stage_slowly
    return orchestrator.main(arguments)


if __name__ == "__main__":
    sys.exit(run_slow_stage(sys.argv[1:]))
