"""A source is that of the first download, on each disk."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rstar2_train.storage.folder import LocalFolder
from rstar2_train.storage.source import fetch_source
from rstar2_train.storage.store import CorruptObject, StorageRejected


def test_source_changed_object_is_refused_with_the_remedy(tmp_path: Path) -> None:
    """A pod on an empty disk has only the digests of the first download; with other content it names both remedies."""
    store = LocalFolder(tmp_path / "bucket")
    etag = store.put_if_absent("sft/v1.jsonl", b"first")
    fetch_source(store, "sft/v1.jsonl", tmp_path / "first", is_plain=False)

    def late(name: str) -> Path:
        """Download the source to the disk of a later pod."""
        folder = tmp_path / name
        folder.mkdir()
        for record in (tmp_path / "first").glob(".rstar2-source-*"):
            shutil.copy(record, folder)
        fetch_source(store, "sft/v1.jsonl", folder, is_plain=False)
        return folder

    assert (late("second") / "sft/v1.jsonl").read_bytes() == b"first"
    etag = store.put_if_unchanged("sft/v1.jsonl", b"other", etag)
    with pytest.raises(StorageRejected, match="write it back under this name, or create the job again with another"):
        late("third")
    store.put_if_unchanged("sft/v1.jsonl", b"first", etag)
    assert (late("fourth") / "sft/v1.jsonl").read_bytes() == b"first"


def test_source_folder_has_the_files_of_the_bucket_alone(tmp_path: Path) -> None:
    """A file of a torn download or of other origin leaves the folder; one of another source below it stays."""
    store = LocalFolder(tmp_path / "bucket")
    for name in ("m/config.json", "m/part/a", "other"):
        store.put_if_absent(name, b"1")
    cache = tmp_path / "cache"
    (cache / "m").mkdir(parents=True)
    (cache / "m" / "adapter_config.json").write_text("torn")
    for _ in range(2):
        for key in ("m/part", "m", "other"):
            fetch_source(store, key, cache, is_plain=False)
        assert sorted(path.name for path in (cache / "m").rglob("*")) == ["a", "config.json", "part"]
        (cache / "m" / "adapter_config.json").write_text("of other origin")


def test_source_sums_without_a_file_are_refused(tmp_path: Path) -> None:
    """An empty SHA256SUMS is no list of files: a folder without them would count as complete."""
    store = LocalFolder(tmp_path / "bucket")
    store.put_if_absent("m/config.json", b"1")
    store.put_if_absent("m/SHA256SUMS", b"")
    with pytest.raises(CorruptObject, match="m/SHA256SUMS names no file"):
        fetch_source(store, "m", tmp_path / "cache", is_plain=False)
