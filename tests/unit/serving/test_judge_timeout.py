"""How long a conversation waits for its judge: as long as that is well, and no longer than its patience when not."""

import asyncio
from typing import Any

import pytest

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.judge.types import CallResult, JudgeUnavailable
from rstar2_train.serving.judge_timeout import JudgeWithTimeout


class Judge:
    """Answers once it was asked for its status so many times."""

    def __init__(self, *, after: int, statuses: list[dict[str, Any] | JudgeUnavailable]) -> None:
        self.asked = 0
        self.given_up = False
        self._statuses = statuses
        self._after = after
        self._answer = asyncio.Event()

    async def run(self, code: str, stdin: str = "", *, limits: JudgeLimits | None = None) -> CallResult:
        try:
            await self._answer.wait()
        except asyncio.CancelledError:
            self.given_up = True
            raise
        return CallResult("ok", stdout=code + stdin)

    async def status(self) -> dict[str, Any]:
        status = self._statuses[self.asked % len(self._statuses)]
        self.asked += 1
        if self.asked == self._after:
            self._answer.set()
        if isinstance(status, JudgeUnavailable):
            raise status
        return status

    async def asked_with_patience(self, seconds: float) -> CallResult:
        patient = JudgeWithTimeout(self, status=self.status, patience_seconds=seconds)
        result = await patient.run("code", "stdin")
        assert isinstance(result, CallResult)
        return result


async def test_a_judge_that_is_well_is_waited_for() -> None:
    judge = Judge(after=30, statuses=[{"ready": True}])
    assert (await judge.asked_with_patience(0.01)).stdout == "codestdin"
    assert judge.asked >= 30


@pytest.mark.parametrize("status", [{"ready": False}, {"detail": "a token is needed"}, JudgeUnavailable("away")])
async def test_a_judge_that_is_away_is_given_up(status: dict[str, Any] | JudgeUnavailable) -> None:
    judge = Judge(after=1_000_000, statuses=[status])
    with pytest.raises(JudgeUnavailable, match="no sandbox has been ready"):
        await judge.asked_with_patience(0.02)
    await asyncio.sleep(0)
    assert judge.given_up


async def test_what_the_judge_raises_comes_through() -> None:
    class Broken(Judge):
        async def run(self, code: str, stdin: str = "", *, limits: JudgeLimits | None = None) -> CallResult:
            raise JudgeUnavailable("refused")

    with pytest.raises(JudgeUnavailable, match="refused"):
        await Broken(after=1, statuses=[{"ready": True}]).asked_with_patience(5)
