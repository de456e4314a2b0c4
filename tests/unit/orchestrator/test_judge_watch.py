"""The report about a judge that does not answer."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from rstar2_train.judge.types import JudgeUnavailable
from rstar2_train.orchestrator.context import StageContext
from rstar2_train.orchestrator.judge_watch import JudgeWatch
from tests.support.stage_attempt import NewAttempt
from tests.support.waiting import until_async


class Judge:
    """Answers, or does not."""

    answers = True

    async def status(self) -> dict[str, Any]:
        if not self.answers:
            raise JudgeUnavailable("http://demo-judge: connection refused")
        return {}


async def test_judge_watch_reports_and_clears(new_attempt: NewAttempt, caplog: pytest.LogCaptureFixture) -> None:
    """The progress file and the log name a judge that stops answering; the report ends when it answers again."""
    caplog.set_level(logging.INFO)
    ctx: StageContext = new_attempt()
    judge, reports = Judge(), list[str | None]()

    def report(error: str | None) -> None:
        reports.append(error)
        ctx.report_unreachable("judge", error)

    async with JudgeWatch(judge, report, period=0.01, unreachable=0.03):
        judge.answers = False
        await until_async(lambda: reports, "the report")
        assert ctx.progress.unreachable == {"judge": "http://demo-judge: connection refused"}
        assert "rollouts wait: http://demo-judge" in caplog.text
        judge.answers = True
        await until_async(lambda: len(reports) == 2, "the end of the report")
    assert ctx.progress.unreachable == {}
    assert "answers again" in caplog.text


async def test_judge_watch_outlives_a_full_disk(caplog: pytest.LogCaptureFixture) -> None:
    """A report that cannot be written is logged; the end of the outage is still reported."""
    judge, reports = Judge(), list[str | None]()

    def report(error: str | None) -> None:
        reports.append(error)
        if error:
            raise OSError(28, "No space left on device")

    async with JudgeWatch(judge, report, period=0.01, unreachable=0.03):
        judge.answers = False
        await until_async(lambda: reports, "the report")
        judge.answers = True
        await until_async(lambda: reports[-1] is None, "the end of the report")
    assert "No space left on device" in caplog.text
