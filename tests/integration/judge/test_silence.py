"""Silence of a judge, as after a failure of its node: clients detect it, and do not mistake a long call for it."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import uvicorn

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.judge.api import app as api
from rstar2_train.judge.client import session as sessions
from rstar2_train.judge.client.client import JudgeClient
from rstar2_train.judge.types import JudgeUnavailable
from tests.integration.judge.test_recovery import SLOW
from tests.support.unsupervised_judge import UnsupervisedJudge

HEAD = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: application/x-ndjson\r\n\r\n"
END = "0\r\n\r\n"


Answer = Callable[[int, bytes, asyncio.StreamWriter], Awaitable[object]]


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[str]:
    """Run a server that calls `answer` with number, body and writer of each request, and sends nothing itself."""
    count = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        while head := await reader.readuntil(b"\r\n\r\n"):
            count += 1
            length = int(head.partition(b"Content-Length: ")[2].split()[0])
            await answer(count - 1, await reader.readexactly(length), writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


def chunk(line: str) -> str:
    """Return a line as a chunk of a response."""
    return f"{len(line) + 1:x}\r\n{line}\n\r\n"


def results(body: bytes) -> list[str]:
    """Return the results of the calls of a request, each of which prints a number."""
    codes = [call["code"] for call in json.loads(body)["calls"]]
    printed = [code.removeprefix("print(").removesuffix(")") + "\n" for code in codes]
    return [
        chunk(json.dumps({"index": index, "status": "ok", "stdout": output})) for index, output in enumerate(printed)
    ]


async def test_client_silent_judge_is_unavailable() -> None:
    """A judge that accepts a request and sends nothing counts as unavailable."""
    async with (
        serving(lambda number, body, writer: asyncio.sleep(0)) as url,
        JudgeClient(url, patience_seconds=0.5, silent_seconds=0.2) as client,
        asyncio.timeout(120),
    ):
        with pytest.raises(JudgeUnavailable, match="TimeoutError no data"):
            await client.run("print(1)")


async def test_client_resends_calls_after_silence() -> None:
    """The first request gets one of its two results and then nothing; patience counts from the last data."""

    async def answer(number: int, body: bytes, writer: asyncio.StreamWriter) -> None:
        lines = results(body)
        writer.write((HEAD + (lines[1] if number == 0 else "".join(lines) + END)).encode())

    async with serving(answer) as url, JudgeClient(url, silent_seconds=0.2) as client, asyncio.timeout(120):
        both = await asyncio.gather(client.run("print(0)"), client.run("print(1)"))
        assert [result.stdout for result in both] == ["0\n", "1\n"]


async def test_session_cell_is_lost_after_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell without a response is lost, and not sent again."""
    monkeypatch.setattr(sessions, "ANSWER_SECONDS", 0.2)
    requests = 0

    async def answer(number: int, body: bytes, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        requests += 1
        if number == 0:
            opened = json.dumps({"session": "s"})
            writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(opened)}\r\n\r\n{opened}".encode())

    async with serving(answer) as url, JudgeClient(url) as client, asyncio.timeout(120):
        session = client.session()
        await session.__aenter__()
        lost = await session.run("print(1)", limits=JudgeLimits(wall_seconds=0.1))
        assert lost.status == "session_lost" and "TimeoutError" in lost.stderr
        assert (await session.run("print(1)")).status == "session_lost"
    assert requests == 2


async def test_client_long_call_is_kept_alive(judge: UnsupervisedJudge, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that takes longer than the client's limit of silence is answered by the first request."""
    monkeypatch.setattr(api, "ALIVE_SECONDS", 0.1)
    monkeypatch.setenv("RSTAR2_REDIS_PASSWORD", judge.password)
    app = api.create_app(api.ApiSettings(redis=judge.redis_url), token=None)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = asyncio.create_task(server.serve([listener]))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with JudgeClient(url, silent_seconds=2) as client, asyncio.timeout(300):
            slow = await client.run("import time\ntime.sleep(5)\nprint('slow')", limits=SLOW)
            assert (slow.status, slow.stdout) == ("ok", "slow\n")
            admission = app.state.admission
            assert (admission.submitter.answered, admission.submitter.pending) == (1, 0)
        server.should_exit = True
        await serving
