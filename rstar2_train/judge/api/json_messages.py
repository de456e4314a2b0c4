"""Results as JSON responses, which may be large: no output holds the event loop (`utils/json_steps.py`)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

from fastapi import Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.concurrency import iterate_in_threadpool

from rstar2_train.judge.types import CallResult
from rstar2_train.utils.json_steps import SMALL_BYTES, encode_json


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
