"""An OpenEnv server whose answer to a step never ends, a byte per 50 ms: `dripping_environment.py PORT`."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from http import HTTPStatus

from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

ACTION = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}


def answer_http(connection: ServerConnection, request: Request) -> Response | None:
    """Return the answer to a request that opens no WebSocket."""
    if request.path == "/ws":
        return None
    return connection.respond(HTTPStatus.OK, json.dumps({"action": ACTION, "status": "healthy"}))


async def drip() -> AsyncIterator[str]:
    """Yield the fragments of a message."""
    yield '{"type": "observation", "data": '
    while True:
        await asyncio.sleep(0.05)
        yield " "


async def play(connection: ServerConnection) -> None:
    """Answer the requests of an episode."""
    async for message in connection:
        match json.loads(message)["type"]:
            case "reset":
                data = {"observation": {"text": "I think of a number"}, "reward": None, "done": False}
                await connection.send(json.dumps({"type": "observation", "data": data}))
            case "step":
                await connection.send(drip())
            case _:
                await connection.send(json.dumps({"type": "state", "data": {}}))


async def main(port: int) -> None:
    """Serve until the process is killed."""
    async with serve(play, "127.0.0.1", port, process_request=answer_http):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
