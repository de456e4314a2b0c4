"""How long a pool goes on without an engine that serves, and what becomes of a request when its engine falls silent."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from rstar2_train.api.stages import Sampling
from rstar2_train.inference.client import EngineUnavailable
from rstar2_train.inference.openai_client import OpenAIClient
from rstar2_train.inference.pool import EnginePool, PoolTimes
from rstar2_train.rollout.context import RolloutContext
from rstar2_train.rollout.generation import Backoff, FailoverGenerator

TIMES = PoolTimes(patience=0.5, arrival=60, load=5, straggler=0.1, check=0.1, retry=0.1, look=0.05)
MODEL = "m"
connect = partial(OpenAIClient, model=MODEL)


class Engine:
    """An engine's two routes that matter here, with the answers of a model; it can fall silent, or be away."""

    def __init__(self) -> None:
        self.url = ""
        self.away = False
        self.silent = False
        self.asked = asyncio.Event()
        """Somebody wants a turn sampled."""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["Engine"]:
        """Serves on a free port."""
        app = web.Application()
        app.add_routes([web.get("/health", self._health), web.get("/v1/models", self._models)])
        app.add_routes([web.post("/v1/completions", self._complete)])
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _answer(self, body: dict[str, Any]) -> web.Response:
        if self.silent:
            await asyncio.sleep(3600)
        return web.json_response(body, status=503 if self.away else 200)

    async def _health(self, _: web.Request) -> web.Response:
        return await self._answer({})

    async def _models(self, _: web.Request) -> web.Response:
        return await self._answer({"data": [{"id": MODEL, "max_model_len": 100}]})

    async def _complete(self, _: web.Request) -> web.Response:
        self.asked.set()
        choice = {"token_ids": [7], "logprobs": {"token_logprobs": [-1.0]}, "finish_reason": "stop"}
        return await self._answer({"choices": [choice]})


async def test_an_engine_that_is_found_has_the_time_to_start_again() -> None:
    """Its pod loads the model anew; one on this machine, whose supervisor is quick, has not that long."""
    async with Engine().serving() as engine, asyncio.timeout(30):

        async def find() -> frozenset[str]:
            return frozenset({engine.url})

        for pool in (
            EnginePool(token="", find=find, times=TIMES, connect=connect),
            EnginePool([engine.url], token="", times=TIMES, connect=connect),
        ):
            async with pool:
                engine.away = False
                await pool.update_weights(Path(), MODEL)
                engine.away = True
                while pool.serving:
                    await asyncio.sleep(0.05)
                waiting = asyncio.create_task(pool.admission.enter(tokens=1).engine())
                done, _ = await asyncio.wait([waiting], timeout=3 * TIMES.patience)
                if pool._find is None:
                    with pytest.raises(EngineUnavailable, match="no engine has served"):
                        await waiting
                else:
                    assert not done
                    engine.away = False
                    assert await waiting == engine.url


async def test_a_turn_in_an_engine_that_falls_silent_is_sampled_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long before the request's own limit, by the look at the engine."""
    monkeypatch.setattr("rstar2_train.inference.openai_client._SHORT_SECONDS", 0.3)
    async with (
        Engine().serving() as one,
        Engine().serving() as other,
        EnginePool([one.url, other.url], token="", times=TIMES, connect=connect) as pool,
        asyncio.timeout(30),
    ):
        await pool.update_weights(Path(), MODEL)
        while len(pool.serving) < 2:
            await asyncio.sleep(0.05)
        ticket = pool.admission.enter(tokens=1)
        first, second = (one, other) if await ticket.engine() == one.url else (other, one)
        first.silent = True
        agent: Any = SimpleNamespace(sampling=Sampling(), chat_format=SimpleNamespace(stop_ids=()))
        judge: Any = None
        context = RolloutContext(agent=agent, pool=pool, judge=judge, seed=())
        seat = FailoverGenerator(context, ticket, seed=(0,), backoff=Backoff(0.1))
        turn = asyncio.create_task(seat([1, 2], max_tokens=10_000, turn=0))
        await first.asked.wait()
        assert (await turn).token_ids == [7]
        assert pool.serving == [second.url]
