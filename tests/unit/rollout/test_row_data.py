"""The further data of a row: large data is parsed without holding the event loop, or refused before the job starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rstar2_train.data.problems import INLINE_DATA, read_problems
from rstar2_train.data.readers import DataError
from rstar2_train.rollout.row_data import read_data
from rstar2_train.utils.loop_watch import VARIABLE, watch_loop
from tests.support.loop_watch import loop_watch_file, reports_of


def _file(folder: Path, data: Any) -> Path:
    path = folder / "data.jsonl"
    path.write_text(json.dumps({"problem": "x", "answer": "1", "data": data}))
    return path


async def test_read_data_never_holds_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests of a programming task may have megabytes; the value is the same."""
    data = {"tests": [{"input": "1 2 3\n" * 20_000, "output": "4\n" * 50_000}] * 100}
    (problem,) = read_problems(_file(tmp_path, data))
    assert len(problem.data) > 20 * INLINE_DATA
    monkeypatch.setenv(VARIABLE, str(loop_watch_file()))

    async def read() -> None:
        with watch_loop():
            assert await read_data(problem) == data

    assert await reports_of(read) == ""


@pytest.mark.parametrize("data", [None, {"a": list(range(20_000))}], ids=["none", "long list"])
async def test_read_data_of_usual_size_has_any_form(tmp_path: Path, data: Any) -> None:
    """Below the limit no form is refused."""
    (problem,) = read_problems(_file(tmp_path, data))
    assert await read_data(problem) == data


def test_read_problems_refuses_data_that_no_rollout_can_parse(tmp_path: Path) -> None:
    """The error names row, field and remedy."""
    with pytest.raises(DataError, match=r"data\.jsonl:1: data has 1,\d+,\d+ characters, .* write lists as texts"):
        list(read_problems(_file(tmp_path, list(range(200_000)))))
