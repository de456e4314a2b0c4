"""Requests that cannot be run, the limits of a request, and the streamed response of a batch."""

import asyncio
import json

import pytest
from pydantic import ValidationError

from rstar2_train.api.judge_limits import MAX_OUTPUT_BYTES, JudgeLimits
from rstar2_train.judge.__main__ import main
from rstar2_train.judge.api.app import stream_results
from rstar2_train.judge.types import MAX_CODE_BYTES, CallResult, check_request


def test_check_request_reports_size_and_encoding() -> None:
    """Sizes are counted in bytes of UTF-8."""
    assert check_request("print(1)", "") is None
    assert "code is" in str(check_request("x" * (MAX_CODE_BYTES + 1), ""))
    assert "code is" in str(check_request("\u00e9" * (MAX_CODE_BYTES // 2 + 1), ""))
    assert "stdin is not Unicode" in str(check_request("", "\udc80"))


def test_limits_output_bound_is_the_judges() -> None:
    """The API's limits accept as much output as the judge can hold, and no more."""
    assert JudgeLimits(output_bytes=MAX_OUTPUT_BYTES)
    with pytest.raises(ValidationError, match="output_bytes"):
        JudgeLimits(output_bytes=MAX_OUTPUT_BYTES + 1)


async def test_stream_results_yields_in_order_of_completion() -> None:
    """Each result is a line with the index of its call."""

    async def after(seconds: float, text: str) -> CallResult:
        await asyncio.sleep(seconds)
        return CallResult("ok", text)

    runs = [asyncio.ensure_future(after(0.05, "late")), asyncio.ensure_future(after(0, "early"))]
    lines = [json.loads(line) async for chunk in stream_results(runs) for line in chunk.splitlines()]
    assert [(line["index"], line["stdout"]) for line in lines] == [(1, "early"), (0, "late")]


@pytest.mark.parametrize("arguments", [["--help"], ["api", "--help"], ["worker", "--help"]])
def test_main_help_names_the_secrets(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The help of each role lists the environment variables of secrets."""
    with pytest.raises(SystemExit) as exited:
        main(arguments)
    assert exited.value.code == 0
    assert "RSTAR2_REDIS_PASSWORD" in capsys.readouterr().out
