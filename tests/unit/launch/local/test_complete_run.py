"""A job whose stages are done: a launcher that was killed before its end has left the MLflow run open."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from rstar2_train.api.contracts import Outcome, write_model
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.state_dir import JobState
from rstar2_train.launch.local import preflight
from rstar2_train.launch.local.run import LocalRun
from rstar2_train.launch.local.run_view import RunView
from rstar2_train.tracking.journal import read_entries
from rstar2_train.tracking.tracker import Tracker, journal_file
from scripts.setup import ROOT
from tests.support.simulated_cluster import manifest


@pytest.mark.parametrize("open_run", [True, False])
def test_complete_run_ends_an_open_mlflow_run(open_run: bool, tmp_path: Path) -> None:
    """The run of the job ends as completed, once."""
    job, state = AgenticRLJob.model_validate(manifest("s")), JobState(tmp_path)
    write_model(state.job_file, job)
    outcome = Outcome(stage="s0", attempt=1, outcome="completed", reason="StepsReached")
    state.stage("s0").outcome_file.parent.mkdir(parents=True)
    write_model(state.stage("s0").outcome_file, outcome)
    tracker = Tracker.for_job(job, tmp_path)
    tracker.start_job({})
    if not open_run:
        tracker.end_job("completed")
    tracker.close()
    before = len(list(read_entries(journal_file(tmp_path))))
    view: RunView = object()  # type: ignore[assignment]
    asyncio.run(LocalRun(job, state, view, packages=None, title="", ships=False).main())
    added = [entry.event["kind"] for entry in list(read_entries(journal_file(tmp_path)))[before:] if entry.event]
    assert added == (["artifact", "end"] if open_run else [])


def test_manifest_of_a_pipe_is_stored(tmp_path: Path) -> None:
    """As of `rstar2 run <(envsubst < job.yaml)`: a second read would find nothing, or another text than the job's."""
    text, (reader, writer) = (ROOT / "examples" / "smoke.yaml").read_text(), os.pipe()
    with os.fdopen(writer, "w") as pipe:
        pipe.write(text)
    state = JobState(tmp_path / "state")
    state.root.mkdir()
    job, _, content = preflight.read_job_and_text(Path(f"/dev/fd/{reader}"))
    os.close(reader)
    preflight.write_job(job, manifest=content, state=state)
    assert state.manifest_file.read_text() == text
