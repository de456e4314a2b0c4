"""Publications on a real S3 server and on a folder: races, fencing, ended processes, faults of the line."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rstar2_train.storage.folder import LocalFolder
from rstar2_train.storage.manifest import PublishedObject
from rstar2_train.storage.publication import AlreadyPublished, Fenced, PublicationWriter
from rstar2_train.storage.store import ObjectStore
from rstar2_train.storage.verified_read import fetch, read_index, read_manifest, read_range
from tests.integration.storage.conftest import Files, opened
from tests.support.publishing import publish_to_bucket, publish_to_folder, start
from tests.support.s3_proxy import FAULTS, Fault, ProxiedRequest, S3Proxy
from tests.support.s3_server import S3Server

MIB = 2**20
RACES = int(os.environ.get("RSTAR2_STORAGE_RACES", "200"))
"""Races on the server; the figure of docs/storage.md is that of 1,000."""


def published(store: ObjectStore, folder: Path) -> dict[str, dict[str, bytes]]:
    """Fetch every visible publication: name -> object -> content."""
    content = {}
    index, _ = read_index(store)
    for entry in index.publications:
        target = folder / entry.name
        fetch(store, read_manifest(store, entry).objects, target)
        paths = (path for path in target.rglob("*") if path.is_file())
        content[entry.name] = {path.relative_to(target).as_posix(): path.read_bytes() for path in paths}
    return content


def contents(files: dict[str, Path]) -> dict[str, bytes]:
    return {name: path.read_bytes() for name, path in files.items()}


def test_publication_is_read_as_written(store: ObjectStore, files: Files, tmp_path: Path) -> None:
    """Objects of several blocks, of one and of none are fetched as written; ranges across blocks too."""
    written = files(large=33 * MIB, small=10, empty=0)
    writer = PublicationWriter(store, 1)
    writer.claim()
    entry = writer.publish("step-1", written)
    assert published(store, tmp_path / "cache") == {"step-1": contents(written)}
    manifest = read_manifest(store, entry)
    (large,) = (each for each in manifest.objects if each.size > 10)
    body = written[large.name].read_bytes()
    for first, last in ((0, 5), (16 * MIB - 2, 16 * MIB + 2), (33 * MIB - 1, 33 * MIB), (7, 7)):
        assert read_range(store, large, first, last) == body[first:last]
    with pytest.raises(ValueError, match="no range"):
        read_range(store, large, 0, large.size + 1)


def test_publication_damaged_cache_file_is_fetched_again(store: ObjectStore, files: Files, tmp_path: Path) -> None:
    """A cache is never the truth: a changed file is replaced, a correct one is not read again."""
    written = files(a=1000, b=1000)
    writer = PublicationWriter(store, 1)
    entry = writer.publish("step-1", written)
    manifest = read_manifest(store, entry)
    fetch(store, manifest.objects, tmp_path / "cache")
    inode = (tmp_path / "cache/shards/b.bin").stat().st_ino
    (tmp_path / "cache/shards/a.bin").write_bytes(b"x" * 1000)
    fetch(store, manifest.objects, tmp_path / "cache")
    assert (tmp_path / "cache/shards/a.bin").read_bytes() == written["shards/a.bin"].read_bytes()
    assert (tmp_path / "cache/shards/b.bin").stat().st_ino == inode


def test_publication_of_a_fenced_attempt_is_invisible(store: ObjectStore, files: Files, tmp_path: Path) -> None:
    """An attempt that wakes up after a later one has claimed publishes and withdraws nothing."""
    old, new = PublicationWriter(store, 1), PublicationWriter(store, 2)
    old.claim()
    old.publish("step-1", files(a=10))
    new.claim()
    with pytest.raises(Fenced, match=r"attempt 2 has claimed.*of attempt 1"):
        old.publish("step-2", files(1, a=20))
    with pytest.raises(Fenced):
        old.retain(set())
    with pytest.raises(Fenced):
        old.claim()
    assert published(store, tmp_path / "cache") == {"step-1": contents(files(a=10))}
    new.publish("step-2", files(2, a=30))
    assert published(store, tmp_path / "later")["step-2"] == contents(files(2, a=30))


def test_publication_second_process_of_an_attempt_is_fenced(store: ObjectStore, files: Files) -> None:
    """Two processes with the same attempt number: the claim of the later one fences the earlier one."""
    first, second = PublicationWriter(store, 1), PublicationWriter(store, 1)
    first.claim()
    second.claim()
    with pytest.raises(Fenced):
        first.publish("step-1", files(a=10))
    second.publish("step-1", files(a=10))


def test_publication_withdrawn_objects_are_deleted(store: ObjectStore, files: Files, tmp_path: Path) -> None:
    """Retention deletes the objects of withdrawn publications, and none of a kept one."""
    writer = PublicationWriter(store, 1)
    withdrawn = []
    for step in range(1, 4):
        entry = writer.publish(f"step-{step}", files(step, a=10))
        if step == 2:
            withdrawn = [entry.manifest, *(each.key for each in read_manifest(store, entry).objects)]
    writer.retain({"step-1", "step-3"})
    assert set(published(store, tmp_path / "cache")) == {"step-1", "step-3"}
    assert withdrawn and not {each.name for each in store.list()} & set(withdrawn)


def test_publication_same_content_is_uploaded_once(store: ObjectStore, files: Files, tmp_path: Path) -> None:
    """A later publication, also of a later attempt, shares the objects of visible ones; retention keeps shared ones."""
    same, first, second = (files(seed, **{name: 10}) for seed, name in ((1, "same"), (2, "first"), (3, "second")))
    writer = PublicationWriter(store, 1)
    writer.claim()
    writer.publish("step-1", same | first)
    after = PublicationWriter(store, 2)
    after.claim()
    before = len([each for each in store.list() if "/objects/" in each.name])
    after.publish("step-2", same | second | {"copy": same["shards/same.bin"]})
    assert len([each for each in store.list() if "/objects/" in each.name]) == before + 1
    after.retain({"step-2"})
    expected = contents(same | second | {"copy": same["shards/same.bin"]})
    assert published(store, tmp_path / "cache") == {"step-2": expected}
    assert len([each for each in store.list() if "/objects/" in each.name]) == 2
    after.publish("step-3", first)  # its object was deleted with step-1
    assert published(store, tmp_path / "later")["step-3"] == contents(first)


def test_publication_sweep_deletes_torn_uploads(store: ObjectStore, files: Files, tmp_path: Path) -> None:
    """The next attempt deletes what a process left that stopped before the index moved, and nothing that is visible."""
    first = PublicationWriter(store, 1)
    first.claim()
    first.publish("step-1", files(1, a=10))
    torn = PublishedObject(name="a", size=1, sha256=["0" * 64], home=f"1-{first.writer}").key
    store.put_if_absent(torn, b"1")
    second = PublicationWriter(store, 2)
    with pytest.raises(Fenced):
        second.sweep()  # without a claim
    second.claim()
    own = PublishedObject(name="a", size=1, sha256=["0" * 64], home=f"2-{second.writer}").key
    store.put_if_absent(own, b"1")
    assert second.sweep() == 1
    names = {each.name for each in store.list()}
    assert torn not in names and own in names
    assert published(store, tmp_path / "cache") == {"step-1": contents(files(1, a=10))}


def test_publication_retain_deletes_failed_tries(store: ObjectStore, files: Files, tmp_path: Path) -> None:
    """The next try of a failed publication uses its uploads; the retention of later ones deletes the rest."""
    writer = PublicationWriter(store, 1)
    writer.claim()
    old, torn = files(1, a=10), files(2, b=20, c=30)

    def stop() -> None:
        raise ConnectionError

    for _ in range(2):  # each try uploads one more object
        with pytest.raises(ConnectionError):
            writer.publish("step-1", torn, uploaded=stop)
    writer.publish("step-2", old | {"shards/b.bin": torn["shards/b.bin"]})
    writer.retain({"step-2"})
    assert len([item for item in store.list() if "/objects/" in item.name]) == 2
    writer.publish("step-3", torn)  # its objects were deleted
    writer.retain({"step-3"})
    assert published(store, tmp_path / "cache") == {"step-3": contents(torn)}
    assert len([item for item in store.list() if "/objects/" in item.name]) == 2


def test_publication_race_has_one_winner(store: ObjectStore, files: Files, request: pytest.FixtureRequest) -> None:
    """Two attempts publish under the same name at the same time, many times: exactly one wins, and is visible."""
    races = RACES if "bucket" in request.node.name else 50
    written = {"a": files(a=10)["shards/a.bin"]}
    barrier = threading.Barrier(2)
    wins: Counter[int] = Counter()

    def race(number: int, attempt: int) -> PublicationWriter | None:
        # The first process of each pair has the lower number: it may be fenced, or be first.
        writer = PublicationWriter(store, 2 * number + attempt)
        barrier.wait()
        try:
            writer.publish(f"race-{number}", written)
        except (AlreadyPublished, Fenced):
            return None
        return writer

    with ThreadPoolExecutor(2) as pool:
        for number in range(races):
            results = list(pool.map(race, (number, number), (1, 2)))
            winners = [result for result in results if result is not None]
            assert len(winners) == 1, f"race {number}: {len(winners)} winners"
            wins[results.index(winners[0])] += 1
            if number % 20 == 0:
                index, _ = read_index(store)
                assert index.publications[-1].name == f"race-{number}"
                assert index.publications[-1].writer == winners[0].writer
                cleaner = PublicationWriter(store, 2 * number + 2)
                cleaner.claim()
                cleaner.retain(set())  # a long index is not part of the race
    assert sum(wins.values()) == races and len(wins) == 2, wins


@pytest.mark.parametrize("moment", ["before", "after"])
def test_publication_process_ended_at_every_request(
    moment: str, server: S3Server, proxy: S3Proxy, files: Files, tmp_path: Path
) -> None:
    """kill -9 at request 1, 2, 3, ...: readers have the old or the new publication, and the next attempt continues."""
    old, new = files(1, a=100), files(2, a=200, b=6 * MIB)
    for at in range(1, 100):
        bucket = server.bucket(f"ended-{moment}-{at}")
        store = opened(server.url, bucket)
        first = PublicationWriter(store, 1)
        first.claim()
        first.publish("step-1", old)
        target = _EndedProcess(len(proxy.requests) + at)
        proxy.before = target.end if moment == "before" else lambda request: ""
        proxy.after = (lambda request: None) if moment == "before" else target.end  # type: ignore[assignment]
        process = target.run(publish_to_bucket, proxy.url, bucket, 2, "step-2", new)
        visible = published(store, tmp_path / f"{moment}-{at}")
        assert visible.get("step-1", contents(old)) == contents(old)
        assert visible.get("step-2", contents(new)) == contents(new)
        assert visible
        if process.exitcode == 0:
            assert at > 12
            return
        assert_next_attempt_continues(store, visible, new, tmp_path / f"{moment}-{at}-resumed")
    pytest.fail("the process was always ended")


def assert_next_attempt_continues(
    store: ObjectStore, visible: Collection[str], new: dict[str, Path], folder: Path
) -> None:
    """Attempt 3 publishes step-2 unless it is visible, and keeps it alone."""
    third = PublicationWriter(store, 3)
    third.claim()
    if "step-2" not in visible:
        third.publish("step-2", new)
    third.retain({"step-2"})
    assert published(store, folder) == {"step-2": contents(new)}


class _EndedProcess:
    """A process that is ended at request number `at` of the proxy."""

    def __init__(self, at: int) -> None:
        self._at, self._started = at, threading.Event()
        self._process: Any = None

    def run(self, *arguments: Any) -> Any:
        """Run a function of tests/support/publishing.py; return its process when it has ended."""
        self._process = start(*arguments)
        self._started.set()
        self._process.join()
        return self._process

    def end(self, request: ProxiedRequest) -> Fault:
        self._started.wait()
        if request.number != self._at:
            return ""
        os.kill(self._process.pid, signal.SIGKILL)
        return "reset"


@pytest.mark.parametrize("before", [True, False])
def test_publication_in_folder_process_ended_at_every_step(before: bool, files: Files, tmp_path: Path) -> None:
    """The same for a folder: the process ends before or after each operation."""
    old, new = files(1, a=100), files(2, a=200)
    for at in range(1, 100):
        root = tmp_path / f"objects-{at}"
        store = LocalFolder(root)
        PublicationWriter(store, 1).publish("step-1", old)
        process = start(publish_to_folder, str(root), at, before, 2, "step-2", new)
        process.join()
        visible = published(store, tmp_path / f"cache-{at}")
        assert visible and all(visible[name] == contents({"step-1": old, "step-2": new}[name]) for name in visible)
        if process.exitcode == 0:
            assert at > 8
            return
        assert_next_attempt_continues(store, visible, new, tmp_path / f"resumed-{at}")
    pytest.fail("the process was always ended")


def test_publication_under_faults_is_correct(
    server: S3Server, proxy: S3Proxy, bucket: str, files: Files, tmp_path: Path
) -> None:
    """30 % of the requests fail in every way: each publication is read as written, and no byte is wrong."""
    draw = random.Random(7)
    faults: Counter[str] = Counter()

    def spoil(request: ProxiedRequest) -> Fault:
        fault: Fault = draw.choice(FAULTS) if draw.random() < 0.3 else ""
        faults[fault] += 1
        return fault

    proxy.before = spoil
    store = opened(proxy.url, bucket, patience=60)
    expected = {}
    for step in range(1, 9):
        written = files(step, a=100 + step, b=6 * MIB if step == 1 else 50_000)
        writer = PublicationWriter(store, step)
        writer.claim()
        writer.publish(f"step-{step}", written)
        expected[f"step-{step}"] = contents(written)
    assert published(store, tmp_path / "cache") == expected
    proxy.before = lambda request: ""
    assert published(opened(server.url, bucket), tmp_path / "direct") == expected
    assert set(FAULTS) <= set(faults), faults
