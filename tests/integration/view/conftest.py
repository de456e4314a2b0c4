"""A job with 10,000 trajectories, its live view, and one Chromium for all tests of the folder."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rstar2_train.analysis.live.job import LiveJob
from rstar2_train.analysis.live.server import ViewServer
from rstar2_train.api.contracts import Progress, write_model
from rstar2_train.api.state_dir import JobState
from rstar2_train.rollout import trajectory_store
from rstar2_train.tracking.tracker import Tracker
from tests.support.browser import Page, open_browser
from tests.support.trajectory_job import Rollout, chat_format, empty_job, fill, model_folder, rollout

__all__ = ["chat_format", "model_folder", "rollout"]

MANY = 10_000
"""Trajectories of step 3 of rl-1."""


@pytest.fixture(scope="session")
def state(tmp_path_factory: pytest.TempPathFactory, model_folder: Path, rollout: Rollout) -> JobState:
    """A job that has stored 10,000 trajectories in one step, a hostile one, and the metrics of three steps."""
    state = fill(empty_job(tmp_path_factory.mktemp("jobs"), model_folder), rollout)
    template = rollout("many", 0, verdict="wrong", selection_reason="untrained: all wrong")
    trajectories = (
        dataclasses.replace(template, prompt_id=f"many-{number // 16:04}", sample=number % 16) for number in range(MANY)
    )
    trajectory_store.write(trajectory_store.step_path(state.stage("rl-1").trajectories, 3), trajectories)
    tracker = Tracker(state.root, job="tiny")
    for step in (1, 2, 3):
        values = {"reward/mean": step / 10, "tools/error_ratio": 0.5 / step, "staleness/mean": 1.0}
        tracker.log_metrics("rl-1", step=step, values=values)
    tracker.close()
    write_model(state.progress_file, Progress(stage="rl-1", attempt=1, phase="Training", step=3, total_steps=8))
    return state


@pytest.fixture(scope="session")
def url(state: JobState) -> Iterator[str]:
    """The address of the job's view."""
    with ViewServer(LiveJob(state, limit=50_000), name="tiny") as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server.url
        server.shutdown()
        thread.join()


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A page of a browser."""
    with open_browser(tmp_path_factory.mktemp("browser") / "profile") as page:
        yield page
