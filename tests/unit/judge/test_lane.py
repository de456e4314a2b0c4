"""A lane: requests written, responses read, and the end of its sandbox."""

import pytest

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.judge.process_exit import ProcessExit
from rstar2_train.judge.sandbox.base import RESPONSE, SandboxError
from rstar2_train.judge.types import QueuedCall
from tests.support.fake_sandbox import FakeSandbox

CALL = QueuedCall(id="1", reply_to="", code="", stdin="", limits=JudgeLimits(), deadline=0)


async def test_lane_submit_to_closed_pipe_fails_the_call() -> None:
    """uvloop reports a closed pipe only at the next write; that call must not be lost."""
    sandbox = FakeSandbox()
    sandbox.send_error = RuntimeError("the handler is closed")
    future = sandbox.lanes["bare"].submit(CALL)
    assert sandbox.dead.is_set() and not sandbox.in_flight
    with pytest.raises(SandboxError):
        await future


async def test_lane_receive_joins_split_responses() -> None:
    """Responses are read in the order of the requests, and the stream may be cut at any byte."""
    sandbox = FakeSandbox()
    lane = sandbox.lanes["bare"]
    first, second = lane.submit(CALL), lane.submit(CALL)
    stream = (
        RESPONSE.pack(1, 0, 0, 500_000, 3, 0, 0, 0) + b"one" + RESPONSE.pack(1, 3 << 8, 0, 0, 0, 3, 1, 4) + b"twofile"
    )
    for byte in stream:
        lane.receive(bytes([byte]))
    assert await first == ProcessExit("exited", 0, 0.5, "one", "")
    assert await second == ProcessExit("exited", 3 << 8, 0.0, "", "two", session_lives=True, files=b"file")


@pytest.mark.parametrize(
    "response",
    [
        RESPONSE.pack(1, 0x137F, 0, 0, 0, 0, 0, 0),  # stopped, not ended
        RESPONSE.pack(1, 0, 9, 0, 0, 0, 0, 0),
        RESPONSE.pack(1, 0, 0, 0, 1 << 31, 0, 0, 0),
        RESPONSE.pack(1, 0, 0, 0, 0, 0, 0, 1 << 31),
    ],
    ids=["wait_status", "reason", "length", "files"],
)
async def test_lane_receive_invalid_response_ends_sandbox(response: bytes) -> None:
    """A response that the executor cannot have sent means that the sandbox is compromised."""
    sandbox = FakeSandbox()
    future = sandbox.lanes["bare"].submit(CALL)
    sandbox.lanes["bare"].receive(response)
    assert sandbox.dead.is_set()
    with pytest.raises(SandboxError):
        await future


async def test_lane_close_marks_only_the_oldest_call_as_running() -> None:
    """Only the call that ran can be to blame for the end of a sandbox."""
    sandbox = FakeSandbox()
    futures = [sandbox.lanes["bare"].submit(CALL) for _ in range(2)]
    sandbox.mark_dead()
    errors = [future.exception() for future in futures]
    assert [error.running for error in errors if isinstance(error, SandboxError)] == [True, False]
