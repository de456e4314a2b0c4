"""Checkpoint folders without a trainer: complete or absent, refused when damaged, pruned."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from rstar2_train.api.contracts import StageFailed
from rstar2_train.trainer import checkpoint
from rstar2_train.trainer.checkpoint import CheckpointInvalid, CheckpointManifest, checkpoint_path, verify, write_folder
from rstar2_train.trainer.sharded_state import seal


def write(directory: Path, step: int, content: bytes = b"weights") -> Path:
    """A small complete checkpoint."""
    target = checkpoint_path(directory, step)
    with write_folder(target, durable=True) as folder:
        (folder / "part").write_bytes(content)
        files = {"part": seal(folder / "part")}
        checkpoint.write_manifest(
            folder, CheckpointManifest(step=step, extra={"cursor": [3, "x"]}, ranks=1, files=files)
        )
    return target


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    manifest = verify(write(tmp_path, 40))
    assert (manifest.step, manifest.extra, manifest.ranks) == (40, {"cursor": [3, "x"]}, 1)


def test_a_checkpoint_of_the_same_step_is_replaced(tmp_path: Path) -> None:
    write(tmp_path, 1, b"old")
    assert (write(tmp_path, 1, b"new") / "part").read_bytes() == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001"]


def test_list_and_latest_see_complete_ones_only(tmp_path: Path) -> None:
    assert checkpoint.latest(tmp_path / "none") is None
    assert checkpoint.latest(tmp_path) is None
    for step in (5, 1_000_000, 10):
        write(tmp_path, step)
    (tmp_path / "step-000020").mkdir()  # no manifest
    (tmp_path / ".aside-step-000030-abc").mkdir()
    (tmp_path / "notes").mkdir()
    assert [step for step, _ in checkpoint.list_checkpoints(tmp_path)] == [5, 10, 1_000_000]
    assert checkpoint.latest(tmp_path) == checkpoint_path(tmp_path, 1_000_000)


def test_prune_keeps_the_last_and_the_best_and_clears_asides(tmp_path: Path) -> None:
    for step in range(1, 7):
        write(tmp_path, step)
    stale = tmp_path / ".aside-step-000009-abc"
    stale.mkdir()
    (stale / "half").write_text("x")
    assert checkpoint.prune(tmp_path, keep_last=2, best=2) == [1, 3, 4]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000002", "step-000005", "step-000006"]
    with pytest.raises(ValueError, match="keep_last"):
        checkpoint.prune(tmp_path, keep_last=0)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path, 1)
    (folder / "part").unlink()
    with pytest.raises(CheckpointInvalid, match=r"step-000001/part is missing"):
        verify(folder)


def test_a_short_file_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path, 1)
    (folder / "part").write_bytes(b"weigh")
    with pytest.raises(CheckpointInvalid, match=r"step-000001/part has 5 bytes, not 7"):
        verify(folder)


def test_a_flipped_bit_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path, 1)
    (folder / "part").write_bytes(b"weightr")
    with pytest.raises(CheckpointInvalid, match=r"content of .*step-000001/part"):
        verify(folder)


@pytest.mark.parametrize("text", [None, "{", "[]", '{"version": 99}'])
def test_a_bad_manifest_is_named(tmp_path: Path, text: str | None) -> None:
    folder = write(tmp_path, 1)
    if text is None:
        (folder / checkpoint.MANIFEST).unlink()
    else:
        (folder / checkpoint.MANIFEST).write_text(text)
    with pytest.raises(CheckpointInvalid, match=r"step-000001/manifest\.json"):
        verify(folder)


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    target = checkpoint_path(tmp_path, 1)
    with pytest.raises(KeyError), write_folder(target, durable=True) as folder:
        (folder / "half").write_text("x")
        raise KeyError("defect")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_older_one_of_that_step(tmp_path: Path) -> None:
    target = write(tmp_path, 1, b"old")
    with pytest.raises(KeyError), write_folder(target, durable=True):
        raise KeyError("defect")
    assert (target / "part").read_bytes() == b"old"
    assert verify(target).step == 1


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_a_failure_that_waits_for_a_person(tmp_path: Path, number: int) -> None:
    with pytest.raises(StageFailed) as caught, write_folder(checkpoint_path(tmp_path, 1), durable=True):
        try:
            raise OSError(number, "full")
        except OSError as error:
            raise RuntimeError("a library wrapped it") from error
    assert caught.value.reason == "StorageFull"
    assert not caught.value.retryable
    assert list(tmp_path.iterdir()) == []
