"""The client of an engine against replies that break off or fail. Real engines: tests/integration/rollout."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from rstar2_train.inference.client import EngineClient
from rstar2_train.inference.engine_errors import EngineRejected, EngineUnavailable
from rstar2_train.inference.engine_session import EngineSession
from rstar2_train.inference.sampled_turn import SampledTurn
from rstar2_train.inference.turn_wire import TurnPart, encode_part
from tests.support.token_arrays import logprob_array, token_array

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(*tokens: int, finish_reason: str | None = None) -> bytes:
    """Return a chunk with one part of a turn."""
    logprobs = logprob_array([-0.5] * len(tokens))
    part = encode_part(TurnPart(token_array(list(tokens)), logprobs, [("v", 0)], finish_reason))
    return b"%x\r\n%b\r\n" % (len(part), part)


@asynccontextmanager
async def client_of(reply: bytes) -> AsyncIterator[EngineClient]:
    """Yield the client of a server that answers a request with these bytes, and closes the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        writer.write_eof()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with asyncio.timeout(60), EngineSession() as session:
        yield EngineClient(f"http://127.0.0.1:{port}", token="", session=session)
    server.close()


async def test_generate_complete_turn_needs_no_end_of_reply() -> None:
    """An engine that is lost after the last part of a turn costs nothing."""
    async with client_of(HEAD + chunk(1, 2) + chunk(3, finish_reason="stop")) as client:
        generation = await client.generate([9], max_tokens=5)
    assert list(generation.token_ids) == [1, 2, 3]
    assert (generation.finish_reason, generation.versions) == ("stop", [("v", 0)])


@pytest.mark.parametrize("end", [b"", b"0\r\n\r\n"])
async def test_generate_unfinished_turn_keeps_its_parts(end: bytes) -> None:
    """A connection that is lost, or a reply that ends, in the middle of a turn leaves whole parts."""
    turn = SampledTurn()
    async with client_of(HEAD + chunk(1, 2) + chunk(3)[: -5 if not end else None] + end) as client:
        with pytest.raises(EngineUnavailable, match=r"before the end of its reply|in the middle of a turn"):
            await client.generate([9], max_tokens=5, turn=turn)
    assert list(turn.token_ids) == ([1, 2, 3] if end else [1, 2])


@pytest.mark.parametrize(
    ("status", "error"), [(400, EngineRejected), (429, EngineUnavailable), (503, EngineUnavailable)]
)
async def test_generate_status_selects_the_error(status: int, error: type[Exception]) -> None:
    """An invalid request is rejected; one that may succeed later is not. The text of the reply is in the message."""
    async with client_of(b"HTTP/1.1 %d X\r\nContent-Length: 3\r\n\r\nwhy" % status) as client:
        with pytest.raises(error, match=f"returned {status}: why"):
            await client.generate([9], max_tokens=5)
