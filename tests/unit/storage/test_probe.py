"""The conditions of writes, without which two writers would replace each other's objects."""

from __future__ import annotations

from pathlib import Path

import pytest

from rstar2_train.storage.folder import LocalFolder
from rstar2_train.storage.probe import probe, require_conditions
from rstar2_train.storage.store import ObjectExists, StorageRejected


class UnconditionalStore(LocalFolder):
    """A server that ignores conditions of writes."""

    ignored = ""

    def put_if_absent(self, name: str, body: bytes) -> str:
        if self.ignored == "absent":
            self.delete(name)
        return super().put_if_absent(name, body)

    def put_if_unchanged(self, name: str, body: bytes, etag: str) -> str:
        if self.ignored == "unchanged":
            etag = self.stat(name).etag
        return super().put_if_unchanged(name, body, etag)


@pytest.mark.parametrize(("ignored", "header"), [("absent", "If-None-Match"), ("unchanged", "If-Match")])
def test_server_that_ignores_conditions_is_refused(tmp_path: Path, ignored: str, header: str) -> None:
    """A start refuses it by name and leaves no object."""
    store = UnconditionalStore(tmp_path / "bucket")
    require_conditions(store)
    store.ignored = ignored
    with pytest.raises(StorageRejected, match=f"the server ignores {header}: .*: use a server with conditional"):
        require_conditions(store)
    assert list(store.list()) == []


class MarkingStore(LocalFolder):
    """A server that takes the marks of deleted objects for objects."""

    deleted: frozenset[str] = frozenset()

    def delete(self, name: str) -> None:
        super().delete(name)
        self.deleted |= {name}

    def put_if_absent(self, name: str, body: bytes) -> str:
        if name in self.deleted:
            raise ObjectExists(name)
        return super().put_if_absent(name, body)


def test_marks_of_deleted_objects_are_refused(tmp_path: Path) -> None:
    """Such a bucket with versions takes no second job of a name: VersityGW 1.8 has them."""
    with pytest.raises(StorageRejected, match="a deleted object counts as existing: use a bucket without versions"):
        require_conditions(MarkingStore(tmp_path / "start"))
    assert all(error == "" for _, error in probe(LocalFolder(tmp_path / "good")))
    operation, error = probe(MarkingStore(tmp_path / "bucket"))[-1]
    assert operation == "delete" and "use a bucket without versions" in error
