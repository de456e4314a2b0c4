"""Large bodies and responses in JSON: the values of json.loads and json.dumps, in steps that hold no event loop."""

import asyncio
import json
import sys
import time
from collections.abc import Callable, MutableMapping
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st
from starlette.exceptions import HTTPException

from rstar2_train.judge.api.app import ApiSettings, create_app, stream_results
from rstar2_train.judge.api.json_messages import MAX_FIELDS, MAX_ITEMS, PIECE, encode_json, read_json, respond
from rstar2_train.judge.types import CallResult
from rstar2_train.utils.loop_watch import LIMIT_SECONDS, VARIABLE

LINE = "print('a\t\"\\\\\", 'é', '\N{GRINNING FACE}')\n"
TEXTS = st.text(st.characters() | st.sampled_from('\\"\n\0\ud83d\ude00'), max_size=80)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda items: st.lists(items, max_size=4) | st.dictionaries(TEXTS, items, max_size=4),
    max_leaves=12,
)


def longest_step(function: Callable[[], Any]) -> float:
    """Return the longest CPU time between two calls or returns of functions: Python releases the GIL between them."""
    last, longest = 0.0, 0.0

    def record(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal last, longest
        now = time.thread_time()
        longest, last = max(longest, now - last), now

    last = time.thread_time()
    sys.setprofile(record)
    try:
        function()
    finally:
        sys.setprofile(None)
    return longest


@given(VALUES, st.booleans(), st.sampled_from([None, 3]))
def test_read_json_returns_the_value_of_loads(value: Any, ascii: bool, indent: int | None) -> None:
    """Long strings, keys, escapes, pairs of surrogates and whitespace."""
    body = json.dumps(value, ensure_ascii=ascii, indent=indent).encode("utf-8", "surrogatepass")
    assert read_json(body) == json.loads(body)


@pytest.mark.parametrize("text", ["é" * 4000, "\N{GRINNING FACE}" * 4000, "\\" * 9001 + '"', "\ud83d" + "x" * 4000])
@pytest.mark.parametrize("shift", range(4))
def test_read_json_joins_pieces(text: str, shift: int) -> None:
    """No character is cut at the end of a piece."""
    for ascii in (True, False):
        body = json.dumps({"x" * shift + text: text}, ensure_ascii=ascii).encode("utf-8", "surrogatepass")
        assert read_json(bytearray(body)) == json.loads(body)


@pytest.mark.parametrize("body", ["{", '{"a": "%s', '"%s\\x"', '"%s\n"', '["%s" 1]', '{"%s": 1,}', '"%s" 1', " "])
def test_read_json_invalid_names_the_position(body: str) -> None:
    """The error and its position are those of the parser of CPython."""
    text = body.replace("%s", "é\\n".join(["a"] * 60).replace("é", "e"))
    with pytest.raises(json.JSONDecodeError) as expected:
        json.loads(text)
    with pytest.raises(json.JSONDecodeError) as error:
        read_json(text.encode())
    assert (error.value.pos, error.value.msg) == (expected.value.pos, expected.value.msg)


def test_read_json_invalid_utf8_is_an_error() -> None:
    """Also in a string of continuation bytes only."""
    for text in (b"\xff" * 40, b"\x80" * 5000, b"a" * 1023 + b"\xc3"):
        with pytest.raises(UnicodeDecodeError):
            read_json(b'"' + text + b'"')


@pytest.mark.parametrize(
    ("body", "limit"),
    [
        (b"[" + b"1," * (2 << 20) + b"1]", "2 MiB besides"),
        (b"[" + b"1," * MAX_ITEMS + b"1]", "8192 items"),
        (b"[" + b"{}," * (MAX_ITEMS + 1) + b"{}]", "8192 objects"),
        (json.dumps(dict.fromkeys(map(str, range(MAX_FIELDS + 1)))).encode(), "64 fields"),
        (b'"' + b"a" * (17 << 20) + b'"', "16 Mi characters"),
    ],
)
def test_read_json_above_a_limit_is_refused(body: bytes, limit: str) -> None:
    """Values that no request has, and whose validation holds the loop."""
    with pytest.raises(HTTPException) as error:
        read_json(body)
    assert error.value.status_code == 413 and limit in error.value.detail


def test_read_json_holds_the_gil_for_short_steps() -> None:
    """The watch of the loop does not see a thread that holds the GIL."""
    text = json.dumps({"calls": [{"code": LINE * 5000, "stdin": "é" * (1 << 20)} for _ in range(4)]})
    assert longest_step(lambda: read_json(text.encode())) < LIMIT_SECONDS


def test_encode_json_holds_the_gil_for_short_steps() -> None:
    """Eight MiB of characters with long escapes; the value is that of json.dumps."""
    value = {
        "stdout": "\1\N{GRINNING FACE}" * (4 << 20),
        "files": [],
        "exit_code": None,
        "list": [{}, "\ud83d" * PIECE],
    }
    assert longest_step(lambda: [len(chunk) for chunk in encode_json(value)]) < LIMIT_SECONDS
    assert json.loads(b"".join(encode_json(value))) == value


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


async def test_large_request_and_response_hold_no_loop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A batch of 35 MiB, whose calls are too long to be run, and results of 8 MiB of escapes, alone and as a line."""
    app = create_app(ApiSettings(redis="redis://127.0.0.1:1/0"), token=None)
    large = CallResult("ok", "\1" * (8 << 20), "\x7f" * (8 << 20))

    @app.get("/large")
    async def get_large() -> Any:
        return respond([large])

    body = json.dumps({"calls": [{"code": LINE * 40_000} for _ in range(20)]}).encode()
    assert len(body) > 35 << 20
    file = tmp_path / "reports"
    monkeypatch.setenv(VARIABLE, str(file))
    async with app.router.lifespan_context(app):
        answer = await request(app, "POST", "/v1/batch", body)
        content = await request(app, "GET", "/large", b"")

        async def run() -> CallResult:
            return large

        chunks = [chunk async for chunk in stream_results([asyncio.ensure_future(run())])]
    assert not file.exists(), file.read_text().replace("\\n", "\n")
    assert {result["status"] for result in json.loads(b"".join(answer))["results"]} == {"invalid"}
    assert json.loads(b"".join(content))["results"] == [large.to_dict()]
    assert json.loads(b"".join(chunks)) == {"index": 0, **large.to_dict()}
