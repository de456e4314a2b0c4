"""State directory of a job with trajectories, for the tests of the analysis."""

from pathlib import Path

import pytest

from rstar2_train.api.state_dir import JobState
from tests.support.trajectory_job import Rollout, chat_format, empty_job, fill, model_folder, rollout

__all__ = ["chat_format", "model_folder", "rollout"]


@pytest.fixture
def state(tmp_path: Path, model_folder: Path) -> JobState:
    """A job without trajectories."""
    return empty_job(tmp_path, model_folder)


@pytest.fixture
def filled(state: JobState, rollout: Rollout) -> JobState:
    """A job with trajectories."""
    return fill(state, rollout)
