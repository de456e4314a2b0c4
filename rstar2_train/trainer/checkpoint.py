"""Checkpoint folders: complete or absent, verified before use, pruned, never left half-written.

A checkpoint is written into a hidden folder aside, sealed with a manifest of sizes and SHA-256 hashes, fsynced, and
only then renamed to `step-000040`. One writer a directory: the current attempt of the stage. No torch: the drivers use
this to look for something to resume from before any rank exists.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rstar2_train.api.contracts import StageFailed
from rstar2_train.utils.files import DISK_FULL

MANIFEST = "manifest.json"
VERSION = 1
NAME = re.compile(r"step-(\d{6,})")
ASIDE = ".aside-"


class CheckpointInvalid(StageFailed):
    """A checkpoint is incomplete or damaged; the message names the file."""

    def __init__(self, message: str) -> None:
        super().__init__("BadData", message, retryable=False)


@dataclass(frozen=True, slots=True)
class CheckpointManifest:
    """What a checkpoint says of itself."""

    step: int
    extra: dict[str, Any]
    ranks: int
    files: dict[str, tuple[int, str]]
    """Size and SHA-256 of every other file in the folder."""


def checkpoint_path(directory: Path, step: int) -> Path:
    """Where the checkpoint after `step` belongs."""
    return directory / f"step-{step:06d}"


def list_checkpoints(directory: Path) -> list[tuple[int, Path]]:
    """Complete checkpoints of a directory as (step, folder), oldest first. Reads no contents: `verify` does."""
    if not directory.is_dir():
        return []
    found = []
    for path in directory.iterdir():
        match = NAME.fullmatch(path.name)
        if match and (path / MANIFEST).is_file():
            found.append((int(match[1]), path))
    return sorted(found)


def latest(directory: Path) -> Path | None:
    """The newest complete checkpoint, or None."""
    found = list_checkpoints(directory)
    return found[-1][1] if found else None


def prune(directory: Path, *, keep_last: int, best: int | None = None) -> list[int]:
    """Delete all but the last `keep_last` checkpoints and the one of step `best`, and all stale asides.

    A checkpoint is renamed aside before it is deleted, so that one half deleted is never taken for complete.

    Returns:
        The steps deleted.
    """
    if keep_last < 1:
        raise ValueError(f"keep_last must be at least 1, not {keep_last}")
    remove_asides(directory)
    doomed = [(step, path) for step, path in list_checkpoints(directory)[:-keep_last] if step != best]
    for _, path in doomed:
        remove(path)
    return [step for step, _ in doomed]


def remove(path: Path) -> None:
    """Delete a folder so that it is never seen half deleted."""
    aside = _aside(path)
    path.rename(aside)
    shutil.rmtree(aside)


def remove_asides(directory: Path) -> None:
    """Delete what a writer that was killed left behind."""
    if directory.is_dir():
        for path in directory.glob(f"{ASIDE}*"):
            shutil.rmtree(path)


@contextlib.contextmanager
def write_folder(target: Path, *, durable: bool) -> Iterator[Path]:
    """Give a folder to fill; it becomes `target` when the block ends well and vanishes when it does not.

    Args:
        target: the folder to make; one that is already there is replaced.
        durable: fsync, so that it also survives the machine. Without it, it survives the process only.

    Raises:
        StageFailed: StorageFull when disk or quota is full (a person must free space); nothing is left behind.
    """
    aside = _aside(target)
    try:
        aside.mkdir(parents=True)
        yield aside
        if durable:
            for path in (*aside.rglob("*"), aside):
                _fsync(path)
        if target.exists():
            remove(target)
        aside.rename(target)
        if durable:
            _fsync(target.parent)
    except BaseException as error:
        shutil.rmtree(aside, ignore_errors=True)
        if is_full(error):
            raise StageFailed(
                "StorageFull",
                f"no space left to write {target}: free some (or lower spec.checkpoint.keepLast), then run again",
                retryable=False,
            ) from error
        raise


def is_full(error: BaseException | None) -> bool:
    """Whether a full disk or quota is behind an exception, however libraries have wrapped it."""
    while error is not None:
        if (isinstance(error, OSError) and error.errno in DISK_FULL) or os.strerror(errno.ENOSPC) in str(error):
            return True
        error = getattr(error, "cause", None) or error.__cause__ or error.__context__
    return False


def write_manifest(folder: Path, manifest: CheckpointManifest) -> None:
    """Seal a folder aside. The last file written: a folder without it is no checkpoint."""
    content = {
        "version": VERSION,
        "step": manifest.step,
        "ranks": manifest.ranks,
        "extra": manifest.extra,
        "files": manifest.files,
    }
    (folder / MANIFEST).write_text(json.dumps(content, indent=1), encoding="utf-8")


def verify(folder: Path) -> CheckpointManifest:
    """Read the manifest and hold every file against it.

    Raises:
        CheckpointInvalid: names the file that is missing, of another size, or of other content.
    """
    path = folder / MANIFEST
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointInvalid(f"{folder} is no complete checkpoint: {path} is missing") from None
    except ValueError as error:
        raise CheckpointInvalid(f"{path} is damaged: {error}") from error
    if not isinstance(content, dict) or content.get("version") != VERSION:
        raise CheckpointInvalid(f"{path} is not of version {VERSION}: this program cannot read it")
    for name, (size, digest) in content["files"].items():
        file = folder / name
        if not file.is_file():
            raise CheckpointInvalid(f"incomplete checkpoint: {file} is missing")
        if file.stat().st_size != size:
            raise CheckpointInvalid(f"damaged checkpoint: {file} has {file.stat().st_size} bytes, not {size}")
        with file.open("rb") as opened:
            if hashlib.file_digest(opened, "sha256").hexdigest() != digest:
                raise CheckpointInvalid(f"damaged checkpoint: the content of {file} is not what was written")
    return CheckpointManifest(
        step=content["step"],
        extra=content["extra"],
        ranks=content["ranks"],
        files={name: (size, digest) for name, (size, digest) in content["files"].items()},
    )


def _aside(target: Path) -> Path:
    return target.with_name(f"{ASIDE}{target.name}-{uuid.uuid4().hex[:12]}")


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
