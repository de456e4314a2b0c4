"""The stub of bench/rollout_loop.py: an engine that answers after a delay with 2,000 tokens, and a judge.

One turn in ten is hostile: nothing but tags, or the output of its tool is as long as the judge passes on.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import multiprocessing
import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from aiohttp import web

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.inference.turn_wire import PART_TOKENS, TurnPart, decode_request, encode_part
from rstar2_train.judge.types import CallResult
from rstar2_train.rollout.chat_format import ChatFormat
from rstar2_train.utils.ports import free_ports
from tests.support.model_turns import render_call

PROMPT_TOKENS, REPLY_TOKENS = 4000, 2000
DELAY = (20.0, 40.0)
"""Seconds that the stub takes for a turn, as a real engine: 1,000 trajectories make 33 requests per second."""
TOOL_SECONDS = 0.3
HOSTILE_OUTPUT = "." + " " * (JudgeLimits().output_bytes - 2) + "."
"""As long as the judge passes on; without the last character the agent loop would strip it."""
KINDS = ("call", "answer", "tags")
"""Kinds of replies. A request selects one by its seed; other seeds have a reply that fits the turn."""


@contextmanager
def stub_engine(chat_format: ChatFormat) -> Iterator[int]:
    """Serve the stub in another process; yield its port."""
    ids = chat_format.encode("x = 12345 + 7\n" * REPLY_TOKENS)
    call = chat_format.encode(render_call("print(6 * 34)"))
    end = [chat_format.end_of_turn_id]
    replies = {
        "call": [*ids[: REPLY_TOKENS - len(call) - 1], *call, *end],
        "answer": [*ids[: REPLY_TOKENS - 1], *end],
        "tags": [*chat_format.encode("<tool_call>")[:1] * (REPLY_TOKENS - 1), *end],
    }
    (port,) = free_ports(1)
    stub = multiprocessing.get_context("spawn").Process(target=_serve, args=(port, replies), daemon=True)
    stub.start()
    try:
        yield port
    finally:
        stub.terminate()
        stub.join()


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
    requests = itertools.count()
    calls = itertools.count()
    short = CallResult(status="ok", stdout="204\n").to_dict()
    long = CallResult(status="ok", stdout=HOSTILE_OUTPUT).to_dict()

    async def generate(request: web.Request) -> web.StreamResponse:
        parameters, ids = decode_request(await request.read())
        seed = parameters["seed"]
        next(requests)
        response = web.StreamResponse()
        await response.prepare(request)
        fitting = "call" if len(ids) <= PROMPT_TOKENS else "answer" if seed % 10 else "tags"
        parts = bodies[KINDS[seed] if seed < len(KINDS) else fitting]
        seconds = random.uniform(*DELAY)
        with suppress(ConnectionError):  # at the end of the measurement
            for part in parts[:-1]:
                await asyncio.sleep(seconds / len(parts))
                await response.write(part)
            await asyncio.sleep(seconds / len(parts))
            await response.write_eof(parts[-1])  # in one packet with the end, as the engine's route does
        return response

    async def judge(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        await asyncio.sleep(TOOL_SECONDS)
        results = [{"index": at, **(short if next(calls) % 20 else long)} for at in range(len(body["calls"]))]
        return web.Response(text="".join(json.dumps(result) + "\n" for result in results))

    async def count(_: web.Request) -> web.Response:
        return web.json_response(next(requests))

    async def health(_: web.Request) -> web.Response:
        return web.Response()

    app = web.Application(client_max_size=1 << 26)
    app.add_routes([web.post("/rstar2/generate", generate), web.get("/health", health)])
    app.add_routes([web.post("/v1/batch", judge), web.get("/requests", count)])
    web.run_app(app, host="127.0.0.1", port=port, print=None)
