"""The paths of the engine's own routes, and the binary bodies of `POST /rstar2/generate`. Pure.

Token ids are int32, log-probabilities float32. A request is one frame: parameters and the prompt's tokens. The reply is
a stream of frames, one per part of the turn; the last one has the finish reason. A frame is two uint32 (bytes of the
JSON head, number of tokens), the head, the tokens, and in a reply one log-probability per token, then the experts of a
mixture, whose bytes are in the head. All numbers are little-endian. JSON would cost a millisecond per turn of 2,000
tokens, and a turn that is streamed is not lost with its engine.
"""

from __future__ import annotations

import json
import struct
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

GENERATE = "/rstar2/generate"
"""Samples a turn."""
SCORE = "/rstar2/score"
"""Returns the log-probabilities of given tokens."""
HOLD, RELEASE = "/rstar2/hold", "/rstar2/release"
"""Between the two no turn is sampled."""
BASE, ADAPTER, SERVE = "/rstar2/base", "/rstar2/adapter", "/rstar2/serve"
"""Names the weights under the adapters, adds an adapter, and serves it."""
FETCH = "/rstar2/fetch"
"""Copies published folders from the bucket to the engine's disk."""
SIZES = struct.Struct("<II")
"""The start of a frame: bytes of its head, number of its tokens."""
TOKEN_BYTES = LOGPROB_BYTES = 4
PART_TOKENS = 1024
"""Tokens of a part, if the request has no `part_tokens`. Each part costs the orchestrator 0.1 ms."""
MOST_HEAD_BYTES = 1 << 20
"""Largest head of a frame; a larger one is not of this protocol."""


@dataclass(frozen=True, slots=True)
class TurnPart:
    """Consecutive tokens of one turn, as an engine streams them."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    """Both are arrays in a part that was received."""
    versions: Sequence[tuple[str, int]]
    """Each weight version of the turn so far, with the position in the turn of its first token."""
    finish_reason: str | None = None
    """Why the turn ended; None before its end."""
    error: str = ""
    """Why the engine failed in the middle of the turn."""
    routes: bytes = b""
    """Experts of further tokens of the prompt and the turn (`RouteFormat`), if the request wishes them."""
    row_bytes: int = 0
    """Bytes of `routes` per token."""


def encode_request(parameters: dict[str, Any], *token_ids: Sequence[int]) -> bytes:
    """Return the body of a request: its tokens are those of all `token_ids`. An array of int is not converted."""
    head = _json(parameters)
    return b"".join([SIZES.pack(len(head), sum(map(len, token_ids))), head, *(_bytes("i", part) for part in token_ids)])


def decode_request(body: bytes) -> tuple[dict[str, Any], array[int]]:
    """Return parameters and tokens of a request. Raises ValueError for another format."""
    if len(body) < SIZES.size:
        raise ValueError("Invalid body: expected the binary format of POST /rstar2/generate.")
    head_bytes, count = SIZES.unpack_from(body)
    start = SIZES.size + head_bytes
    if len(body) != start + TOKEN_BYTES * count:
        raise ValueError(f"the body has {len(body)} bytes instead of {start + TOKEN_BYTES * count}")
    head = json.loads(body[SIZES.size : start])
    if not isinstance(head, dict):
        raise ValueError("the head of the body is not a JSON object")
    return head, _numbers("i", body[start:])


def encode_part(part: TurnPart) -> bytes:
    """Return one frame of a reply."""
    head: dict[str, Any] = {"versions": part.versions}
    if part.finish_reason is not None:
        head["finish_reason"] = part.finish_reason
    if part.error:
        head["error"] = part.error
    if part.routes:
        head["routes"] = (len(part.routes), part.row_bytes)
    text = _json(head)
    sizes = SIZES.pack(len(text), len(part.token_ids))
    return b"".join((sizes, text, _bytes("i", part.token_ids), _bytes("f", part.logprobs), part.routes))


class PartReader:
    """Decodes the frames of a reply from its bytes, as they arrive."""

    def __init__(self) -> None:
        self._data = b""

    def feed(self, data: bytes) -> list[TurnPart]:
        """Return the parts that are complete with `data`. Raises ValueError for another format."""
        data = self._data + data if self._data else data
        parts: list[TurnPart] = []
        start = 0
        while len(data) >= start + SIZES.size:
            head_bytes, count = SIZES.unpack_from(data, start)
            if head_bytes > MOST_HEAD_BYTES:
                raise ValueError(f"a frame has a head of {head_bytes} bytes")
            head = start + SIZES.size
            tokens = head + head_bytes
            logprobs = tokens + TOKEN_BYTES * count
            routes = logprobs + LOGPROB_BYTES * count
            if len(data) < tokens:
                break
            fields = _read_head(data[head:tokens])
            end = routes + fields.route_bytes
            if len(data) < end:
                break
            view = memoryview(data)
            parts.append(fields.part(view[tokens:logprobs], view[logprobs:routes], bytes(view[routes:end])))
            start = end
        self._data = data[start:]
        return parts


@dataclass(frozen=True, slots=True)
class _Head:
    """The head of a frame of a reply."""

    versions: tuple[tuple[str, int], ...]
    finish_reason: str | None
    error: str
    route_bytes: int
    """Bytes of the experts of all tokens."""
    row_bytes: int

    def part(self, tokens: memoryview, logprobs: memoryview, routes: bytes) -> TurnPart:
        """Return the part that the frame has."""
        values = _numbers("i", tokens), _numbers("f", logprobs)
        return TurnPart(*values, self.versions, self.finish_reason, self.error, routes, self.row_bytes)


@lru_cache(maxsize=256)
def _read_head(head: bytes) -> _Head:
    """Return the fields of a head. The heads of most parts are equal."""
    fields = json.loads(head)
    versions = tuple((str(version), int(start)) for version, start in fields["versions"])
    size, row = fields.get("routes", (0, 0))
    return _Head(versions, fields.get("finish_reason"), fields.get("error", ""), int(size), int(row))


_ENCODER = json.JSONEncoder(separators=(",", ":"))


def _json(value: dict[str, Any]) -> bytes:
    return _ENCODER.encode(value).encode()


def _bytes(kind: str, values: Sequence[int] | Sequence[float]) -> bytes | array[Any]:
    """Return numbers as `bytes.join` takes them: a long array is not copied twice."""
    if sys.byteorder == "little":
        return values if isinstance(values, array) and values.typecode == kind else array(kind, values)
    numbers = array(kind, values)
    numbers.byteswap()
    return numbers


def _numbers(kind: str, data: bytes | memoryview) -> array[Any]:
    numbers: array[Any] = array(kind)
    numbers.frombytes(data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
