"""An attempt that finds a newer one: it ends nothing that belongs to the newer one."""

from __future__ import annotations

from pathlib import Path

from rstar2_train.api.contracts import AttemptRecord, ExitCode, write_model
from rstar2_train.orchestrator.__main__ import _run_attempt
from rstar2_train.tracking.journal import read_entries
from rstar2_train.tracking.tracker import journal_file
from rstar2_train.utils.event_loop import run_with_uvloop
from tests.support.stage_attempt import create_attempt


def test_stale_attempt_leaves_the_run_of_the_stage(tmp_path: Path) -> None:
    """Otherwise the MLflow run of a stage that the newer attempt has completed would be RUNNING, then FAILED."""
    context = create_attempt(tmp_path)
    newer = AttemptRecord(attempt=2, uid=context.job.metadata.uid)
    write_model(context.folder.attempt_file, newer)
    assert run_with_uvloop(_run_attempt(context)) == ExitCode.RETRYABLE
    assert list(read_entries(journal_file(context.state.root))) == []
    assert context.folder.outcome() is None
