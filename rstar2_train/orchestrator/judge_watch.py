"""Reports that the judge does not answer, while the rollouts still wait for it.

A rollout waits minutes for a judge that does not answer, because its pods may be restarting. Meanwhile the log and the
progress report, from which the operator makes a condition, name the cause.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, Self

from rstar2_train.judge.types import JudgeUnavailable

log = logging.getLogger(__name__)

PERIOD_SECONDS = 10.0
"""Time between two requests."""
UNREACHABLE_SECONDS = 20.0
"""Time without an answer after which the judge counts as unreachable."""


class Judge(Protocol):
    """The judge as this module uses it."""

    async def status(self) -> dict[str, Any]:
        """Return the judge's status. Raises JudgeUnavailable if it does not answer."""


class JudgeWatch:
    """Asks the judge periodically for its status. Use as `async with`.

    `report` is called with the error when the judge has become unreachable, and with None when it answers again.
    """

    def __init__(
        self,
        judge: Judge,
        report: Callable[[str | None], None],
        *,
        period: float = PERIOD_SECONDS,
        unreachable: float = UNREACHABLE_SECONDS,
    ) -> None:
        self._judge = judge
        self._report = report
        self._period = period
        self._unreachable = unreachable
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        answered, reported = time.monotonic(), False
        while True:
            try:
                await self._judge.status()
            except JudgeUnavailable as error:
                silent = time.monotonic() - answered
                if silent >= self._unreachable and not reported:
                    log.warning("the judge has not answered for %.0f s, so rollouts wait: %s", silent, error)
                    self._report_safely(str(error))
                    reported = True
            else:
                if reported:
                    log.info("the judge answers again, after %.0f s", time.monotonic() - answered)
                    self._report_safely(None)
                answered, reported = time.monotonic(), False
            await asyncio.sleep(self._period)

    def _report_safely(self, error: str | None) -> None:
        """Report an outage or its end; a full disk does not end the watch."""
        try:
            self._report(error)
        except OSError as failure:
            log.warning("could not report that the judge %s: %s", "is unreachable" if error else "answers", failure)
