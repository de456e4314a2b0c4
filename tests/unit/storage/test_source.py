"""A source is that of the first download, on each disk."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rstar2_train.storage.folder import LocalFolder
from rstar2_train.storage.source import fetch_source
from rstar2_train.storage.store import StorageRejected


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
