"""The folder of a report: checked before sampling, and written completely or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from rstar2_train.launch.evaluation import evaluate
from rstar2_train.launch.local.preflight import PreflightError


@pytest.mark.parametrize("folder", ["file", "/proc/nope"])
def test_check_out_names_an_unusable_folder(tmp_path: Path, folder: str) -> None:
    """A file, or a path that cannot be created."""
    (tmp_path / "file").touch()
    with pytest.raises(PreflightError, match=f"no report can be written into .*{folder}: "):
        evaluate.check_out(tmp_path / folder)


def test_check_out_creates_no_folder(tmp_path: Path) -> None:
    """The folder is created only for a report."""
    evaluate.check_out(tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


def test_failed_report_keeps_the_older_report(tmp_path: Path) -> None:
    """The files of a report are replaced together, or not at all."""
    (tmp_path / evaluate.REPORT).write_text("old")
    evaluate.check_out(tmp_path)
    with pytest.raises(PreflightError, match="No space left"), evaluate._staging_folder(tmp_path) as new:
        (new / evaluate.TRAJECTORIES).write_text("new")
        Path("/dev/full").write_text("x" * 10_000)
    assert [file.name for file in tmp_path.iterdir()] == [evaluate.REPORT]
    assert (tmp_path / evaluate.REPORT).read_text() == "old"
