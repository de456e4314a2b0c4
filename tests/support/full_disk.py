"""A small file system that a test can fill."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(folder: Path, *, mebibytes: int) -> Iterator[Path]:
    """Mount a tmpfs of a size at `folder` and unmount it at the end; skip the test if mounts are not allowed."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(folder)]
    mount = subprocess.run(command, capture_output=True, text=True, check=False)
    if mount.returncode:
        pytest.skip(f"cannot mount a tmpfs: {mount.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def remount(folder: Path, options: str) -> None:
    """Change the options of a small disk, such as its size."""
    subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Write a file until no byte is free; return it."""
    filler = folder / "filler"
    with contextlib.suppress(OSError), filler.open("ab") as file:
        while True:
            file.write(bytes(4096))
            file.flush()
    return filler
