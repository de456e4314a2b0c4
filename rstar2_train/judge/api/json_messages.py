"""JSON of requests and responses that may be large, in short steps: no call of C keeps the GIL, and so the event loop.

The parsers of CPython and pydantic hold the GIL for a whole document. Here a thread takes the long strings out of a
body, piece by piece, and parses the rest in Python. Used by all routes of `app` and `code_judge_compat`.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from json import JSONDecodeError, JSONDecoder
from json.decoder import JSONArray, scanstring  # type: ignore[attr-defined]
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.routing import APIRoute
from starlette.concurrency import iterate_in_threadpool
from starlette.exceptions import HTTPException

from rstar2_train.judge.types import MAX_PENDING, CallResult

SMALL_BYTES = 64 << 10
"""Bodies and outputs up to this size are parsed and encoded in the event loop."""
PIECE = 128 << 10
"""Bytes or characters of one step."""
MAX_STRUCTURE_BYTES = 2 << 20
"""Limit of a body without its long strings and its whitespace."""
MAX_STRING = 16 << 20
"""Characters of a string."""
MAX_ITEMS = MAX_PENDING
"""Items of an array, and objects in a body."""
MAX_FIELDS = 64
"""Fields of an object."""
_SHORT = 32
_PIECE_OF_STRING = re.compile(
    rb'(?:[^"\\]{1,1024}(?![\x80-\xbf])'  # not up to the middle of a character
    rb"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # the two halves of one character
    rb"|\\u[0-9a-fA-F]{4}|\\[^u]){0,1024}+"
)
_WHITESPACE = re.compile(rb"[ \t\r\n]{2,}")
_PARSERS = ThreadPoolExecutor(2, thread_name_prefix="json")
"""Few: the event loop waits for its turn behind each thread that runs."""


class JsonRequest(Request):
    """A request whose large body is collected without copies and parsed in a thread."""

    async def body(self) -> bytes:
        """Return the body; a large one as a bytearray, because its copy takes too long."""
        if not hasattr(self, "_body"):
            body = bytearray()
            async for chunk in self.stream():
                body += chunk
            self._body: Any = body if len(body) > SMALL_BYTES else bytes(body)
        return self._body  # type: ignore[no-any-return]

    async def json(self) -> Any:
        """Return the value. Raises JSONDecodeError, UnicodeDecodeError, or HTTPException for a body above a limit."""
        body = await self.body()
        if len(body) <= SMALL_BYTES:
            return json.loads(body)
        return await asyncio.get_running_loop().run_in_executor(_PARSERS, read_json, body)


class JsonRoute(APIRoute):
    """A route with JsonRequest."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of a request."""
        handle = super().get_route_handler()

        async def handle_request(request: Request) -> Response:
            return await handle(JsonRequest(request.scope, request.receive))

        return handle_request


def read_json(body: bytes | bytearray) -> Any:
    """Parse a body. It holds the GIL for some milliseconds at a time. Raises like JsonRequest.json."""
    encoding = json.detect_encoding(bytes(body[:4]))
    if not encoding.startswith("utf-8"):
        raise HTTPException(400, f"The body is JSON in {encoding}. Send UTF-8.")
    structure, strings, offsets = bytearray(), dict[str, str](), [(0, 0)]
    prefix = secrets.token_hex(8)  # no string of the client has it
    position = 3 if encoding == "utf-8-sig" else 0
    while position < len(body):
        stop = min(position + PIECE, len(body))
        quote = body.find(b'"', position, stop)
        end = stop if quote < 0 else quote
        structure += _WHITESPACE.sub(b" ", body[position:end])
        position = end
        if quote >= 0:
            text, position = _read_string(body, quote + 1)
            if text is None:
                structure += body[quote:position]
            else:
                key = f"{prefix}{len(strings)}"
                strings[key] = text
                structure += b'"%b"' % key.encode()
                offsets.append((len(structure), position))
        if len(structure) > MAX_STRUCTURE_BYTES:
            raise _beyond(f"The JSON has more than {MAX_STRUCTURE_BYTES >> 20} MiB besides its strings")
    try:
        return _decoder(strings).decode(structure.decode())
    except JSONDecodeError as error:
        start, at = max(offset for offset in offsets if offset[0] <= error.pos)
        raise JSONDecodeError(error.msg, "", at + error.pos - start) from None


def _read_string(body: bytes | bytearray, start: int) -> tuple[str | None, int]:
    """Return a string, or None for a short one, and the position after it."""
    parts: list[str] = []
    size, position = 0, start
    while True:
        match = _PIECE_OF_STRING.match(body, position)
        assert match is not None  # it can be empty
        end = match.end()
        closed = body[end : end + 1] == b'"'
        if closed and end - start <= _SHORT:
            return None, end + 1
        piece = body[position:end].decode("utf-8", "surrogatepass")
        try:
            parts.append(scanstring(piece + '"', 0, True)[0])
        except JSONDecodeError as error:
            raise JSONDecodeError(error.msg, "", position + error.pos) from None
        size += len(piece)
        if size > MAX_STRING:
            raise _beyond(f"A string has more than {MAX_STRING >> 20} Mi characters")
        if closed:
            return "".join(parts), end + 1
        if end == len(body):
            raise JSONDecodeError("Unterminated string starting at", "", start - 1)
        if end == position:
            body[end : end + 1024].decode("utf-8", "surrogatepass")
            raise JSONDecodeError("Invalid escape", "", end)
        position = end


def _decoder(strings: dict[str, str]) -> JSONDecoder:
    """Return a decoder in Python that puts the long strings in. Raises HTTPException above the limits."""
    objects = 0

    def put_in(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal objects
        objects += 1
        if objects > MAX_ITEMS + 1 or len(pairs) > MAX_FIELDS:
            raise _beyond(f"The JSON has more than {MAX_ITEMS} objects, or one with more than {MAX_FIELDS} fields")
        return {strings.get(name, name): value for name, value in pairs}

    def parse_string(text: str, start: int, strict: bool) -> tuple[str, int]:
        value, end = scanstring(text, start, strict)
        return strings.get(value, value), end

    def parse_array(start: tuple[str, int], scan_once: Any) -> tuple[list[Any], int]:
        values, end = JSONArray(start, scan_once)
        if len(values) > MAX_ITEMS:
            raise _beyond(f"A list of the JSON has more than {MAX_ITEMS} items")
        return values, end

    decoder: Any = JSONDecoder(object_pairs_hook=put_in)
    decoder.parse_string, decoder.parse_array = parse_string, parse_array
    decoder.scan_once = py_make_scanner(decoder)
    return decoder  # type: ignore[no-any-return]


def _beyond(problem: str) -> HTTPException:
    return HTTPException(413, f"{problem}, the limit of this server. Send less data, or several requests.")


def respond(results: CallResult | list[CallResult]) -> Response:
    """Return the response with one result, or with those of a batch; large ones are encoded in steps."""
    value = {"results": [r.to_dict() for r in results]} if isinstance(results, list) else results.to_dict()
    if _size(*(results if isinstance(results, list) else [results])) <= SMALL_BYTES:
        return JSONResponse(value)
    return StreamingResponse(encode_json(value), media_type="application/json")


async def encode_lines(lines: list[tuple[int, CallResult]]) -> AsyncIterator[bytes]:
    """Yield a line of JSON per result with its index, small ones together."""
    encoded = [{"index": index, **result.to_dict()} for index, result in lines]
    if _size(*(result for _, result in lines)) <= SMALL_BYTES:
        yield "".join(json.dumps(line) + "\n" for line in encoded).encode()
        return
    for line in encoded:
        async for chunk in iterate_in_threadpool(encode_json(line)):
            yield chunk
        yield b"\n"


def _size(*results: CallResult) -> int:
    return sum(len(r.stdout) + len(r.stderr) + sum(len(file.content or "") for file in r.files) for r in results)


def encode_json(value: Any) -> Iterator[bytes]:
    """Yield the JSON of a value, in ASCII, in chunks that hold the GIL for some milliseconds each."""
    buffer, size = list[str](), 0
    for part in _parts(value):
        buffer.append(part)
        size += len(part)
        if size >= PIECE:
            yield "".join(buffer).encode()
            buffer, size = [], 0
    yield "".join(buffer).encode()


def _parts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for number, (name, item) in enumerate(value.items()):
            yield f"{', ' if number else '{'}{json.dumps(name)}: "
            yield from _parts(item)
        yield "}" if value else "{}"
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield ", " if number else "["
            yield from _parts(item)
        yield "]" if value else "[]"
    elif isinstance(value, str) and len(value) > PIECE:
        yield '"'
        for start in range(0, len(value), PIECE):
            yield json.dumps(value[start : start + PIECE])[1:-1]
        yield '"'
    else:
        yield json.dumps(value)
