"""The lower bound of a measured step."""

import pytest

from rstar2_train.rollout.trajectory import Segment, Trajectory
from rstar2_train.simulation.makespan import LEAST_SAMPLES, makespan_bound

STEP, SEQUENCE, TOKEN = 0.01, 1e-4, 1e-6
SAMPLES = [(n, 100.0 * n * n, STEP + SEQUENCE * n + TOKEN * 100 * n * n) for n in range(1, 30)]


def test_makespan_bound_of_one_trajectory_is_its_own_time() -> None:
    """A single trajectory cannot be faster than its decode steps and its tool call."""
    trajectory = Trajectory(prompt_id="p", sample=0, prompt_ids=[1] * 50)
    trajectory.segments = [
        Segment("model", [2] * 200, logprobs=[-1.0] * 200),
        Segment("tool", [3] * 20, seconds=1.5),
        Segment("model", [2] * 100, logprobs=[-1.0] * 100),
    ]
    bound = makespan_bound([trajectory], SAMPLES, [40_000, 40_000])
    assert bound == pytest.approx(1.5 + 300 * (STEP + SEQUENCE) + TOKEN * (200 * 150 + 100 * 320), rel=0.01)


def test_makespan_bound_needs_samples() -> None:
    """Too few measurements give no bound."""
    trajectory = Trajectory(prompt_id="p", sample=0, prompt_ids=[1])
    assert makespan_bound([trajectory], SAMPLES[: LEAST_SAMPLES - 1], [100]) is None
    assert makespan_bound([], SAMPLES, [100]) is None
