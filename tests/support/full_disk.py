"""A small file system for a test, which can be filled."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, *, mebibytes: int) -> Iterator[Path]:
    """Mounts one at `folder` and takes it off at the end; skips where that is not allowed."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(folder)]
    mount = subprocess.run(command, capture_output=True, text=True, check=False)
    if mount.returncode:
        pytest.skip(f"no small file system can be mounted here: {mount.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)
