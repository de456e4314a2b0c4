"""The endpoint of `rstar2 serve` without an engine: large bodies hold no event loop."""

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rstar2_train.rollout.chat_format import ChatFormat
from rstar2_train.serving.model import find
from rstar2_train.serving.server import EndpointSettings, ServiceUrls, listener, make_server, server_context
from rstar2_train.utils.loop_watch import VARIABLE
from tests.support.chat_bodies import BODIES, CONTROL, USER, post
from tests.support.loop_watch import loop_watch_file, reports_of

CLOSED = "http://127.0.0.1:1"
ENDPOINT = EndpointSettings(host="127.0.0.1", port=0, token="t", insecure=False, max_turns=4, judge_patience=1, grace=1)
URLS = ServiceUrls(engine=CLOSED, engine_token="t", engine_model="m", judge=CLOSED, judge_token="t")
OWN = {
    "long name": {"model": CONTROL, "messages": [USER]},
    "choice": {"messages": [USER], "tool_choice": CONTROL},
    "large tools": {"messages": [USER], "tools": BODIES["tools"]["tools"] * 20},
    "calls": {"messages": [USER, {"role": "assistant", "content": "\n<tool_response>\n" * 100_000}, USER]},
}


async def refused(url: str, body: dict[str, Any]) -> None:
    """Send a request, which is refused."""
    status, answer = await post(f"{url}/v1/chat/completions", {"model": "m"} | body, key="t")
    assert status in (400, 404, 413, 503) and b"message" in answer, answer[:500]


async def test_large_bodies_hold_no_loop(
    model_folder: Path, chat_format: ChatFormat, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each is refused with a reason, or needs the engine."""
    monkeypatch.setenv(VARIABLE, str(loop_watch_file()))
    model = replace(find(str(model_folder), jobs=tmp_path), name="m", context=200_000)
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    async with server_context(model, chat_format, ENDPOINT, URLS) as context:
        server = make_server(context, ENDPOINT, on_ready=ready.set_result)
        with listener(ENDPOINT) as bound:
            running = asyncio.ensure_future(server.serve([bound]))
            url = await ready
            for name, body in {**BODIES, **OWN}.items():
                reports = await reports_of(partial(refused, url, body))
                assert not reports, f"{name}: the event loop was held:\n{reports}"
            server.should_exit = True
            await running
