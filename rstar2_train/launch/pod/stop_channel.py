"""The stop request of one pod of an attempt to index 0, whose orchestrator writes a checkpoint while all ranks run.

    index N: SIGTERM -> request_stop ──TCP──> index 0: answer_stops -> SIGTERM to the orchestrator

The pods may have no common disk, so the request is a connection. It carries a token that only the attempt's pods know.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Callable

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
TIMEOUT_SECONDS = 10.0
_ACCEPTED = b"stopping\n"


def token(secret: str) -> str:
    """Return the token of an attempt. `secret`: known only to the attempt's pods."""
    return hashlib.sha256(f"stop of a stage: {secret}".encode()).hexdigest()


async def answer_stops(host: str, port: int, token: str, stop: Callable[[], None]) -> None:
    """Call `stop` after a request with the token, until cancelled. Raises OSError if the port is not free."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                line = await reader.readline()
                if hmac.compare_digest(line.strip(), token.encode()):
                    log.info("another pod of this attempt must stop")
                    stop()
                    writer.write(_ACCEPTED)
                    await writer.drain()
        except (OSError, TimeoutError, ValueError):  # ValueError: a line without an end
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answer, host, port, limit=2 * len(token))
    async with server:
        await server.serve_forever()


async def request_stop(host: str, port: int, token: str) -> None:
    """Return when index 0 has accepted the request; repeated while it does not answer."""
    while True:
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                reader, writer = await asyncio.open_connection(host, port)
                try:
                    writer.write(f"{token}\n".encode())
                    await writer.drain()
                    if await reader.readline() == _ACCEPTED:
                        return
                finally:
                    writer.close()
        except (OSError, TimeoutError) as error:
            log.warning("index 0 at %s does not answer the stop request: %s", host, error or type(error).__name__)
        await asyncio.sleep(RETRY_SECONDS)
