"""A call waits for a ready judge without limit, and for an unreachable judge as long as its patience."""

import asyncio
from typing import Any

import pytest

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.judge.types import CallResult, JudgeUnavailable
from rstar2_train.serving.judge_timeout import JudgeWithTimeout


class Judge:
    """A judge that answers a call after `after` status requests."""

    def __init__(self, *, after: int, statuses: list[dict[str, Any] | JudgeUnavailable]) -> None:
        self.requests = 0
        self.cancelled = False
        self._statuses = statuses
        self._after = after
        self._answer = asyncio.Event()

    async def run(self, code: str, stdin: str = "", *, limits: JudgeLimits | None = None) -> CallResult:
        try:
            await self._answer.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return CallResult("ok", stdout=code + stdin)

    async def status(self) -> dict[str, Any]:
        status = self._statuses[self.requests % len(self._statuses)]
        self.requests += 1
        if self.requests == self._after:
            self._answer.set()
        if isinstance(status, JudgeUnavailable):
            raise status
        return status

    async def run_with_patience(self, seconds: float) -> CallResult:
        executor = JudgeWithTimeout(self, status=self.status, patience_seconds=seconds)
        result = await executor.run("code", "stdin")
        assert isinstance(result, CallResult)
        return result


async def test_run_waits_for_a_ready_judge() -> None:
    """Time in the queue of a ready judge does not count."""
    judge = Judge(after=30, statuses=[{"ready": True}])
    assert (await judge.run_with_patience(0.01)).stdout == "codestdin"
    assert judge.requests >= 30


@pytest.mark.parametrize("status", [{"ready": False}, {"detail": "a token is needed"}, JudgeUnavailable("away")])
async def test_run_unreachable_judge_fails(status: dict[str, Any] | JudgeUnavailable) -> None:
    """The call is cancelled after the patience."""
    judge = Judge(after=1_000_000, statuses=[status])
    with pytest.raises(JudgeUnavailable, match="no sandbox was ready"):
        await judge.run_with_patience(0.02)
    await asyncio.sleep(0)
    assert judge.cancelled


async def test_run_raises_the_judges_error() -> None:
    """An error of the judge is not delayed."""

    class Broken(Judge):
        async def run(self, code: str, stdin: str = "", *, limits: JudgeLimits | None = None) -> CallResult:
            raise JudgeUnavailable("refused")

    with pytest.raises(JudgeUnavailable, match="refused"):
        await Broken(after=1, statuses=[{"ready": True}]).run_with_patience(5)
