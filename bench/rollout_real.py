"""The part `real` of bench/rollout.py: the policies on two vLLM engines whose KV cache overflows.

The trajectories are those of the simulator, with an eighth of their tokens: the engines sample as many tokens as each
turn has. Scheduler, pool, engine client and failover are those of a job. Each policy has a step of other prompts first,
as in the simulated part: `Graded` learns the lengths. The simulator then runs the same trajectories on a hardware model
that was fitted to these engines before; its error is that of the makespan. The fit has two parts: constant batches, and
the makespan of other trajectories, by which all times are scaled, because orchestrator and engines share the cores.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from array import array
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.rollout_engines import (
    ENGINES,
    PROMPT_TOKENS,
    RESPONSE_TOKENS,
    engine_client,
    engines,
    fit_hardware,
    random_tokens,
    recomputed_tokens,
    write_endless_policy,
)
from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.api.roles import AdmissionSpec, RolloutSpec
from rstar2_train.api.stages import Sampling
from rstar2_train.inference.policies import PolicyName, make_policy
from rstar2_train.inference.pool import EnginePool, PoolTimes
from rstar2_train.inference.weight_update import FolderUpdate
from rstar2_train.judge.client.client import JudgeClient
from rstar2_train.rollout.agent import Agent
from rstar2_train.rollout.chat_format import ChatFormat
from rstar2_train.rollout.context import RolloutContext
from rstar2_train.rollout.generation import FailoverGenerator
from rstar2_train.simulation.bound import lower_bound
from rstar2_train.simulation.hardware import Hardware
from rstar2_train.simulation.run import SimulationResult, simulate
from rstar2_train.simulation.workload import LengthStatistics, SimulatedTrajectory, SimulatedTurn, draw_step
from tests.support.engine import Engine

SCALE = 8
"""Tokens of the paper's budget / tokens here."""
STATISTICS = LengthStatistics(budget=RESPONSE_TOKENS * SCALE, mean=4000.0)
SAMPLES = 16
OBSERVE_SECONDS = 1.0
"""Interval of live figures: steps here take seconds instead of minutes."""
STATIC_LIMITS = (24, 32, 48, 64, 80, 96, 128)
NO_LIMIT = 256
CALIBRATION_LIMIT, CALIBRATION_SEED = 48, 1000
POLICIES: tuple[PolicyName, ...] = ("Static", "Reserve", "Graded")
TIMES = PoolTimes(patience=300, load=60, straggler=30, check_interval=OBSERVE_SECONDS)


def measure(*, quick: bool) -> dict[str, Any]:
    """Return `real`, per policy the mean over the seeds, and `simulator_error`."""
    with tempfile.TemporaryDirectory(prefix="rstar2-bench-") as temporary:
        folder = Path(temporary)
        model = write_endless_policy(folder / "model")
        with engines(model, folder) as started:
            return asyncio.run(_measure(started, model, folder, seeds=1 if quick else 4, prompts=16 if quick else 24))


async def _measure(started: Sequence[Engine], model: Path, folder: Path, *, seeds: int, prompts: int) -> dict[str, Any]:
    urls, token = [engine.url for engine in started], started[0].token
    async with EnginePool(urls, token=token, times=TIMES) as pool:
        await pool.push(FolderUpdate.make(model, "fit"))
        hardware = await fit_hardware([engine_client(pool, url) for url in urls])

    async def run(policy: PolicyName, limit: int, steps: Sequence[Sequence[SimulatedTrajectory]]) -> dict[str, float]:
        admission = AdmissionSpec(policy=policy, max_in_flight=limit)
        async with EnginePool(urls, token=token, times=TIMES, admission=admission) as pool:
            return await _run(pool, model, folder, steps)

    other = [_draw(CALIBRATION_SEED, 0, prompts=prompts)]
    seconds = (await run("Static", CALIBRATION_LIMIT, other))["makespan_s"]
    hardware = _slower(hardware, seconds / _simulated("Static", CALIBRATION_LIMIT, other, hardware).makespan)
    _log(f"fitted {hardware}")
    workloads = [[_draw(seed, step, prompts=prompts) for step in range(2)] for seed in range(seeds)]
    best = min(STATIC_LIMITS, key=lambda limit: _simulated("Static", limit, workloads[0], hardware).step_seconds[1])
    rows: dict[str, list[dict[str, float]]] = {policy: [] for policy in POLICIES}
    for steps in workloads:
        for policy in POLICIES:
            limit = best if policy == "Static" else NO_LIMIT
            row = await run(policy, limit, steps)
            simulation = _simulated(policy, limit, steps, hardware)
            row |= {
                "simulated_makespan_s": simulation.step_seconds[1],
                "simulated_preemptions": simulation.preemptions,
                "bound_s": lower_bound(steps[1], hardware, engines=ENGINES),
            }
            _log(f"{policy}: {row}")
            rows[policy].append(row)
    means = {policy: {key: fmean(row[key] for row in each) for key in each[0]} for policy, each in rows.items()}
    errors = [mean["simulated_makespan_s"] / mean["makespan_s"] - 1 for mean in means.values()]
    real: dict[str, Any] = {
        policy: {key: round(value, 3) for key, value in mean.items()} for policy, mean in means.items()
    }
    real["Static"]["max_in_flight"] = best
    return {
        "real": real,
        "simulator_error": round(max(map(abs, errors)), 4),
        "real_workload": {
            "engines": ENGINES,
            "trajectories": prompts * SAMPLES,
            "seeds": seeds,
            "hardware": hardware.model_dump(by_alias=False),
        },
    }


async def _run(
    pool: EnginePool, model: Path, folder: Path, steps: Sequence[Sequence[SimulatedTrajectory]]
) -> dict[str, float]:
    """Run the steps one after the other; return the figures of the last one."""
    await pool.push(FolderUpdate.make(model, "bench"))
    if len(pool.serving) < ENGINES:
        raise RuntimeError("an engine does not serve: see its log")
    chat_format = ChatFormat.load(model)
    chat_format.stop_ids = []  # turns have the length that was drawn
    agent = Agent(
        chat_format=chat_format,
        sampling=Sampling(max_response_tokens=RESPONSE_TOKENS, max_turns=10),
        rollout=RolloutSpec(),
        limits=JudgeLimits(),
    )
    context = RolloutContext(agent=agent, pool=pool, judge=JudgeClient("http://127.0.0.1:9"), seed=(0, "bench"))
    for step in steps:
        preemptions, recomputed = await _preemptions(pool), recomputed_tokens(folder)
        started = time.monotonic()
        await asyncio.gather(*(_trajectory(each, at, context) for at, each in enumerate(step)))
        seconds = time.monotonic() - started
    return {
        "makespan_s": seconds,
        "preemptions": await _preemptions(pool) - preemptions,
        "recomputed_tokens": recomputed_tokens(folder) - recomputed,
    }


async def _preemptions(pool: EnginePool) -> int:
    loads = [await pool.client(url).load() for url in pool.serving]
    return sum(load.preemptions for load in loads if load is not None)


async def _trajectory(planned: SimulatedTrajectory, number: int, context: RolloutContext) -> None:
    """Sample the turns of a trajectory; its tool sleeps."""
    source = random.Random(f"{planned.group} {number}")
    ids = array("i", random_tokens(source, planned.prompt_tokens))
    slot = context.pool.admission.request_slot(
        tokens=planned.prompt_tokens + planned.budget, prompt_tokens=planned.prompt_tokens, group=planned.group
    )
    finished: int | None = None
    try:
        generate = FailoverGenerator(context, slot, (planned.group, number))
        await generate.wait_for_engine()
        for at, turn in enumerate(planned.turns):
            generation = await generate(ids, max_tokens=turn.tokens, turn=at)
            assert len(generation.token_ids) == turn.tokens
            ids.extend(generation.token_ids)
            if at + 1 < len(planned.turns):
                await asyncio.sleep(turn.tool_seconds)
            ids.extend(random_tokens(source, turn.tool_tokens))
        finished = len(ids)
    finally:
        slot.release(tokens=finished)


def _draw(seed: int, step: int, *, prompts: int) -> list[SimulatedTrajectory]:
    """Return the trajectories of a step, with fewer tokens and shorter tools."""
    drawn = draw_step(STATISTICS, prompts=prompts, samples=SAMPLES, seed=seed, first=step * prompts)
    return [
        SimulatedTrajectory(
            each.group,
            min(PROMPT_TOKENS, each.prompt_tokens // SCALE),
            RESPONSE_TOKENS,
            tuple(
                SimulatedTurn(max(1, turn.tokens // SCALE), turn.tool_tokens // SCALE, turn.tool_seconds / SCALE)
                for turn in each.turns
            ),
        )
        for each in drawn
    ]


def _slower(hardware: Hardware, factor: float) -> Hardware:
    """Return a model whose times are multiplied by `factor`."""
    times = [name for name in Hardware.model_fields if name.endswith("_seconds")]
    return hardware.model_copy(update={name: factor * getattr(hardware, name) for name in times})


def _simulated(
    policy: PolicyName, limit: int, steps: Sequence[Sequence[SimulatedTrajectory]], hardware: Hardware
) -> SimulationResult:
    return simulate(
        steps,
        hardware,
        make_policy(policy, max_in_flight=limit),
        engines=ENGINES,
        observe_seconds=OBSERVE_SECONDS,
    )


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
