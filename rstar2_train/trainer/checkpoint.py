"""Checkpoint folders: complete or absent, verified before use, and pruned.

A checkpoint is written into a hidden temporary folder, sealed with a manifest of sizes and SHA-256 hashes, fsynced, and
only then renamed to `step-000040`. Each directory has one writer: the current attempt of the stage. No torch: the
orchestrator searches for a checkpoint to resume from before any rank exists.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rstar2_train.api.contracts import StageFailed
from rstar2_train.utils.disk import DISK_FULL
from rstar2_train.utils.files import file_sha256, sync_to_disk
from rstar2_train.weights.adapter_folder import AdapterIdentity

MANIFEST = "manifest.json"
INDEX = ".metadata"
"""The file with the places of all tensors, which each rank reads."""
VERSION = 1
NAME = re.compile(r"step-(\d{6,})")
ASIDE = ".aside-"


class CheckpointInvalid(StageFailed):
    """A checkpoint is incomplete or damaged; the message names the file."""

    def __init__(self, message: str) -> None:
        super().__init__("BadData", message, retryable=False)


@dataclass(frozen=True, slots=True)
class CheckpointManifest:
    """The manifest of a checkpoint."""

    step: int
    extra: dict[str, Any]
    ranks: int
    files: dict[str, tuple[int, str]]
    """Size in bytes and SHA-256 of every other file in the folder."""
    adapter: AdapterIdentity | None = None
    """The adapter whose tensors and moments it has, and their base; None: those of the whole model."""


def checkpoint_path(directory: Path, step: int) -> Path:
    """Return the folder of the checkpoint after `step`."""
    return directory / f"step-{step:06d}"


def list_checkpoints(directory: Path) -> list[tuple[int, Path]]:
    """Return the complete checkpoints of a directory as (step, folder), oldest first. Does not verify their content."""
    if not directory.is_dir():
        return []
    checkpoints = []
    for path in directory.iterdir():
        match = NAME.fullmatch(path.name)
        if match and (path / MANIFEST).is_file():
            checkpoints.append((int(match[1]), path))
    return sorted(checkpoints)


def prune(directory: Path, *, keep_last: int, best: int | None = None) -> list[int]:
    """Delete all checkpoints except the last `keep_last` and that of step `best`, and all temporary folders.

    A checkpoint is renamed before it is deleted, so that a partly deleted one is never taken for complete.

    Returns:
        The steps of the deleted checkpoints.
    """
    if keep_last < 1:
        raise ValueError(f"keep_last must be at least 1, not {keep_last}")
    remove_asides(directory)
    old = [(step, path) for step, path in list_checkpoints(directory)[:-keep_last] if step != best]
    for _, path in old:
        remove(path)
    return [step for step, _ in old]


def remove(path: Path) -> None:
    """Delete a folder under another name, so that no reader finds it partly deleted."""
    aside = _aside(path)
    path.rename(aside)
    shutil.rmtree(aside)


def remove_asides(directory: Path) -> None:
    """Delete the temporary folders of killed writers."""
    if directory.is_dir():
        for path in directory.glob(f"{ASIDE}*"):
            shutil.rmtree(path)


@contextlib.contextmanager
def write_folder(target: Path, *, durable: bool) -> Iterator[Path]:
    """Yield a temporary folder; it becomes `target` when the block succeeds and is deleted when it raises.

    Args:
        target: the folder to create; an existing one is replaced.
        durable: fsync, so that the folder survives a crash of the machine; otherwise only of the process.

    Raises:
        StageFailed: StorageFull if disk or quota is full (not retryable); no files are left.
    """
    aside = _aside(target)
    try:
        aside.mkdir(parents=True)
        yield aside
        if durable:
            for path in (*aside.rglob("*"), aside):
                sync_to_disk(path)
        old = _aside(target) if target.exists() else None
        if old is not None:
            target.rename(old)
        aside.rename(target)
        if durable:
            sync_to_disk(target.parent)
        if old is not None:
            shutil.rmtree(old)
    except BaseException as error:
        shutil.rmtree(aside, ignore_errors=True)
        if is_full(error):
            raise StageFailed(
                "StorageFull",
                f"no space left to write {target}: free some space or lower spec.checkpoint.keepLast, then run again",
                retryable=False,
            ) from error
        raise


def is_full(error: BaseException | None) -> bool:
    """Return whether a full disk or quota caused an exception, also if a library wrapped it."""
    while error is not None:
        if (isinstance(error, OSError) and error.errno in DISK_FULL) or os.strerror(errno.ENOSPC) in str(error):
            return True
        error = getattr(error, "cause", None) or error.__cause__ or error.__context__
    return False


def write_manifest(folder: Path, manifest: CheckpointManifest) -> None:
    """Write the manifest, the last file of a checkpoint: a folder without it is incomplete."""
    content = {
        "version": VERSION,
        "step": manifest.step,
        "ranks": manifest.ranks,
        "extra": manifest.extra,
        "files": manifest.files,
    }
    if manifest.adapter is not None:
        content["adapter"] = manifest.adapter.to_json()
    (folder / MANIFEST).write_text(json.dumps(content, indent=1), encoding="utf-8")


def read_manifest(folder: Path, remote: Mapping[str, int] = MappingProxyType({})) -> CheckpointManifest:
    """Return the manifest after a comparison of the files' sizes with it.

    `remote`: sizes of files that are in a bucket, by name.

    Raises:
        CheckpointInvalid: names the file that is missing, or has another size.
        StageFailed: a program of another version wrote it.
    """
    path = folder / MANIFEST
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointInvalid(f"incomplete checkpoint {folder}: {path} is missing") from None
    except ValueError as error:
        raise CheckpointInvalid(f"{path} is damaged: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("version"), int):
        raise CheckpointInvalid(f"{path} is damaged: it has no version")
    if content["version"] != VERSION:  # no damage: nothing falls back to an older checkpoint, which deletes this one
        raise StageFailed(
            "BadData",
            f"{path} has version {content['version']}, and this program reads version {VERSION} only: use the image "
            "that wrote it",
            retryable=False,
        )
    for name, (size, _) in content["files"].items():
        file = folder / name
        actual = file.stat().st_size if file.is_file() else remote.get(name)
        if actual is None:
            raise CheckpointInvalid(f"incomplete checkpoint: {file} is missing")
        if actual != size:
            raise CheckpointInvalid(f"damaged checkpoint: {file} has {actual} bytes instead of {size}")
    return CheckpointManifest(
        step=content["step"],
        extra=content["extra"],
        ranks=content["ranks"],
        files={name: (size, digest) for name, (size, digest) in content["files"].items()},
        adapter=AdapterIdentity.from_json(content["adapter"]) if content.get("adapter") else None,
    )


def check_adapter(folder: Path, adapter: AdapterIdentity | None, *, loaded: AdapterIdentity | None) -> None:
    """Compare the adapter of a checkpoint with that of the ranks.

    Raises:
        StageFailed: if its tensors have another meaning: another base, rank, scale or target layers.
    """
    if adapter == loaded:
        return
    if adapter is None or loaded is None:
        kind, other = ("the whole model", "an adapter") if adapter is None else ("an adapter", "the whole model")
        difference = f"it has {kind}, and the stage trains {other}"
    else:
        fields = [(name, getattr(adapter, name), getattr(loaded, name)) for name in ("rank", "alpha", "modules")]
        changed = [f"{name} {before}, now {now}" for name, before, now in fields if before != now]
        if adapter.base != loaded.base:
            changed.append(f"the base with SHA-256 {adapter.base}, now {loaded.base}")
        difference = f"it was trained with {'; '.join(changed)}"
    raise StageFailed(
        "BadConfiguration",
        f"{folder} is not a checkpoint of this stage: {difference}. Restore the earlier value of lora and the model "
        "folder that the stage started from, or give the stage another name to train it again",
        retryable=False,
    )


def find_damage(folder: Path, manifest: CheckpointManifest, names: Iterable[str]) -> str | None:
    """Return the first of some files whose content differs from the manifest, as a message, or None."""
    for name in names:
        if file_sha256(folder / name) != manifest.files[name][1]:
            return f"damaged checkpoint: the SHA-256 of {folder / name} differs from the manifest"
    return None


def verify(folder: Path) -> CheckpointManifest:
    """Return the manifest after a comparison of sizes and content of every file with it.

    Raises:
        CheckpointInvalid: names the file that is missing, or has another size or content.
    """
    manifest = read_manifest(folder)
    damage = find_damage(folder, manifest, sorted(manifest.files))
    if damage is not None:
        raise CheckpointInvalid(damage)
    return manifest


def _aside(target: Path) -> Path:
    return target.with_name(f"{ASIDE}{target.name}-{uuid.uuid4().hex[:12]}")
