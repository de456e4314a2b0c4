"""The part `loop` of bench/rollout.py: CPU per request and lag of the event loop at 1,000 concurrent trajectories.

The agent loop, the engine client and the chat format run against a stub engine in another process, which answers after
a delay with 2,000 tokens. Prompts have 4,000 tokens. One trajectory in ten is hostile: its turns are nothing but tags,
or its tool prints as much as the judge passes on. The trajectories follow each other for a while, so that connections
are open and the requests spread over time; only then the measurement starts.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.api.roles import RolloutSpec
from rstar2_train.api.stages import Sampling
from rstar2_train.inference.client import EngineClient, Generation
from rstar2_train.inference.turn_wire import PART_TOKENS, TurnPart, decode_request, encode_part
from rstar2_train.judge.types import CallResult
from rstar2_train.rollout.agent import Agent
from rstar2_train.rollout.chat_format import ChatFormat
from rstar2_train.rollout.trajectory import Trajectory
from rstar2_train.tools.parser import render_call
from rstar2_train.utils.loop_lag import LoopLag
from rstar2_train.utils.pacer import Pacer
from tests.support.engine import free_port, load_chat_format, random_model

CONCURRENT = 1000
PROMPT_TOKENS, REPLY_TOKENS = 4000, 2000
HOSTILE = 10
"""One trajectory in this number is hostile."""
TURNS = 2
DELAY = (20.0, 40.0)
"""Seconds that the stub takes for a turn, as a real engine: 1,000 trajectories make 33 requests per second."""
WARM_UP = 45.0


class _Judge:
    def __init__(self, *, hostile: bool) -> None:
        self._output = "." + " " * (JudgeLimits().output_bytes - 1) if hostile else "204\n"

    async def run(self, code: str, stdin: str = "", *, limits: JudgeLimits | None = None) -> CallResult:
        await asyncio.sleep(0.3)
        return CallResult(status="ok", stdout=self._output)


def measure(*, quick: bool) -> dict[str, Any]:
    """Return `loop_cpu_ms_per_request`, `loop_lag_p99_ms` and the requests that were measured."""
    with tempfile.TemporaryDirectory() as folder:
        chat_format = load_chat_format(random_model(Path(folder) / "model", seed=0))
    ids = chat_format.encode("x = 12345 + 7\n" * REPLY_TOKENS)
    call = chat_format.encode(render_call("print(6 * 34)"))
    end = [chat_format.end_of_turn_id]
    replies = {
        "call": [*ids[: REPLY_TOKENS - len(call) - 1], *call, *end],
        "answer": [*ids[: REPLY_TOKENS - 1], *end],
        "tags": [*chat_format.encode("<tool_call>")[:1] * (REPLY_TOKENS - 1), *end],
    }
    port = free_port()
    stub = multiprocessing.get_context("spawn").Process(target=_serve, args=(port, replies), daemon=True)
    stub.start()
    try:
        return asyncio.run(_measure(chat_format, port, seconds=45 if quick else 180))
    finally:
        stub.terminate()
        stub.join()


async def _measure(chat_format: ChatFormat, port: int, *, seconds: float) -> dict[str, Any]:
    agent = Agent(
        chat_format=chat_format,
        sampling=Sampling(max_response_tokens=12_288, max_turns=10),
        rollout=RolloutSpec(),
        limits=JudgeLimits(),
    )
    prompt = chat_format.encode("Find 12345 + 7 = x.\n" * PROMPT_TOKENS)[:PROMPT_TOKENS]
    requests = 0
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
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

                async def generate(token_ids: Sequence[int], *, max_tokens: int, turn: int) -> Generation:
                    kind = ("tags" if hostile and turn else "call") if turn < TURNS - 1 or hostile else "answer"
                    nonlocal requests
                    requests += 1
                    await pacer.wait()
                    return await client.generate(token_ids, max_tokens=max_tokens, seed=_KINDS.index(kind))

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


_KINDS = ("call", "answer", "tags")


def _parts(ids: list[int]) -> list[TurnPart]:
    """Return a reply as the engine streams it."""
    return [
        TurnPart(
            ids[start : start + PART_TOKENS],
            [-random.Random(at).random() for at in range(start, min(len(ids), start + PART_TOKENS))],
            [("v1", 0)],
            "stop" if start + PART_TOKENS >= len(ids) else None,
        )
        for start in range(0, len(ids), PART_TOKENS)
    ]


def _serve(port: int, replies: dict[str, list[int]]) -> None:
    """Serve the stub engine: the request's seed names the reply."""
    bodies = {kind: [encode_part(part) for part in _parts(ids)] for kind, ids in replies.items()}

    async def generate(request: web.Request) -> web.StreamResponse:
        parameters, _ = decode_request(await request.read())
        response = web.StreamResponse()
        await response.prepare(request)
        parts = bodies[_KINDS[parameters["seed"]]]
        seconds = random.uniform(*DELAY)
        with suppress(ConnectionError):  # at the end of the measurement
            for part in parts:
                await asyncio.sleep(seconds / len(parts))
                await response.write(part)
        return response

    async def health(_: web.Request) -> web.Response:
        return web.Response()

    app = web.Application(client_max_size=1 << 26)
    app.add_routes([web.post("/rstar2/generate", generate), web.get("/health", health)])
    web.run_app(app, host="127.0.0.1", port=port, print=None)
