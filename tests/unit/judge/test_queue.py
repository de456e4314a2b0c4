"""The queue without a Redis: which errors are retried, and passwords in URLs."""

import asyncio
import socket
import struct

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ExecAbortError, OutOfMemoryError, ReadOnlyError, ResponseError

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.judge.queue import connect, decode_result, encode_result, is_transient
from rstar2_train.judge.types import CallResult, QueuedCall, ReturnedFile


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (OutOfMemoryError("command not allowed when used memory > 'maxmemory'."), True),
        (ReadOnlyError("You can't write against a read only replica."), True),
        (ResponseError("MISCONF Errors writing to the AOF file"), True),
        (ResponseError("Command # 1 (RPUSH a b) of pipeline caused error: ('MISCONF Errors writing',)"), True),
        (ResponseError("UNBLOCKED force unblock from blocking operation, instance state changed"), True),
        (ExecAbortError("Transaction discarded because of: READONLY You can't write against a replica."), True),
        (ExecAbortError("Transaction discarded because of previous errors."), False),
        (ResponseError("NOREPLICAS Not enough good replicas to write."), True),
        (ResponseError("Command # 1 (RPUSH a MISCONF) of pipeline caused error: ('WRONGTYPE Operation',)"), False),
        (ResponseError("WRONGTYPE Operation against a key"), False),
    ],
)
def test_is_transient_accepts_temporary_errors_only(error: ResponseError, transient: bool) -> None:
    """Errors of a full, loading or failing-over Redis are temporary, also in pipelines and transactions."""
    assert is_transient(error) is transient


def test_connect_url_with_password_is_rejected() -> None:
    """The error names the environment variable to use instead."""
    with pytest.raises(ValueError, match="RSTAR2_REDIS_PASSWORD"):
        connect("redis://:hunter2@127.0.0.1:1/0")


def test_connect_reports_a_reset_connection_under_uvloop() -> None:
    """uvloop raises RuntimeError for a write after the reset, which would end the API or the worker."""

    async def use_reset_connection() -> None:
        writers: list[asyncio.StreamWriter] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writers.append(writer)

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            host, port = server.sockets[0].getsockname()
            pool = connect(f"redis://{host}:{port}").connection_pool
            connection = await pool.get_connection()
            while not writers:
                await asyncio.sleep(0.01)
            reset_on_close = struct.pack("ii", 1, 0)
            writers[0].get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset_on_close)
            writers[0].transport.abort()
            await asyncio.sleep(0.1)
            with pytest.raises(RedisConnectionError, match="Connection closed"):
                await connection.send_command("PING", check_health=False)
            await pool.release(connection)

    uvloop.run(use_reset_connection())


@given(st.text(), st.text(), st.floats(0.1, 600), st.integers(1, 1000))
def test_queued_call_decode_reverses_encode(code: str, stdin: str, wall: float, processes: int) -> None:
    """Any call survives the queue."""
    limits = JudgeLimits(wall_seconds=wall, processes=processes, file_bytes=7)
    call = QueuedCall("7", "list", code, stdin, limits, deadline=12.5, verb="script")
    assert QueuedCall.decode({name.encode(): value for name, value in call.encode().items()}) == call


@given(st.text(), st.text(), st.none() | st.integers(-64, 255))
def test_result_decode_reverses_encode(stdout: str, stderr: str, exit_code: int | None) -> None:
    """Any result survives the queue."""
    files = [ReturnedFile("plot.png", 3, "AAAA"), ReturnedFile("large", 10**9, None)]
    result = CallResult("error", stdout, stderr, exit_code, 0.0, 1.5, files=files)
    assert CallResult.from_dict(result.to_dict()) == result
    assert decode_result(encode_result("id", result)) == ("id", result)
