"""The folder of a report: checked before sampling, and written completely or not at all. Failures of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest

from rstar2_train.api.contracts import Outcome
from rstar2_train.evaluation.records import JobReport
from rstar2_train.launch.evaluation import evaluate
from rstar2_train.launch.evaluation.measure import failure_of
from rstar2_train.launch.local.preflight import PreflightError
from rstar2_train.launch.local.run import RunEnd


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
    with pytest.raises(PreflightError, match="No space left"), evaluate._temporary_folder(tmp_path) as new:
        (new / evaluate.TRAJECTORIES).write_text("new")
        Path("/dev/full").write_text("x" * 10_000)
    assert [file.name for file in tmp_path.iterdir()] == [evaluate.REPORT]
    assert (tmp_path / evaluate.REPORT).read_text() == "old"


@pytest.mark.parametrize(
    ("ending", "outcome", "code", "message"),
    [
        ("suspended", None, 75, "Finished samples are saved"),
        ("failed", {"reason": "JudgeUnavailable", "retryable": True}, 76, "the cause\nNo report was written"),
        ("failed", {"reason": "BadData"}, 1, "the cause"),
        ("failed", None, 1, "redis does not start"),
    ],
)
def test_failure_of_run_has_the_exit_code(
    ending: Literal["suspended", "failed"], outcome: dict[str, Any] | None, code: int, message: str
) -> None:
    """75: stopped by a signal. 76: infrastructure lost samples. 1: anything else."""
    last = Outcome(stage="eval", attempt=1, outcome="failed", message="the cause", **outcome) if outcome else None
    report = JobReport(job="eval", seconds=1, seed=0, stages=[])
    failure = failure_of(RunEnd(ending, report, failure="redis does not start", outcome=last))
    assert failure.code == code and message in str(failure)
