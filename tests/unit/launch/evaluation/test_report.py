"""Where a report goes: all of it or nothing, and told before anything is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from rstar2_train.launch.evaluation import evaluate
from rstar2_train.launch.local.preflight import PreflightError


@pytest.mark.parametrize("where", ["file", "/proc/nope"])
def test_a_place_that_cannot_hold_a_report_is_named(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PreflightError, match=f"no report can be written into .*{where}: "):
        evaluate.check_out(tmp_path / where)


def test_the_trial_leaves_nothing(tmp_path: Path) -> None:
    evaluate.check_out(tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


def test_a_report_that_cannot_be_written_leaves_the_older_one_whole(tmp_path: Path) -> None:
    (tmp_path / evaluate.REPORT).write_text("old")
    evaluate.check_out(tmp_path)
    with pytest.raises(PreflightError, match="No space left"), evaluate._aside(tmp_path) as new:
        (new / evaluate.TRAJECTORIES).write_text("new")
        Path("/dev/full").write_text("x" * 10_000)
    assert [file.name for file in tmp_path.iterdir()] == [evaluate.REPORT]
    assert (tmp_path / evaluate.REPORT).read_text() == "old"
