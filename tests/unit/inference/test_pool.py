"""The patience of a pool without a serving engine, and the failover of a request whose engine does not respond."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from rstar2_train.api.stages import Sampling
from rstar2_train.inference.client import EngineClient
from rstar2_train.inference.engine_errors import EngineUnavailable
from rstar2_train.inference.engine_load import EngineLoad
from rstar2_train.inference.engine_session import EngineSession
from rstar2_train.inference.openai_client import OpenAIClient
from rstar2_train.inference.pool import EnginePool, PoolTimes
from rstar2_train.inference.weight_update import FolderUpdate
from rstar2_train.rollout.context import RolloutContext
from rstar2_train.rollout.generation import Backoff, FailoverGenerator

TIMES = PoolTimes(
    patience=60,
    discovery_patience=60,
    load=5,
    straggler=0.1,
    check_interval=0.1,
    retry_interval=0.1,
    discovery_interval=0.05,
)
MODEL = "m"
connect = partial(OpenAIClient, model=MODEL)


class FakeEngine:
    """An HTTP server with the routes of an engine; it can be unavailable (503) or unresponsive."""

    def __init__(self) -> None:
        self.url = ""
        self.unavailable = False
        self.unresponsive = False
        self.incompatible = 0
        """Number of replies about its models that are those of another server: the client rejects them."""
        self.models_read = asyncio.Event()
        self.gate: asyncio.Event | None = None
        """Event that a request for the models waits for."""
        self.requested = asyncio.Event()
        """Set by a request for a turn."""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["FakeEngine"]:
        """Serve on a free port."""
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
        if self.unresponsive:
            await asyncio.sleep(3600)
        return web.json_response(body, status=503 if self.unavailable else 200)

    async def _health(self, _: web.Request) -> web.Response:
        return await self._answer({})

    async def _models(self, _: web.Request) -> web.Response:
        self.models_read.set()
        if self.gate is not None:
            await self.gate.wait()
        model: dict[str, Any] = {"id": MODEL, "max_model_len": 100}
        if self.incompatible:
            self.incompatible, model = self.incompatible - 1, {}
        return await self._answer({"data": [model]})

    async def _complete(self, _: web.Request) -> web.Response:
        self.requested.set()
        choice = {"token_ids": [7], "logprobs": {"token_logprobs": [-1.0]}, "finish_reason": "stop"}
        return await self._answer({"choices": [choice]})


async def test_pool_discovered_engine_has_longer_patience() -> None:
    """The pod of a discovered engine may need minutes to load the model; the supervisor of a local engine is quick."""
    async with FakeEngine().serving() as engine, asyncio.timeout(120):

        async def find() -> frozenset[str]:
            return frozenset({engine.url})

        for pool in (
            EnginePool(token="", find=find, times=TIMES, connect=connect),
            EnginePool([engine.url], token="", times=TIMES, connect=connect),
        ):
            async with pool:
                pool.times = TIMES
                engine.unavailable = False
                await pool.push(FolderUpdate.make(Path(), MODEL))
                pool.times = replace(TIMES, patience=0.5)
                engine.unavailable = True
                while pool.serving:
                    await asyncio.sleep(0.05)
                waiting = asyncio.create_task(pool.admission.request_slot(tokens=1).wait_for_engine())
                done, _ = await asyncio.wait([waiting], timeout=3 * pool.times.patience)
                if pool._find is None:
                    with pytest.raises(EngineUnavailable, match="no engine has served"):
                        await waiting
                else:
                    assert not done
                    engine.unavailable = False
                    assert await waiting == engine.url


async def test_pool_undiscovered_engine_drains() -> None:
    """The trajectories of the engine move; it serves again if it is discovered, or if no other engine serves."""
    async with FakeEngine().serving() as leaving, FakeEngine().serving() as staying, asyncio.timeout(120):
        urls = {leaving.url, staying.url}

        async def find() -> frozenset[str]:
            return frozenset(urls)

        async with EnginePool(token="", find=find, times=TIMES, connect=connect) as pool:

            async def until_serving(*expected: str) -> None:
                while set(pool.serving) != set(expected):
                    await asyncio.sleep(0.02)

            await pool.push(FolderUpdate.make(Path(), MODEL))
            await until_serving(leaving.url, staying.url)
            slots = [pool.admission.request_slot(tokens=1) for _ in range(4)]
            urls.remove(leaving.url)
            await until_serving(staying.url)
            assert {await slot.wait_for_engine() for slot in slots} == {staying.url}
            urls.add(leaving.url)
            await until_serving(leaving.url, staying.url)
            urls.remove(leaving.url)
            await until_serving(staying.url)
            staying.unavailable = True
            await until_serving(leaving.url)


async def test_pool_rejection_of_a_check_is_no_rejection_of_weights() -> None:
    """A serving engine whose reply is wrong once loads the version again, without another push."""
    async with (
        FakeEngine().serving() as engine,
        asyncio.timeout(120),
        EnginePool([engine.url], token="", times=TIMES, connect=connect) as pool,
    ):
        await pool.push(FolderUpdate.make(Path(), MODEL))
        engine.incompatible = 1
        while pool.serving:
            await asyncio.sleep(0)
        while not pool.serving:
            await asyncio.sleep(0.02)


async def test_pool_rejection_of_an_older_version_is_dropped() -> None:
    """An engine that rejects a version while the next one is pushed takes the next one, also after a failed request."""
    async with (
        FakeEngine().serving() as engine,
        asyncio.timeout(120),
        EnginePool([engine.url], token="", times=TIMES, connect=connect) as pool,
    ):
        engine.gate, engine.incompatible = asyncio.Event(), 1
        first = asyncio.create_task(pool.push(FolderUpdate.make(Path(), MODEL)))
        await engine.models_read.wait()
        first.cancel()
        second = asyncio.create_task(pool.push(FolderUpdate.make(Path(), MODEL)))
        await asyncio.sleep(0)
        engine.gate.set()
        while not pool._engines[engine.url].last_error.endswith("token ids"):
            await asyncio.sleep(0)
        assert await second == [engine.url]
        pool.mark_failed(engine.url, RuntimeError("a request failed"))
        assert not pool.serving
        while not pool.serving:
            await asyncio.sleep(0.02)


async def test_pool_engine_that_restarts_after_a_rejection_is_tried() -> None:
    """An engine that rejected the version is tried again after it was unreachable: another process may take it."""
    async with FakeEngine().serving() as good, FakeEngine().serving() as other, asyncio.timeout(120):
        other.incompatible = 100
        async with EnginePool([good.url, other.url], token="", times=TIMES, connect=connect) as pool:
            assert await pool.push(FolderUpdate.make(Path(), MODEL)) == [good.url]
            while not pool._engines[other.url].rejected:
                await asyncio.sleep(0.02)
            other.unavailable, other.incompatible = True, 0
            while pool._engines[other.url].rejected:
                await asyncio.sleep(0.02)
            other.unavailable = False
            while len(pool.serving) < 2:
                await asyncio.sleep(0.02)


async def test_generator_unresponsive_engine_moves_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool's check finds an engine that does not respond long before the request times out."""
    times = replace(TIMES, patience=120)
    async with (
        FakeEngine().serving() as engine_a,
        FakeEngine().serving() as engine_b,
        EnginePool([engine_a.url, engine_b.url], token="", times=times, connect=connect) as pool,
        asyncio.timeout(120),
    ):
        await pool.push(FolderUpdate.make(Path(), MODEL))
        while len(pool.serving) < 2:
            await asyncio.sleep(0.05)
        monkeypatch.setattr("rstar2_train.inference.openai_client.SHORT_SECONDS", 0.3)
        slot = pool.admission.request_slot(tokens=1)
        first, second = (engine_a, engine_b)
        if await slot.wait_for_engine() == engine_b.url:
            first, second = second, first
        first.unresponsive = True
        agent: Any = SimpleNamespace(sampling=Sampling(), chat_format=SimpleNamespace(stop_ids=()))
        judge: Any = None
        context = RolloutContext(agent=agent, pool=pool, judge=judge, seed=())
        generate = FailoverGenerator(context, slot, seed=(0,), backoff=Backoff(0.1))
        turn = asyncio.create_task(generate([1, 2], max_tokens=10_000, turn=0))
        await first.requested.wait()
        assert list((await turn).token_ids) == [7]
        while pool.serving != [second.url]:
            await asyncio.sleep(0.05)


async def test_generator_cancelled_with_its_engine_lost_ends() -> None:
    """A trajectory that is cancelled when its engine is lost does not continue in another engine."""
    async with (
        FakeEngine().serving() as engine,
        EnginePool([engine.url], token="", times=TIMES, connect=connect) as pool,
        asyncio.timeout(120),
    ):
        await pool.push(FolderUpdate.make(Path(), MODEL))
        engine.unresponsive = True
        agent: Any = SimpleNamespace(sampling=Sampling(), chat_format=SimpleNamespace(stop_ids=()))
        judge: Any = None
        context = RolloutContext(agent=agent, pool=pool, judge=judge, seed=())
        for is_cancelled_first in (False, True):
            engine.requested.clear()
            slot = pool.admission.request_slot(tokens=1)
            generate = FailoverGenerator(context, slot, seed=(0,))
            turn = asyncio.create_task(generate([1, 2], max_tokens=1, turn=0))
            await engine.requested.wait()
            if is_cancelled_first:
                turn.cancel()
            pool.admission.remove_engine(engine.url)
            pool.admission.remove_engine(engine.url)
            if not is_cancelled_first:
                turn.cancel()
            with pytest.raises(asyncio.CancelledError):
                await turn
            slot.release()
            pool.admission.add_engine(engine.url, capacity=100, block=1)


async def test_client_load_reads_the_metrics() -> None:
    """The live figures are summed over the engine's labels; a server without them reports none.

    The limit of a turn counts from the last new token.
    """
    tokens = "vllm:generation_tokens_total{} 5\n"
    texts = ["", METRICS + tokens, METRICS + tokens, METRICS]

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(text=texts[-1])

    app = web.Application()
    app.add_routes([web.get("/metrics", metrics)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with EngineSession() as session:
        client = EngineClient(f"http://127.0.0.1:{runner.addresses[0][1]}", token="", session=session)
        assert await client.load() == EngineLoad(kv_usage=0.625, running=7, waiting=2, preemptions=13)
        assert client._sampled_at == 0
        texts.pop()
        assert await client.load() == EngineLoad(kv_usage=0.625, running=7, waiting=2, preemptions=13, tokens=5)
        sampled_at = client._sampled_at
        texts.pop()
        await client.load()
        assert client._sampled_at == sampled_at > 0
        texts.pop()
        assert await client.load() is None
    await runner.cleanup()


METRICS = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="policy"} 7.0
vllm:num_requests_waiting{engine="0",model_name="policy"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 9.0
vllm:kv_cache_usage_perc{engine="0",model_name="policy"} 0.625
vllm:num_preemptions_total{engine="0",model_name="policy"} 13.0
vllm:num_preemptions_created{engine="0",model_name="policy"} 1.7e+09
"""
