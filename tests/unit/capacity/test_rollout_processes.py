"""The number of rollout processes, and their memory."""

from __future__ import annotations

import pytest

from rstar2_train.capacity.rollout_processes import process_bytes, process_count


@pytest.mark.parametrize(
    ("wanted", "trajectories", "cpus", "expected"),
    [(None, 1000, 64, 1), (None, 1001, 64, 2), (None, 8192, 64, 9), (None, 8192, 4, 3), (None, 8192, 1, 1),
     (None, 8192, None, 9), (2, 10, 1, 2), (1, 8192, 64, 1)],
)  # fmt: skip
def test_process_count(wanted: int | None, trajectories: int, cpus: int | None, expected: int) -> None:
    """One per 1,000 concurrent trajectories, within the CPUs; the manifest decides otherwise."""
    assert process_count(wanted, trajectories=trajectories, cpus=cpus) == expected


def test_process_bytes_grow_with_the_trajectories() -> None:
    """A thousand trajectories of 8,000 tokens need more than those of `bench.rollout --only loop`, and below 1 GB."""
    assert 4.1e8 < process_bytes(1000, tokens=8000) < 1e9
    assert process_bytes(0, tokens=8000) == process_bytes(1000, tokens=0)
