"""Checkpoint folders without a trainer: complete or absent, rejected if damaged, pruned."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from rstar2_train.api.contracts import StageFailed
from rstar2_train.trainer import checkpoint
from rstar2_train.trainer.checkpoint import CheckpointInvalid, CheckpointManifest, checkpoint_path, verify, write_folder
from rstar2_train.trainer.sharded_state import file_digest


def write(directory: Path, step: int, content: bytes = b"weights") -> Path:
    """Write a small complete checkpoint."""
    target = checkpoint_path(directory, step)
    with write_folder(target, durable=True) as folder:
        (folder / "part").write_bytes(content)
        files = {"part": file_digest(folder / "part")}
        checkpoint.write_manifest(
            folder, CheckpointManifest(step=step, extra={"cursor": [3, "x"]}, ranks=1, files=files)
        )
    return target


def test_verify_returns_the_written_manifest(tmp_path: Path) -> None:
    """The manifest of a complete checkpoint is read back."""
    manifest = verify(write(tmp_path, 40))
    assert (manifest.step, manifest.extra, manifest.ranks) == (40, {"cursor": [3, "x"]}, 1)


def test_write_folder_replaces_the_same_step(tmp_path: Path) -> None:
    """A second checkpoint of a step replaces the first one."""
    write(tmp_path, 1, b"old")
    assert (write(tmp_path, 1, b"new") / "part").read_bytes() == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001"]


def test_list_checkpoints_ignores_incomplete_ones(tmp_path: Path) -> None:
    """Folders without a manifest and temporary folders are no checkpoints."""
    assert checkpoint.list_checkpoints(tmp_path / "none") == []
    assert checkpoint.list_checkpoints(tmp_path) == []
    for step in (5, 1_000_000, 10):
        write(tmp_path, step)
    (tmp_path / "step-000020").mkdir()  # no manifest
    (tmp_path / ".aside-step-000030-abc").mkdir()
    (tmp_path / "notes").mkdir()
    expected = [(step, checkpoint_path(tmp_path, step)) for step in (5, 10, 1_000_000)]
    assert checkpoint.list_checkpoints(tmp_path) == expected


def test_prune_keeps_the_last_and_the_best(tmp_path: Path) -> None:
    """Pruning also deletes temporary folders, and needs a positive keep_last."""
    for step in range(1, 7):
        write(tmp_path, step)
    stale = tmp_path / ".aside-step-000009-abc"
    stale.mkdir()
    (stale / "half").write_text("x")
    assert checkpoint.prune(tmp_path, keep_last=2, best=2) == [1, 3, 4]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000002", "step-000005", "step-000006"]
    with pytest.raises(ValueError, match="keep_last"):
        checkpoint.prune(tmp_path, keep_last=0)


def test_verify_missing_file_is_named(tmp_path: Path) -> None:
    """The error names the missing file."""
    folder = write(tmp_path, 1)
    (folder / "part").unlink()
    with pytest.raises(CheckpointInvalid, match=r"step-000001/part is missing"):
        verify(folder)


def test_verify_truncated_file_is_named(tmp_path: Path) -> None:
    """The error names the file and both sizes."""
    folder = write(tmp_path, 1)
    (folder / "part").write_bytes(b"weigh")
    with pytest.raises(CheckpointInvalid, match=r"step-000001/part has 5 bytes instead of 7"):
        verify(folder)


def test_verify_changed_content_is_named(tmp_path: Path) -> None:
    """The error names the file whose hash differs."""
    folder = write(tmp_path, 1)
    (folder / "part").write_bytes(b"weightr")
    with pytest.raises(CheckpointInvalid, match=r"SHA-256 of .*step-000001/part"):
        verify(folder)


@pytest.mark.parametrize("text", [None, "{", "[]", "{}", '{"version": null}'])
def test_verify_invalid_manifest_is_named(tmp_path: Path, text: str | None) -> None:
    """A missing, damaged or foreign manifest is rejected with its name."""
    folder = write(tmp_path, 1)
    if text is None:
        (folder / checkpoint.MANIFEST).unlink()
    else:
        (folder / checkpoint.MANIFEST).write_text(text)
    with pytest.raises(CheckpointInvalid, match=r"step-000001/manifest\.json"):
        verify(folder)


def test_verify_other_version_is_no_damage(tmp_path: Path) -> None:
    """An older program does not take the checkpoint of a newer one for damaged: it would fall back and delete it."""
    folder = write(tmp_path, 1)
    (folder / checkpoint.MANIFEST).write_text('{"version": 99}')
    with pytest.raises(StageFailed, match="has version 99, and this program reads version 1 only") as failure:
        verify(folder)
    assert not isinstance(failure.value, CheckpointInvalid) and failure.value.reason == "BadData"


def test_write_folder_error_leaves_no_files(tmp_path: Path) -> None:
    """An error in the block deletes the temporary folder."""
    target = checkpoint_path(tmp_path, 1)
    with pytest.raises(KeyError), write_folder(target, durable=True) as folder:
        (folder / "half").write_text("x")
        raise KeyError("defect")
    assert list(tmp_path.iterdir()) == []


def test_write_folder_error_keeps_the_existing_one(tmp_path: Path) -> None:
    """An error in the block keeps the existing checkpoint of that step."""
    target = write(tmp_path, 1, b"old")
    with pytest.raises(KeyError), write_folder(target, durable=True):
        raise KeyError("defect")
    assert (target / "part").read_bytes() == b"old"
    assert verify(target).step == 1


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_write_folder_full_disk_is_not_retryable(tmp_path: Path, number: int) -> None:
    """A full disk or quota is a StorageFull failure, also if a library wrapped the error."""
    with pytest.raises(StageFailed) as caught, write_folder(checkpoint_path(tmp_path, 1), durable=True):
        try:
            raise OSError(number, "full")
        except OSError as error:
            raise RuntimeError("a library wrapped it") from error
    assert caught.value.reason == "StorageFull"
    assert not caught.value.retryable
    assert list(tmp_path.iterdir()) == []
