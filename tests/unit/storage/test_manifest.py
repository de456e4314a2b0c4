"""Hostile and damaged documents of publications are refused by name, and nothing is written outside the cache."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from rstar2_train.storage.folder import LocalFolder
from rstar2_train.storage.manifest import (
    INDEX,
    IndexEntry,
    PublicationIndex,
    PublicationManifest,
    PublishedObject,
    seal,
    unseal,
)
from rstar2_train.storage.publication import PublicationWriter
from rstar2_train.storage.store import CorruptObject
from rstar2_train.storage.verified_read import fetch, read_index, read_manifest

WRITER = "a" * 32
HOME = f"1-{WRITER}"
DIGEST = "0" * 64


def sealed(**document: Any) -> bytes:
    """Return a document that a hostile writer has sealed correctly."""
    body = json.dumps(document).encode()
    return body + b"\nsha256:" + hashlib.sha256(body).hexdigest().encode() + b"\n"


def manifest(**changes: Any) -> dict[str, Any]:
    """Return the fields of a manifest with one object of one block."""
    objects = [{"name": "a.bin", "size": 3, "sha256": [hashlib.sha256(b"abc").hexdigest()], "home": HOME}]
    return {"version": 1, "publication": "step-1", "attempt": 1, "writer": WRITER, "objects": objects} | changes


def objects(*names: str, size: int = 3, digests: int = 1) -> dict[str, Any]:
    entries = [{"name": name, "size": size, "sha256": [DIGEST] * digests, "home": HOME} for name in names]
    return manifest(objects=entries)


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (objects("../outside"), "'../outside' is not a valid name"),
        (objects("/etc/passwd"), "'/etc/passwd' is not a valid name"),
        (objects("a/../../b"), "is not a valid name"),
        (objects("a\\..\\b"), "is not a valid name"),
        (objects("a", "a"), "two objects have the same name"),
        (objects("a", "a/b"), "'a' is an object and a folder of others"),
        (objects("a", size=2**25), "2 digests, not 1"),
        (objects("a", size=3, digests=0), "1 digests, not 0"),
        (objects("a", size=-1), "objects.0.size"),
        (objects("a", size=3.5), "objects.0.size"),  # type: ignore[arg-type]
        (manifest(objects=[{"name": "a", "size": 0, "sha256": ["xyz"], "home": HOME}]), "objects.0.sha256.0"),
        (manifest(objects=[{"name": "a", "size": 0, "sha256": [], "home": HOME, "url": "http://o"}]), "objects.0.url"),
        (manifest(objects=[{"name": "a", "size": 0, "sha256": [], "home": "1-../.."}]), "objects.0.home"),
        (manifest(writer="../../other"), "writer"),
        (manifest(publication="../x"), "publication"),
        (manifest(attempt=-1), "attempt"),
        (manifest(version=2), "version"),
        ({}, "publication"),
    ],
)
def test_manifest_hostile_content_is_refused(document: dict[str, Any], reason: str) -> None:
    """Each rule of the form is checked before any object is read; the message names the file and the rule."""
    with pytest.raises(CorruptObject, match=r"s3://b/manifest\.json|is not a valid name") as caught:
        unseal(sealed(**document), PublicationManifest, "s3://b/manifest.json")
    assert reason in str(caught.value)


def test_manifest_million_entries_is_refused() -> None:
    """10^6 entries are refused by their size, before they are parsed; fewer of them by their number."""
    entry = b'{"name": "a", "size": 0, "sha256": []},'
    for count, reason in ((1_000_000, "bytes; allowed"), (10_001, "objects: List should have at most 10000 items")):
        body = b'{"publication": "step-1", "attempt": 1, "writer": "aaaaaaaa", "objects": [' + entry * count
        body = body[:-1] + b"]}"
        with pytest.raises(CorruptObject, match=reason):
            unseal(body + b"\nsha256:" + hashlib.sha256(body).hexdigest().encode(), PublicationManifest, "m")


@pytest.mark.parametrize("position", [0, 20, -70, -2])
def test_manifest_flipped_bit_is_refused(position: int) -> None:
    """A damaged document is never read as another valid one."""
    body = bytearray(seal(PublicationIndex(attempt=3, writer=WRITER)))
    body[position] ^= 1
    with pytest.raises(CorruptObject, match="contradicts its own SHA-256"):
        unseal(bytes(body), PublicationIndex, "i")


def test_manifest_cut_off_document_is_refused() -> None:
    """No prefix of a document is a document."""
    body = seal(PublicationManifest(publication="a", attempt=1, writer=WRITER, objects=[]))
    for end in range(len(body) - 1):
        with pytest.raises(CorruptObject):
            unseal(body[:end], PublicationManifest, "m")


def written(tmp_path: Path) -> tuple[LocalFolder, IndexEntry]:
    store = LocalFolder(tmp_path / "objects")
    (tmp_path / "a.bin").write_bytes(b"abc")
    return store, PublicationWriter(store, 1).publish("step-1", {"sub/a.bin": tmp_path / "a.bin"})


def test_manifest_that_was_replaced_is_refused(tmp_path: Path) -> None:
    """The index has the digest of each manifest: another valid manifest under the same name is refused."""
    store, entry = written(tmp_path)
    path = tmp_path / "objects" / entry.manifest
    other = PublicationManifest.model_validate(manifest(writer=entry.writer))
    path.write_bytes(seal(other))
    with pytest.raises(CorruptObject, match="the SHA-256 is not the one in the index"):
        read_manifest(store, entry)


def test_manifest_of_another_publication_is_refused(tmp_path: Path) -> None:
    """An index cannot lead to the objects of another prefix."""
    store, entry = written(tmp_path)
    body = seal(PublicationManifest.model_validate(manifest(writer="b" * 32)))
    (tmp_path / "objects" / entry.manifest).write_bytes(body)
    hostile = entry.model_copy(update={"sha256": hashlib.sha256(body).hexdigest()})
    with pytest.raises(CorruptObject, match="is the manifest of step-1 of attempt 1"):
        read_manifest(store, hostile)


@pytest.mark.parametrize("content", [b"abd", b"ab", b"abcd", b""])
def test_fetch_object_with_another_content_is_refused(content: bytes, tmp_path: Path) -> None:
    """An object of another hash or size is refused by name; the cache stays without the file."""
    store, entry = written(tmp_path)
    path = tmp_path / "objects" / read_manifest(store, entry).objects[0].key
    path.write_bytes(content)
    with pytest.raises(CorruptObject, match=r"sub/a\.bin\)(: block 0 contradicts| has \d bytes, in its manifest 3)"):
        fetch(store, read_manifest(store, entry).objects, tmp_path / "cache")
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []


def test_fetch_through_a_symbolic_link_is_refused(tmp_path: Path) -> None:
    """A link in the cache does not lead out of it."""
    store, entry = written(tmp_path)
    (tmp_path / "outside").mkdir()
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/sub").symlink_to(tmp_path / "outside")
    with pytest.raises(CorruptObject, match="symbolic link"):
        fetch(store, read_manifest(store, entry).objects, tmp_path / "cache")
    assert list((tmp_path / "outside").iterdir()) == []


def test_index_that_is_damaged_is_not_an_empty_one(tmp_path: Path) -> None:
    """A damaged index never counts as `nothing was published`: the next attempt would start over."""
    store, _ = written(tmp_path)
    (tmp_path / "objects" / INDEX).write_bytes(b"")
    with pytest.raises(CorruptObject, match=r"index\.json"):
        read_index(store)
    with pytest.raises(CorruptObject):
        PublicationWriter(store, 2).claim()


def test_record_sizes_agree_with_digests() -> None:
    """An empty object has no digest."""
    record = PublishedObject(name="a", size=0, sha256=[], home=HOME)
    document = PublicationManifest(publication="a", attempt=0, writer=WRITER, objects=[record])
    assert unseal(seal(document), PublicationManifest, "m") == document
