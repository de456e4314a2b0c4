"""Reads publications: index, manifest, then blocks, each compared with its digest before a byte of it is used.

A damaged body is read again, because the line may have damaged it. An object that stays damaged is an error.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from rstar2_train.storage.manifest import (
    BLOCK_BYTES,
    INDEX,
    MAX_DOCUMENT_BYTES,
    IndexEntry,
    ObjectRecord,
    PublicationIndex,
    PublicationManifest,
    PublishedObject,
    RemoteFile,
    unseal,
)
from rstar2_train.storage.retries import Result
from rstar2_train.storage.store import CorruptObject, ObjectMissing, ObjectStore
from rstar2_train.utils.disk import named_disk, require_space

READS = 6
"""Reads of a damaged body before it counts as damaged in the store."""
PARALLEL_READS = 8
Stored = PublishedObject | RemoteFile
"""A file whose content is an object."""


def read_index(store: ObjectStore) -> tuple[PublicationIndex, str]:
    """Return the index and its ETag; an empty index of attempt 0 and an empty ETag if nothing was ever published."""

    def read() -> tuple[PublicationIndex, str]:
        content = store.read(INDEX, limit=MAX_DOCUMENT_BYTES)
        return unseal(content.body, PublicationIndex, f"{store.address}/{INDEX}"), content.etag

    try:
        return _repeated(read)
    except ObjectMissing:
        return PublicationIndex(attempt=0, writer="0" * 32), ""


def read_manifest(store: ObjectStore, entry: IndexEntry) -> PublicationManifest:
    """Return the manifest of a publication. Raises CorruptObject if it is not the one that was published."""
    name = f"{store.address}/{entry.manifest}"

    def read() -> PublicationManifest:
        body = store.read(entry.manifest, limit=MAX_DOCUMENT_BYTES).body
        if hashlib.sha256(body).hexdigest() != entry.sha256:
            raise CorruptObject(f"{name}: the SHA-256 is not the one in the index")
        return unseal(body, PublicationManifest, name)

    manifest = _repeated(read)
    if (manifest.publication, manifest.attempt, manifest.writer) != (entry.name, entry.attempt, entry.writer):
        raise CorruptObject(f"{name} is the manifest of {manifest.publication} of attempt {manifest.attempt}")
    return manifest


def read_range(store: ObjectStore, record: Stored, start: int, end: int) -> bytes:
    """Return the verified bytes from `start` to before `end` of an object. Raises ValueError for a wrong range."""
    if not 0 <= start <= end <= record.size:
        raise ValueError(f"{record.name} has {record.size} bytes, no range {start} to {end}")
    first, last = start // BLOCK_BYTES, -(-end // BLOCK_BYTES)
    read = [_block(store, record, number) for number in range(first, last)]
    return b"".join(read)[start - first * BLOCK_BYTES : end - first * BLOCK_BYTES]


def fetch(store: ObjectStore, objects: Sequence[Stored], folder: Path) -> int:
    """Write the files of objects into a folder, by parallel reads of blocks; return the bytes that were read.

    A file with the right content is kept, so a fetch that was interrupted resumes. A file gets its name when it is
    complete. Nothing outside `folder` is written. Raises CorruptObject, ObjectMissing, OSError: DiskRefused before the
    first download if the files do not fit on the disk.
    """
    root, moved = folder.resolve(), 0
    numbers = [_numbers(record) for record in objects]
    sizes = [min(len(blocks) * BLOCK_BYTES, record.size) for record, blocks in zip(objects, numbers, strict=True)]
    require_space(root, {record.name: size for record, size in zip(objects, sizes, strict=True)})
    with named_disk(root), ThreadPoolExecutor(PARALLEL_READS) as pool:
        for record, blocks, size in zip(objects, numbers, sizes, strict=True):
            path = path_within(root, record.name)
            if not has_content(path, record):
                write_blocks(path, in_order(pool, partial(_block, store, record), blocks), blocks, size=record.size)
                moved += size
    return moved


def _numbers(record: Stored) -> Sequence[int]:
    """Return the numbers of the blocks to read."""
    some = record.blocks if isinstance(record, RemoteFile) else None
    return range(len(record.sha256)) if some is None else some


def has_content(path: Path, record: ObjectRecord) -> bool:
    """Return whether a file has the size and the digests of an object."""
    if not path.is_file() or path.stat().st_size != record.size:
        return False
    with path.open("rb") as file:
        return all(hashlib.sha256(file.read(BLOCK_BYTES)).hexdigest() == digest for digest in record.sha256)


def has_contents(folder: Path, records: Iterable[ObjectRecord]) -> bool:
    """Return whether a folder has the file of each object, with its content."""
    return all(has_content(folder / record.name, record) for record in records)


def path_within(folder: Path, name: str) -> Path:
    """Return the path of an object's file. Raises CorruptObject if a symbolic link leads out of the folder."""
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise CorruptObject(f"{name!r} leads out of {folder} by a symbolic link")
    return path


def in_order(pool: ThreadPoolExecutor, read: Callable[[int], bytes], numbers: Sequence[int]) -> Iterator[bytes]:
    """Yield blocks in order; at most 2 * PARALLEL_READS are in memory. `read`: returns a block by number."""
    for first in range(0, len(numbers), PARALLEL_READS):
        yield from pool.map(read, numbers[first : first + PARALLEL_READS])


def write_blocks(path: Path, blocks: Iterable[bytes], numbers: Sequence[int], *, size: int) -> None:
    """Write blocks of a file, which gets its name and its size when they are on the disk. `numbers`: their places."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)  # of a killed process, or a link that leads out of the folder
    try:
        with temporary.open("xb") as file:
            for number, block in zip(numbers, blocks, strict=True):
                file.seek(number * BLOCK_BYTES)
                file.write(block)
            file.truncate(size)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _block(store: ObjectStore, record: Stored, number: int) -> bytes:
    name = f"{store.address}/{record.key} ({record.name})"
    start = number * BLOCK_BYTES
    end = min(start + BLOCK_BYTES, record.size)

    def read() -> bytes:
        content = store.read(record.key, start=start, end=end, limit=BLOCK_BYTES)
        if content.size != record.size:
            raise CorruptObject(f"{name} has {content.size} bytes, in its manifest {record.size}")
        if hashlib.sha256(content.body).hexdigest() != record.sha256[number]:
            raise CorruptObject(f"{name}: block {number} contradicts its SHA-256 in the manifest")
        return content.body

    return _repeated(read)


def _repeated(read: Callable[[], Result]) -> Result:
    """Return the result of a read; repeat it if the body is damaged."""
    for _ in range(READS - 1):
        try:
            return read()
        except CorruptObject:
            continue
    return read()
