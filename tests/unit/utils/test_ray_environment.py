"""The size of Ray's object store."""

from __future__ import annotations

from pathlib import Path

from rstar2_train.utils.ray_environment import MAX_STORE_BYTES, MIN_STORE_BYTES, store_bytes


def test_store_bytes_is_within_bounds(tmp_path: Path) -> None:
    """Half of the shared memory, at least 80 MB and at most 8 GiB."""
    assert MIN_STORE_BYTES <= store_bytes(tmp_path) <= MAX_STORE_BYTES
