"""Cells of a session whose worker sends no heartbeat for a while, in virtual time."""

import asyncio
import json
import math
import time
from typing import Any, cast

import pytest
from redis.asyncio import Redis

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.judge.api.admission import CallAdmission
from rstar2_train.judge.api.submitter import Submitter
from rstar2_train.judge.queue import HEARTBEAT_LIFE_SECONDS, QueueKeys, encode_result
from rstar2_train.judge.types import CallResult

pytestmark = pytest.mark.usefixtures("virtual_time")


class SilentWorkerRedis:
    """A Redis with sessions of one worker, which sends its last heartbeat now and continues after `silent` seconds."""

    def __init__(self, silent: float) -> None:
        self._last = time.monotonic()
        self._back = self._last + silent
        self._cells: list[str] = []
        self._replies: list[object] = []

    async def mget(self, *_: str) -> list[bytes]:
        return [b"", b"worker"]

    def exists(self, _: str) -> None:
        self._replies.append(not self._last + HEARTBEAT_LIFE_SECONDS <= time.monotonic() < self._back)

    def pipeline(self, *, transaction: bool) -> "SilentWorkerRedis":
        assert not transaction
        self._replies = []
        return self

    def xadd(self, _: str, fields: dict[str, Any]) -> None:
        self._cells.append(json.loads(fields["call"])[0])
        self._replies.append(b"1-0")

    async def execute(self, raise_on_error: bool = True) -> list[object]:
        return self._replies

    async def blpop(self, _: list[str], timeout: int) -> tuple[bytes, bytes] | None:
        await asyncio.sleep(timeout)
        if not self._cells or time.monotonic() < self._back:
            return None
        return b"results", encode_result(self._cells.pop(), CallResult("ok", session_lives=True))

    async def lpop(self, *_: object) -> None:
        return None


async def answers(silent: float, sent: float) -> list[tuple[str, float]]:
    """Return status and time of two sessions' cells: one is sent after the last heartbeat, the other `sent` s later."""
    redis, keys = cast(Redis, SilentWorkerRedis(silent)), QueueKeys()
    submitter = Submitter(redis, keys, max_wait_seconds=900)
    submitter.start()
    admission, start = CallAdmission(redis, keys, submitter, max_pending=9), time.monotonic()

    async def run(session: str, delay: float) -> tuple[str, float]:
        await asyncio.sleep(delay)
        result = await admission.run_cell(session, "1", JudgeLimits())
        return result.status, time.monotonic() - start

    first, second = await asyncio.gather(run("a", 0.1), run("b", sent))
    await submitter.stop()
    return [first, second]


@pytest.mark.parametrize("sent", [1.0, 5.5, 7.5])
async def test_worker_loses_no_session_before_its_cells(sent: float) -> None:
    """A slow worker runs a cell of each session; a lost one loses no cell that is sent late before the other."""
    for silent in (3.0, 8.9):
        assert [status for status, _ in await answers(silent, sent)] == ["ok", "ok"]
    (first, since), (second, until) = await answers(math.inf, sent)
    assert (first, second) == ("session_lost", "session_lost")
    assert HEARTBEAT_LIFE_SECONDS < since <= until
