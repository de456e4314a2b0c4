"""Large JSON: the values of json.loads and json.dumps, in steps that hold no event loop."""

import json
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rstar2_train.api.judge_limits import MAX_OUTPUT_BYTES
from rstar2_train.judge.types import MAX_PENDING
from rstar2_train.utils.json_steps import (
    ITEMS_OF_STEP,
    MAX_FIELDS,
    MAX_ITEMS,
    PIECE,
    JsonTooLarge,
    dump_json,
    encode_json,
    load_json,
    read_json,
)
from rstar2_train.utils.loop_watch import LIMIT_SECONDS

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
@example({"\ud800": None}, False, None)
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
    with pytest.raises(JsonTooLarge, match=limit):
        read_json(body)


def test_read_json_limits_the_characters_of_the_value() -> None:
    """Not those of its escapes: the largest stdin and the largest output pass."""
    text = "\1" * MAX_OUTPUT_BYTES
    assert read_json(json.dumps([text]).encode()) == [text]


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


@given(VALUES, st.integers(0, 2))
def test_encode_json_writes_the_value_of_dumps(value: Any, more: int) -> None:
    """Also lists of several steps, whose items are small or not."""
    value = [value] * (more * ITEMS_OF_STEP + 1)
    assert b"".join(encode_json(value)).decode() == json.dumps(value)


def test_encode_json_many_items_hold_the_gil_for_short_steps() -> None:
    """The log-probabilities of a long turn."""
    value = [{"token": "token_id:1", "logprob": -0.123456789, "bytes": None, "top_logprobs": []}] * 60_000
    assert longest_step(lambda: [len(chunk) for chunk in encode_json(value)]) < LIMIT_SECONDS


async def test_load_and_dump_json_are_the_same_for_any_size() -> None:
    """Small documents in the loop, large ones in a thread; the limit of fields is the caller's."""
    for size in (1, 1 << 17):
        value = {"text": "é" * size, "fields": {str(number): number for number in range(MAX_FIELDS + 1)}}
        document = await dump_json(value, characters=size)
        assert document == json.dumps(value).encode() == await dump_json(value)
        assert await load_json(document, max_fields=MAX_FIELDS + 1) == value
    with pytest.raises(JsonTooLarge, match="64 fields"):
        await load_json(document)
    assert MAX_ITEMS >= MAX_PENDING
