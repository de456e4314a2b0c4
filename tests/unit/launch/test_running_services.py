"""Engines and judges that run already: accepted, waited for, or rejected with the cause."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from rstar2_train.inference.openai_client import ServedModel
from rstar2_train.launch import running_services
from rstar2_train.launch.local.services import RunningServices
from rstar2_train.launch.running_services import RunningServiceRejected, check_judge, find_model
from rstar2_train.utils.ports import free_ports

FOLDER = "/models/mine"


@pytest.fixture(autouse=True)
def fast_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_services, "RETRY_SECONDS", 0.01)


@asynccontextmanager
async def serving(path: str, answers: Iterator[Any], port: int) -> AsyncIterator[str]:
    """Run a server that returns the next of `answers` per request."""

    async def respond(request: web.Request) -> web.Response:
        return web.json_response(next(answers))

    app = web.Application()
    app.router.add_get(path, respond)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


def models(**roots: str) -> dict[str, Any]:
    return {"data": [{"id": name, "root": root, "max_model_len": 100} for name, root in roots.items()]}


async def find(answer: Any, *, names: list[str], accept_only: bool) -> ServedModel:
    async with serving("/v1/models", iter([answer]), *free_ports(1)) as url:
        return await find_model(url, token="", names=names, accept_only=accept_only, advice="pass another")


async def test_find_model_accepts_the_only_model() -> None:
    """With `accept_only`, a single model is accepted under any name; without it, only under one of the names."""
    only = models(policy="/state/other")
    assert (await find(only, names=[FOLDER], accept_only=True)).name == "policy"
    with pytest.raises(RunningServiceRejected, match="serves policy, not '/models/mine': pass another"):
        await find(only, names=[FOLDER], accept_only=False)


async def test_find_model_selects_by_name_or_folder() -> None:
    """Of several models, the one with a matching name or folder is returned."""
    several = models(other="/models/other", mine=FOLDER)
    assert (await find(several, names=[FOLDER], accept_only=True)).name == "mine"
    assert (await find(several, names=["other"], accept_only=False)).name == "other"
    with pytest.raises(RunningServiceRejected, match="serves other, mine: pass another"):
        await find(several, names=[], accept_only=True)


async def test_find_model_other_server_is_rejected() -> None:
    """A server whose models have no max_model_len is not a vLLM server."""
    with pytest.raises(RunningServiceRejected, match="use a vLLM server"):
        await find({"data": [{"id": "policy"}]}, names=[], accept_only=True)


async def test_find_model_waits_with_one_message() -> None:
    """With `notify`, an engine that does not answer yet is waited for."""
    (port,) = free_ports(1)
    url, messages = f"http://127.0.0.1:{port}", list[str]()
    finding = asyncio.create_task(
        find_model(url, token="", names=[FOLDER], accept_only=True, advice="", notify=messages.append)
    )
    while not messages:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    async with serving("/v1/models", iter([models(policy="")]), port):
        assert (await finding).name == "policy"
    assert len(messages) == 1 and messages[0].startswith("Waiting for the engine: ")


async def test_find_model_without_notify_does_not_wait() -> None:
    """Without `notify`, an engine that does not answer is an error that names its URL."""
    (port,) = free_ports(1)
    with pytest.raises(RunningServiceRejected, match=f"--endpoint http://127.0.0.1:{port}: "):
        await find_model(f"http://127.0.0.1:{port}", token="", names=[], accept_only=True, advice="")


async def test_check_judge_waits_for_a_ready_sandbox() -> None:
    """With `notify`, a judge without a ready sandbox is waited for."""
    messages = list[str]()
    answers = iter([{"ready": False}, {"ready": False}, {"ready": True}])
    async with serving("/v1/status", answers, *free_ports(1)) as url:
        await check_judge(url, token="", notify=messages.append)
    assert messages == ["Waiting for the judge: no sandbox is ready"] and not list(answers)


async def test_check_judge_without_notify_does_not_wait() -> None:
    """Without `notify`, a judge without a ready sandbox is an error."""
    async with serving("/v1/status", iter([{"ready": False}]), *free_ports(1)) as url:
        with pytest.raises(RunningServiceRejected, match="is not ready: no sandbox is ready"):
            await check_judge(url, token="")


async def test_check_judge_wrong_token_names_the_variable() -> None:
    """The error names the environment variable of the token."""
    async with serving("/v1/status", iter([{"detail": "a token is required"}]), *free_ports(1)) as url:
        with pytest.raises(RunningServiceRejected, match="RSTAR2_JUDGE_TOKEN"):
            await check_judge(url, token="", notify=print)


def test_external_services_tokens_come_from_files(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """NAME_FILE works for the tokens of external services, and /v1 is removed from the URL."""
    (tmp_path / "token").write_text("secret\n")
    monkeypatch.setenv("RSTAR2_ENGINE_TOKEN_FILE", str(tmp_path / "token"))
    services = RunningServices.from_options(endpoint="http://e/v1/", judge="")
    assert (services.engine, services.engine_token, services.judge) == ("http://e", "secret", "")


@pytest.mark.parametrize("url", ["engine:8000", "localhost", "ftp://x", "http://", "http://x:port", "http://x:99999"])
async def test_find_model_rejects_what_is_no_url(url: str) -> None:
    """Waiting for such an address would never end; the same holds for a judge."""
    with pytest.raises(RunningServiceRejected, match=f"--endpoint {url} is no URL of a server, such as http"):
        await find_model(url, token="", names=[], accept_only=True, advice="", notify=print)
    with pytest.raises(RunningServiceRejected, match=f"--judge {url} is no URL of a server, such as http"):
        await check_judge(url, token="", notify=print)
