"""Large bodies and results of the judge hold no event loop."""

import asyncio
import json
from collections.abc import MutableMapping
from typing import Any

import pytest
from fastapi import FastAPI

from rstar2_train.judge.api.app import ApiSettings, create_app, stream_results
from rstar2_train.judge.api.json_messages import respond
from rstar2_train.judge.types import CallResult
from rstar2_train.utils.loop_watch import VARIABLE
from tests.support.loop_watch import loop_watch_file, reports_of

LINE = "print('a\t\"\\\\\", 'é', '\N{GRINNING FACE}')\n"


async def request(app: FastAPI, method: str, path: str, body: bytes) -> list[bytes]:
    """Return the chunks of a response. No client joins them: it would hold the loop itself."""
    parts = [body[start : start + 65536] for start in range(0, len(body), 65536)] or [b""]
    parts.reverse()
    sent: list[bytes] = []

    async def receive() -> dict[str, Any]:
        if not parts:
            await asyncio.Event().wait()
        await asyncio.sleep(0)  # as a server, which waits for its socket
        return {"type": "http.request", "body": parts.pop(), "more_body": bool(parts)}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message.get("body", b""))

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": headers}
    await app(scope, receive, send)
    return sent


async def test_large_request_and_response_hold_no_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of 35 MiB, whose calls are too long to be run, and results of 8 MiB of escapes, alone and as a line."""
    app = create_app(ApiSettings(redis="redis://127.0.0.1:1/0"), token=None)
    large = CallResult("ok", "\1" * (8 << 20), "\x7f" * (8 << 20))

    @app.get("/large")
    async def get_large() -> Any:
        return respond([large])

    body = json.dumps({"calls": [{"code": LINE * 40_000} for _ in range(20)]}).encode()
    assert len(body) > 35 << 20

    async def run() -> CallResult:
        return large

    answers: list[list[bytes]] = []

    async def exchange() -> None:
        batch = await request(app, "POST", "/v1/batch", body)
        content = await request(app, "GET", "/large", b"")
        lines = [chunk async for chunk in stream_results([asyncio.ensure_future(run())])]
        answers[:] = batch, content, lines

    monkeypatch.setenv(VARIABLE, str(loop_watch_file()))
    async with app.router.lifespan_context(app):
        reports = await reports_of(exchange)
    assert not reports, reports
    batch, content, result = (json.loads(b"".join(chunks)) for chunks in answers)
    assert {result["status"] for result in batch["results"]} == {"invalid"}
    assert content["results"] == [large.to_dict()]
    assert result == {"index": 0, **large.to_dict()}
