"""Bodies of POST /v1/chat/completions that take long to read, and a client that holds no event loop itself."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit

CONTROL = "\1" * (1 << 20)
"""Each character has six in JSON."""
USER = {"role": "user", "content": "What is 1 + 1?"}
INTEGERS = [[1] * 8000 for _ in range(60)]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


def _tool(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {**TOOL["function"], **fields}}  # type: ignore[dict-item]


def _called(arguments: str) -> dict[str, Any]:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


BODIES: dict[str, dict[str, Any]] = {
    "escapes": {"messages": [{"role": "user", "content": CONTROL}]},
    "long text": {"messages": [{"role": "user", "content": "a b\n" * (1 << 17)}]},
    "white space": {"messages": [{"role": "user", "content": " " * (2 << 20)}]},
    "characters": {"messages": [{"role": "user", "content": "\u4e2d\u6587" * 100_000}]},
    "messages": {"messages": [USER, {"role": "assistant", "content": "2"}] * 4000 + [USER]},
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 8000}]},
    "no messages": {"messages": [1] * 8000},
    "role": {"messages": [{"role": CONTROL, "content": "x"}]},
    "unknown parameter": {"messages": [USER], "other": INTEGERS},
    "long parameter": {"messages": [USER], "n": CONTROL},
    "many integers": {"messages": [USER], "metadata": INTEGERS * 4},
    "many objects": {"messages": [USER], "metadata": [[{}] * 8000] * 240},
    "nested": {"messages": [USER], "metadata": json.loads("[" * 500 + "]" * 500), "other": CONTROL},
    "tools": {"messages": [USER], "tools": [_tool(description="d" * 16000)] * 24},
    "tool": {"messages": [USER], "tools": [_tool(description=CONTROL)]},
    "schema": {"messages": [USER], "tools": [_tool(parameters={"type": "object", "default": INTEGERS})]},
    "no tools": {"messages": [USER], "tools": [1] * 8000},
    "arguments": {
        "tools": [TOOL],
        "messages": [USER, *[_called(json.dumps({"a": [1] * 60_000})), {"role": "tool", "content": "x"}] * 5],
    },
    "long arguments": {"tools": [TOOL], "messages": [USER, _called(json.dumps({"a": CONTROL})), USER]},
}


async def post(url: str, body: dict[str, Any], *, key: str) -> tuple[int, bytes]:
    """Post a body; return the status and the rest of the response. A usual client would hold the event loop itself."""
    content = await asyncio.to_thread(lambda: json.dumps(body).encode())
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    head = f"POST {parts.path} HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {key}\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    try:
        writer.write(head.encode())
        for start in range(0, len(content), 1 << 16):
            writer.write(content[start : start + (1 << 16)])
            await writer.drain()
        _, _, status = (await reader.readline()).partition(b" ")
        return int(status.split()[0]), await reader.read()
    finally:
        writer.close()
