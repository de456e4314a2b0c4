"""The part `loop` of bench/rollout.py: CPU per request and lag of the event loop at 1,000 concurrent trajectories.

`rollout_workers.py` adds the same of one and of two processes, with the pool, the scheduler and a judge over HTTP.

The agent loop, the engine client and the chat format run against a stub engine in another process, which answers after
a delay with 2,000 tokens. Prompts have 4,000 tokens. One trajectory in ten is hostile: its turns are nothing but tags,
or its tool prints as much as the judge passes on. The trajectories follow each other for a while, so that connections
are open and the requests spread over time; only then the measurement starts.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.rollout_stub import HOSTILE_OUTPUT, KINDS, PROMPT_TOKENS, stub_engine
from bench.rollout_workers import measure_workers
from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.api.roles import RolloutSpec
from rstar2_train.api.stages import Sampling
from rstar2_train.inference.client import EngineClient
from rstar2_train.inference.engine_session import EngineSession
from rstar2_train.inference.sampled_turn import SampledTurn
from rstar2_train.judge.types import CallResult
from rstar2_train.rollout.agent import Agent
from rstar2_train.rollout.chat_format import ChatFormat
from rstar2_train.rollout.trajectory import Trajectory
from rstar2_train.utils.event_loop import run_with_uvloop
from rstar2_train.utils.loop_lag import LoopLag
from rstar2_train.utils.pacer import Pacer
from tests.support.engine import load_chat_format, random_model

CONCURRENT = 1000
HOSTILE = 10
"""One trajectory in this number is hostile."""
TURNS = 2
WARM_UP = 45.0


class _Judge:
    def __init__(self, *, hostile: bool) -> None:
        self._output = HOSTILE_OUTPUT if hostile else "204\n"

    async def run(self, code: str, stdin: str = "", *, limits: JudgeLimits | None = None) -> CallResult:
        await asyncio.sleep(0.3)
        return CallResult(status="ok", stdout=self._output)


def measure(*, quick: bool) -> dict[str, Any]:
    """Return `loop_cpu_ms_per_request`, `loop_lag_p99_ms` and the requests that were measured."""
    with tempfile.TemporaryDirectory() as folder:
        chat_format = load_chat_format(random_model(Path(folder) / "model", seed=0))
    seconds = 45 if quick else 120
    with stub_engine(chat_format) as port:
        results = run_with_uvloop(_measure(chat_format, port, seconds=seconds))
    print(results, file=sys.stderr, flush=True)
    results["loop"]["workers"] = []
    for count in (1, 2):
        results["loop"]["workers"].append(measure_workers(chat_format, count, seconds=seconds))
        print(results["loop"]["workers"][-1], file=sys.stderr, flush=True)
    return results


async def _measure(chat_format: ChatFormat, port: int, *, seconds: float) -> dict[str, Any]:
    agent = Agent(
        chat_format=chat_format,
        sampling=Sampling(max_response_tokens=12_288, max_turns=10),
        rollout=RolloutSpec(),
        limits=JudgeLimits(),
    )
    prompt = array("i", chat_format.encode("Find 12345 + 7 = x.\n" * PROMPT_TOKENS)[:PROMPT_TOKENS])
    requests = 0
    async with EngineSession() as session:
        client = EngineClient(f"http://127.0.0.1:{port}", token="", session=session)
        for _ in range(300):
            if await client.healthy():
                break
            await asyncio.sleep(0.2)

        pacer = Pacer()

        async def trajectory(number: int) -> None:
            nonlocal requests
            hostile = number % HOSTILE == 0
            while True:
                record = Trajectory(prompt_id="p", sample=number, prompt_ids=prompt)

                async def generate(token_ids: Sequence[int], *, max_tokens: int, turn: int) -> SampledTurn:
                    kind = ("tags" if hostile and turn else "call") if turn < TURNS - 1 or hostile else "answer"
                    nonlocal requests
                    requests += 1
                    await pacer.wait()
                    return await client.generate(token_ids, max_tokens=max_tokens, seed=KINDS.index(kind))

                await agent.run(record, generate=generate, executor=_Judge(hostile=hostile and number % 20 == 0))

        async with LoopLag() as lag:
            tasks = [asyncio.create_task(trajectory(number)) for number in range(CONCURRENT)]
            await asyncio.sleep(WARM_UP)
            lag.take(1.0)
            before, started, cpu = requests, time.monotonic(), time.process_time()
            await asyncio.sleep(seconds)
            measured, elapsed, cpu = requests - before, time.monotonic() - started, time.process_time() - cpu
            p50, p99, longest = (round(1000 * lag.quantile(fraction), 2) for fraction in (0.5, 0.99, 1.0))
            for task in tasks:
                task.cancel()
            failures = [
                each
                for each in await asyncio.gather(*tasks, return_exceptions=True)
                if not isinstance(each, asyncio.CancelledError)
            ]
            if failures:
                raise RuntimeError(f"{len(failures)} trajectories failed") from failures[0]
    return {
        "loop_cpu_ms_per_request": round(1000 * cpu / measured, 3),
        "loop_lag_p99_ms": p99,
        "loop": {
            "requests": measured,
            "requests_per_second": round(measured / elapsed, 1),
            "lag_p50_ms": p50,
            "lag_max_ms": longest,
        },
    }
