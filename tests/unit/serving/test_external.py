"""Engines and judges that run already: which are taken, which are waited for, and which are refused with a reason."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from rstar2_train.serving import external
from rstar2_train.serving.external import ExternalServiceRejected, find_engine, find_judge
from tests.support.engine import free_port

FOLDER = Path("/models/mine")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external, "LOOK_SECONDS", 0.01)


@asynccontextmanager
async def answering(path: str, answers: Iterator[Any], port: int) -> AsyncIterator[str]:
    """A server whose every answer is the next one."""

    async def answer(request: web.Request) -> web.Response:
        return web.json_response(next(answers))

    app = web.Application()
    app.router.add_get(path, answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


def models(**roots: str) -> dict[str, Any]:
    return {"data": [{"id": name, "root": root, "max_model_len": 100} for name, root in roots.items()]}


async def found(*answers: Any) -> str:
    async with answering("/v1/models", iter(answers), free_port()) as url:
        return (await find_engine(url, token="", folder=FOLDER, say=print)).name


async def test_the_only_model_is_taken_and_of_several_the_one_of_the_folder() -> None:
    assert await found(models(policy="/state/elsewhere")) == "policy"
    assert await found(models(other="/models/other", mine="/models/mine")) == "mine"
    with pytest.raises(ExternalServiceRejected, match="serves other, another and none of them from /models/mine"):
        await found(models(other="/models/other", another="/models/another"))


async def test_what_is_no_vllm_server_is_refused() -> None:
    with pytest.raises(ExternalServiceRejected, match="use a vLLM server"):
        await found({"data": [{"id": "policy"}]})


async def test_an_engine_that_does_not_answer_yet_is_waited_for_and_that_is_said_once() -> None:
    port, said = free_port(), list[str]()
    url = f"http://127.0.0.1:{port}"
    finding = asyncio.create_task(find_engine(url, token="", folder=FOLDER, say=said.append))
    while not said:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    async with answering("/v1/models", iter([models(policy="")]), port):
        assert (await finding).name == "policy"
    assert len(said) == 1 and "waiting for the engine" in said[0]


async def test_a_judge_is_waited_for_until_a_sandbox_is_ready() -> None:
    said = list[str]()
    answers = iter([{"ready": False}, {"ready": False}, {"ready": True}])
    async with answering("/v1/status", answers, free_port()) as url:
        await find_judge(url, token="", say=said.append)
    assert said == ["waiting for the judge: no sandbox is ready"] and not list(answers)


async def test_what_is_no_judge_is_refused() -> None:
    async with answering("/v1/status", iter([{"detail": "a valid bearer token is needed"}]), free_port()) as url:
        with pytest.raises(ExternalServiceRejected, match="RSTAR2_JUDGE_TOKEN"):
            await find_judge(url, token="", say=print)
