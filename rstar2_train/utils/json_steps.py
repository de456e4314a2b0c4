"""JSON that may be large, in short steps: no call of C keeps the GIL, and so the event loop, for long.

The parsers of CPython and pydantic hold the GIL for a whole document. Here a thread takes the long strings out of a
document, piece by piece, and parses the rest in Python. Used by the APIs of the judge, of agents and of
`rstar2 serve`, and by the client of the judge.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from json import JSONDecodeError, JSONDecoder
from json.decoder import JSONArray, scanstring  # type: ignore[attr-defined]
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from typing import Any, TypeVar

SMALL_BYTES = 64 << 10
"""Documents up to this size are parsed and encoded in the event loop."""
PIECE = 128 << 10
"""Bytes or characters of one step."""
ITEMS_OF_STEP = 512
"""Small items of a list that are encoded in one step."""
MAX_STRUCTURE_BYTES = 2 << 20
"""Limit of a document without its long strings and its whitespace."""
MAX_STRING = 16 << 20
"""Characters of a string."""
MAX_ITEMS = 8192
"""Items of an array, and objects in a document."""
MAX_FIELDS = 64
"""Default of the most fields of an object."""
_T = TypeVar("_T")
_SHORT = 32
_PIECE_OF_STRING = re.compile(
    rb'(?:[^"\\]{1,1024}(?![\x80-\xbf])'  # not up to the middle of a character
    rb"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # the two halves of one character
    rb"|\\u[0-9a-fA-F]{4}|\\[^u]){0,1024}+"
)
_WHITESPACE = re.compile(rb"[ \t\r\n]{2,}")
_THREADS = ThreadPoolExecutor(2, thread_name_prefix="json")
"""Few: the event loop waits for its turn behind each thread that runs."""


class JsonTooLarge(ValueError):
    """A document above a limit of `read_json`."""


async def load_json(document: bytes | bytearray, *, max_fields: int = MAX_FIELDS) -> Any:
    """Return the value of a document; a thread parses a large one. Raises like `read_json`, and RecursionError."""
    if len(document) <= SMALL_BYTES:
        return json.loads(document)
    return await run_in_json_thread(lambda: read_json(document, max_fields=max_fields))


async def dump_json(value: Any, *, characters: int | None = None) -> bytes | bytearray:
    """Return the JSON of a value, in ASCII; a thread encodes a long one.

    `characters`: its approximate length; None: unknown, so a thread encodes it.
    """
    if characters is not None and characters <= SMALL_BYTES:
        return json.dumps(value).encode()

    def encode() -> bytearray:
        document = bytearray()
        for chunk in encode_json(value):
            document += chunk
        return document

    return await run_in_json_thread(encode)


async def run_in_json_thread(function: Callable[[], _T]) -> _T:
    """Return the result of a function that parses or encodes a large document, from one of two threads."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, function)


def read_json(body: bytes | bytearray, *, max_fields: int = MAX_FIELDS) -> Any:
    """Parse a document in steps of some milliseconds. Raises JSONDecodeError, UnicodeDecodeError and JsonTooLarge."""
    encoding = json.detect_encoding(bytes(body[:4]))
    if not encoding.startswith("utf-8"):
        raise JSONDecodeError(f"The document is JSON in {encoding}. Send UTF-8", "", 0)
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
        return _decoder(strings, max_fields).decode(structure.decode("utf-8", "surrogatepass"))
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
        size += len(parts[-1])
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


def _decoder(strings: dict[str, str], max_fields: int) -> JSONDecoder:
    """Return a decoder in Python that puts the long strings in. Raises JsonTooLarge above the limits."""
    objects = 0

    def put_in(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal objects
        objects += 1
        if objects > MAX_ITEMS + 1 or len(pairs) > max_fields:
            raise _beyond(f"The JSON has more than {MAX_ITEMS} objects, or one with more than {max_fields} fields")
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
    return decoder


def _beyond(problem: str) -> JsonTooLarge:
    return JsonTooLarge(f"{problem}, the limit of this server. Send less data, or several requests.")


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
        yield "["
        for start in range(0, len(value), ITEMS_OF_STEP):
            items = value[start : start + ITEMS_OF_STEP]
            if all(map(_is_small, items)):
                yield f"{', ' if start else ''}{json.dumps(items)[1:-1]}"
                continue
            for number, item in enumerate(items, start):
                yield ", " if number else ""
                yield from _parts(item)
        yield "]"
    elif isinstance(value, str) and len(value) > PIECE:
        yield '"'
        for start in range(0, len(value), PIECE):
            yield json.dumps(value[start : start + PIECE])[1:-1]
        yield '"'
    else:
        yield json.dumps(value)


def _is_small(item: Any) -> bool:
    """Return whether the JSON of an item is short: of a scalar, or of an object of some scalars."""
    if isinstance(item, dict):
        return len(item) <= 8 and all(map(_is_short, item.values()))
    return _is_short(item)


def _is_short(value: Any) -> bool:
    return not value or isinstance(value, int | float) or (isinstance(value, str) and len(value) <= 256)
