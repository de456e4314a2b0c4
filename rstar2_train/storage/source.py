"""Downloads the object or the prefix of a `source` or `data` field into a folder, which is a cache.

An object is read in blocks of one version (by ETag). Damaged bytes never arrive: TLS detects them; without TLS a block
is read until two reads agree. A file SHA256SUMS below a prefix names the files and their digests, which are compared.
The digests of the downloaded files are recorded, so that a later start verifies the cache without the bucket.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from rstar2_train.api.sources import BucketSource, split_store
from rstar2_train.api.storage import StorageSpec
from rstar2_train.storage.bucket import Bucket
from rstar2_train.storage.endpoint import Endpoint
from rstar2_train.storage.folder import LocalFolder
from rstar2_train.storage.manifest import BLOCK_BYTES, MAX_OBJECTS, ObjectRecord, blocks
from rstar2_train.storage.retries import Retries
from rstar2_train.storage.store import (
    SOURCE_RECORD,
    AccessDenied,
    CorruptObject,
    ObjectMissing,
    ObjectStore,
    StorageRejected,
    StorageUnavailable,
    StoredObject,
    check_name,
)
from rstar2_train.storage.verified_read import PARALLEL_READS, READS, has_contents, in_order, path_within, write_blocks
from rstar2_train.utils.disk import named_disk, require_space
from rstar2_train.utils.files import write_atomically

SUMS = "SHA256SUMS"
"""Output of `sha256sum`: the files of a prefix and their digests."""
MAX_SUMS_BYTES = 4 * 2**20
CREDENTIALS = {
    "s3": ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
           "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_SKIP_SIGNATURE"),
    "gs": ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY"),
    "az": ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_KEY", "AZURE_CLIENT_ID"),
}  # fmt: skip
"""Scheme -> variables of the environment of which one exists where there are credentials."""
_LINE = re.compile(r"(?P<digest>[0-9a-f]{64}) [ *](\./)?(?P<name>.+)")
_RECORDS = TypeAdapter(list[ObjectRecord])


def open_source(
    source: BucketSource,
    settings: StorageSpec,
    *,
    patience: float = 600.0,
    prefix: str = "",
    environ: Mapping[str, str] = os.environ,
) -> Bucket:
    """Return the bucket of a source, or its objects below a prefix.

    `patience`: seconds for the retries of one operation. Raises StorageRejected.
    """
    authorities = environ.get("AWS_CA_BUNDLE") or environ.get("SSL_CERT_FILE")
    is_s3 = source.scheme == "s3"
    endpoint = Endpoint(
        url=settings.endpoint_url if is_s3 else None,
        region=settings.region if is_s3 else None,
        virtual_host=is_s3 and settings.addressing == "VirtualHost",
        authorities=Path(authorities) if authorities else None,
        retries=Retries(patience=patience),
    )
    return Bucket(source.scheme, source.bucket, prefix, endpoint=endpoint, environ=environ)


def open_store(
    settings: StorageSpec, job: str, *, patience: float, environ: Mapping[str, str] = os.environ
) -> ObjectStore:
    """Return the store of a job's state: the objects below `job` in spec.storage.url. Raises StorageRejected.

    `patience`: seconds for the retries of one operation.
    """
    assert settings.url is not None
    place = split_store(settings.url)
    if place.scheme == "file":
        return LocalFolder(Path(place.key) / job)
    prefix = "/".join(filter(None, (place.key, job)))
    return open_source(place, settings, patience=patience, prefix=prefix, environ=environ)


def find_objects(store: ObjectStore, key: str) -> list[StoredObject]:
    """Return the object `key`, or all objects below it. Raises ObjectMissing if there is none."""
    try:
        return [store.stat(key)]
    except (ObjectMissing, AccessDenied):  # the answer to HEAD has no words: the listing has them
        listing = list(store.list(f"{key}/"))
    # Some tools create an empty object for each folder.
    objects = [item for item in listing if item.size or not any(o.name.startswith(f"{item.name}/") for o in listing)]
    if not objects:
        raise ObjectMissing(f"{store.address}/{key}: no such object, and no object below this prefix")
    if len(objects) > MAX_OBJECTS:
        raise StorageRejected(f"{store.address}/{key} has {len(objects):,} objects; allowed: {MAX_OBJECTS:,}")
    for item in objects:
        check_name(item.name)
    return objects


def fetch_source(store: ObjectStore, key: str, folder: Path, *, is_plain: bool) -> None:
    """Write the object `key`, or the objects below it, to `folder`/`key`, unless they are there already.

    `is_plain`: whether the requests travel without TLS. Raises StorageError, OSError.
    """
    record_file = folder / f"{SOURCE_RECORD}{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    recorded = _recorded(record_file)
    if recorded is not None and has_contents(folder, recorded):
        _remove_others(folder, key)
        return
    objects = find_objects(store, key)
    sums = _read_sums(store, key, objects, is_plain=is_plain)
    if sums is not None:
        objects = [item for item in objects if item.name in sums]
    require_space(folder, {item.name: item.size for item in objects})
    with named_disk(folder), ThreadPoolExecutor(PARALLEL_READS) as pool:
        records = [_download(pool, store, item.name, folder, (sums or {}).get(item.name), is_plain) for item in objects]
    if recorded is not None and recorded != records:
        raise StorageRejected(
            f"{store.address}/{key} has changed since it was downloaded first, and {folder} has no whole copy of that "
            "content: write it back under this name, or create the job again with another name for the new content"
        )
    write_atomically(record_file, _RECORDS.dump_json(records).decode())
    _remove_others(folder, key)


def downloads(folder: Path) -> dict[str, ObjectRecord]:
    """Return the files of all complete downloads of a bucket, by their names, which are those of the objects."""
    records = [record for file in folder.glob(f"{SOURCE_RECORD}*") for record in _recorded(file) or ()]
    return {record.name: record for record in records}


def _remove_others(folder: Path, key: str) -> None:
    """Delete files below a prefix that no complete download has: of an earlier, torn one, or of other origin."""
    names = downloads(folder)
    for path in sorted((folder / key).rglob("*")):
        if not path.is_dir() and path.relative_to(folder).as_posix() not in names:
            path.unlink()


def _recorded(file: Path) -> list[ObjectRecord] | None:
    """Return the records of a complete download; None if there was none, or its record is damaged."""
    try:
        return _RECORDS.validate_json(file.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def _read_sums(store: ObjectStore, key: str, objects: list[StoredObject], *, is_plain: bool) -> dict[str, str] | None:
    """Return object -> SHA-256 of the file SHA256SUMS below a prefix; None without that file."""
    name = f"{key}/{SUMS}"
    item = next((item for item in objects if item.name == name), None)
    if item is None:
        return None
    if item.size > MAX_SUMS_BYTES:
        raise CorruptObject(f"{store.address}/{name} has {item.size:,} bytes; allowed: {MAX_SUMS_BYTES:,}")
    text = _read_block(store, store.stat(name), 0, is_plain=is_plain).decode("utf-8", errors="replace")
    sums = {}
    for number, line in enumerate(text.splitlines(), 1):
        match = _LINE.fullmatch(line)
        if match is None:
            raise CorruptObject(f"{store.address}/{name}:{number}: not a line of `sha256sum`: {line[:100]!r}")
        sums[check_name(f"{key}/{match['name']}")] = match["digest"]
    if not sums:
        raise CorruptObject(
            f"{store.address}/{name} names no file: write the output of `sha256sum` into it, or delete it"
        )
    if missing := sorted(sums.keys() - {item.name for item in objects}):
        raise ObjectMissing(f"{store.address}/{missing[0]}: no such object, but {SUMS} names it")
    return sums


def _download(
    pool: ThreadPoolExecutor, store: ObjectStore, name: str, folder: Path, expected: str | None, is_plain: bool
) -> ObjectRecord:
    """Write one object to a file; return its size and digests. `expected`: SHA-256 of the whole object."""
    path, item = path_within(folder, check_name(name)), store.stat(name)
    numbers = range(blocks(item.size))
    whole, digests = hashlib.sha256(), list[str]()

    def received() -> Iterator[bytes]:
        for block in in_order(pool, partial(_read_block, store, item, is_plain=is_plain), numbers):
            whole.update(block)
            digests.append(hashlib.sha256(block).hexdigest())
            yield block
        if expected is not None and whole.hexdigest() != expected:
            raise CorruptObject(f"{store.address}/{name}: SHA-256 is {whole.hexdigest()}, in {SUMS} {expected}")

    write_blocks(path, received(), numbers, size=item.size)
    return ObjectRecord(name=name, size=item.size, sha256=digests)


def _read_block(store: ObjectStore, item: StoredObject, number: int, *, is_plain: bool) -> bytes:
    start = number * BLOCK_BYTES
    end = min(start + BLOCK_BYTES, item.size)
    if start == end:
        return b""
    earlier: set[bytes] = set()
    for _ in range(READS):
        body = store.read(item.name, start=start, end=end, etag=item.etag, limit=BLOCK_BYTES).body
        if len(body) != end - start:
            raise CorruptObject(f"{store.address}/{item.name} has another size than {item.size} bytes")
        digest = hashlib.sha256(body).digest()
        if not is_plain or digest in earlier:
            return body
        earlier.add(digest)
    raise StorageUnavailable(f"{store.address}/{item.name}: {READS} reads of one block had {READS} contents")
