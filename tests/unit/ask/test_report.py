"""Where a report goes: all of it or nothing, and told before anything is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from rstar2_train.ask import eval_flow
from rstar2_train.local.prepare import CannotRun


@pytest.mark.parametrize("where", ["file", "/proc/nope"])
def test_a_place_that_cannot_hold_a_report_is_named(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CannotRun, match=f"no report can be written into .*{where}: "):
        eval_flow.check_out(tmp_path / where)


def test_the_trial_leaves_nothing(tmp_path: Path) -> None:
    eval_flow.check_out(tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


def test_a_report_that_cannot_be_written_leaves_the_older_one_whole(tmp_path: Path) -> None:
    (tmp_path / eval_flow.REPORT).write_text("old")
    eval_flow.check_out(tmp_path)
    with pytest.raises(CannotRun, match="No space left"), eval_flow._aside(tmp_path) as new:
        (new / eval_flow.TRAJECTORIES).write_text("new")
        Path("/dev/full").write_text("x" * 10_000)
    assert [file.name for file in tmp_path.iterdir()] == [eval_flow.REPORT]
    assert (tmp_path / eval_flow.REPORT).read_text() == "old"
