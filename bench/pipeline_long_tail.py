"""Measures what overlap gains with a slow tool: steps per second with maxStaleness 1 against 0, and idle shares.

Key `long_tail` of `bench.pipeline`. The slowest calls of the tool need 20 times the median. The idle shares are those
of the trainer (no batch to train on) and of the engine (no running request), from the first step to the last.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

import aiohttp

from bench.pipeline_runs import (
    FULL,
    SHORT,
    VARIANTS,
    Size,
    first_run_name,
    read_metrics,
    run_stage,
    running_services,
    runs_folder,
    start_from,
    write_job,
)
from rstar2_train.api.contracts import Outcome
from rstar2_train.api.state_dir import JobState
from rstar2_train.launch.local.run import add_tools_to_path
from rstar2_train.launch.local.services import Services
from rstar2_train.tracking.tracker import journal_file

SLOW_SECONDS = 6.0
"""Seconds of a slow tool call; the others take a twentieth."""
SLOW_SHARE = 0.02
"""Share of slow calls, so that the 99th percentile is a slow call."""


def measure(*, quick: bool) -> dict[str, Any]:
    """Return the value of the key `long_tail`."""
    add_tools_to_path()
    return asyncio.run(measure_long_tail(runs_folder(quick=quick), SHORT if quick else FULL))


async def measure_long_tail(state: Path, size: Size) -> dict[str, Any]:
    """Run both variants with a slow tool, and return the results."""
    job, first = write_job(state, name=first_run_name(0), seed=0, size=size, grpo=VARIANTS["0"])
    steps: dict[str, float] = {}
    idle: dict[str, float] = {}
    async with running_services(first, job) as services:
        await run_stage(services, job, first, "sft")
        for variant in ("0", "1"):
            grpo = VARIANTS[variant] | {"steps": size.tail_steps}
            job, own = write_job(state, name=f"tail-{variant}", seed=0, size=size, grpo=grpo)
            shutil.rmtree(own.root / "stages", ignore_errors=True)  # idle times need a whole run
            journal_file(own.root).unlink(missing_ok=True)
            start_from(first, own)
            watching = asyncio.create_task(watch_engine(services, own))
            await run_stage(services, job, own, "rl-1", module=("bench.pipeline_long_tail",))
            idle[f"idle_engines_{variant}"] = await watching
            seconds = read_metrics(own, "time/step_seconds")[1:]
            steps[variant] = len(seconds) / sum(seconds)
            idle[f"idle_trainer_{variant}"] = sum(read_metrics(own, "time/wait_seconds")[1:]) / sum(seconds)
    return {"speedup_1": steps["1"] / steps["0"], "steps_per_second": steps, **idle}


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
