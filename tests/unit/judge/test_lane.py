"""A lane whose way into the sandbox is closed: the call that finds it so is not lost."""

import pytest

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.judge.sandbox.base import Lane, Sandbox, SandboxError
from rstar2_train.judge.types import QueuedCall


class Broken(Sandbox):
    """Its pipe was closed and nobody has noticed yet: uvloop says so at the next write."""

    async def start(self) -> None: ...

    def send(self, lane: Lane, data: bytes) -> None:
        raise RuntimeError("the handler is closed")

    def hang_up(self) -> None: ...

    def said(self) -> str:
        return ""

    def memory_bytes(self) -> int | None:
        return None

    async def stop(self, *, condemned: bool = False) -> None: ...


async def test_a_call_written_to_a_closed_pipe_comes_back() -> None:
    sandbox = Broken(["bare"], id="broken", walled=False)
    task = QueuedCall.build(id="1", reply_to="", code="", stdin="", limits=JudgeLimits(), deadline=0)
    written = sandbox.lanes["bare"].submit(task)
    assert sandbox.dead.is_set() and not sandbox.waiting
    with pytest.raises(SandboxError):
        await written
