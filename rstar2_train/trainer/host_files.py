"""Files of ranks on hosts that have no common disk with the orchestrator: pods of a job whose state is in a bucket.

    provide:    a folder or file of this host ─> every other host reads it from the bucket, before its ranks do
    checkpoint: a checkpoint ─> every host reads the parts that its ranks need from the bucket
    upload:     the ranks wrote a checkpoint ─> other hosts upload their files; names and digests come to this host
    gathered:   the ranks write into a folder ─> its files on other hosts come to this host

Only `gathered` sends content through Ray, in blocks next to other calls of the ranks. Everything but the functions of
the hosts runs in the orchestrator.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from rstar2_train.storage.host_bucket import HostBucket, RemoteFiles, record_files
from rstar2_train.storage.host_objects import read_host_objects, write_host_objects
from rstar2_train.storage.manifest import PublishedObject
from rstar2_train.storage.manifest import blocks as count_blocks
from rstar2_train.storage.stage_failure import stage_failure
from rstar2_train.storage.store import StorageError
from rstar2_train.trainer.checkpoint import INDEX, CheckpointInvalid
from rstar2_train.trainer.hosts import shares
from rstar2_train.utils.files import FileVersion, delete, file_versions

log = logging.getLogger(__name__)

BLOCK_BYTES = 8 * 2**20
WINDOW = 8
"""Blocks in flight."""


class HostCalls(Protocol):
    """Calls of functions in the processes of ranks (`actors.RankActors`)."""

    @property
    def count(self) -> int:
        """Number of ranks."""

    def host_ranks(self) -> list[list[int]]:
        """Return the ranks of each host, those of this process's host first."""

    def run_background(self, function: Callable[..., Any], args: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return the results of a function in the process of every rank, by rank, next to the other calls.

        `args`: its arguments by rank. Raises RanksLost if a process crashed, and the function's error.
        """

    def start_file_call(self, rank: int, function: Callable[..., Any], *args: Any) -> Any:
        """Start a function of this module in the process of a rank; calls of one rank run in their order."""

    def file_result(self, reference: Any) -> Any:
        """Return the result of such a call. Raises RanksLost if the process crashed, and its OSError."""


class HostFiles:
    """The files of one group of ranks."""

    def __init__(self, calls: HostCalls, bucket: HostBucket | None) -> None:
        """`bucket`: of hosts with disks of their own. None: all hosts have a common disk, no file travels.

        Files outside of the bucket's cache are on claims, which all hosts have.
        """
        self._calls = calls
        self._bucket = bucket
        self._ranks = calls.host_ranks() if bucket is not None else [list(range(calls.count))]
        self._hosts = [ranks[0] for ranks in self._ranks[1:]]
        """A rank of each other host."""
        self._provided: dict[Path, dict[str, FileVersion]] = {}

    def provide(self, path: Path) -> None:
        """Let the other hosts read a folder or file from the bucket, unless they have it already.

        Raises RanksLost, OSError, StageFailed.
        """
        if not self._travels(path) or self._provided.get(path) == (versions := _versions(path)):
            return
        assert self._bucket is not None
        self._everywhere(delete, path)
        with _stage_failures("the model cannot be read from"), self._bucket.offered(path) as remote:
            root = path if path.is_dir() else path.parent
            self._fetch(root, path.name, [RemoteFiles(()), *(remote for _ in self._hosts)])
        self._provided[path] = versions

    @contextlib.contextmanager
    def checkpoint(
        self, folder: Path, files: Mapping[str, tuple[int, str]], needed: Callable[[], list[dict[str, list[int]]]]
    ) -> Iterator[list[list[str]]]:
        """Let each host read the blocks of a checkpoint that its ranks need from the bucket, for the block.

        `files`: of its manifest. `needed`: returns the blocks by rank, when each host has the index. Yields the files
        that each rank compares with the manifest: those that its host has completely. The blocks of other files were
        compared with their digests. Raises CheckpointInvalid, RanksLost, OSError, StageFailed.
        """
        if self._bucket is None or not (self._hosts or read_host_objects(folder)):
            yield _by_rank(self._calls.count, [(self._ranks[0], files)])
            return
        before = {name for name in files if (folder / name).exists()}
        try:
            with _stage_failures("the checkpoint cannot be read from"), self._bucket.offered(folder) as remote:
                missing = files.keys() - {file.name for file in remote.files}
                if missing:
                    raise CheckpointInvalid(f"incomplete checkpoint: {folder / min(missing)} is missing")
                self._fetch(folder, INDEX, [remote.only({INDEX: None}) for _ in self._ranks])
                parts = needed()
                if unknown := {name for names in parts for name in names} - files.keys():
                    raise CheckpointInvalid(f"damaged checkpoint: {folder / INDEX} names {min(unknown)}")
                wanted = [_union([parts[rank] for rank in ranks]) for ranks in self._ranks]
                self._fetch(folder, folder.name, [remote.only(blocks) for blocks in wanted])
            own = [{name: files[name] for name in _whole(blocks, files)} for blocks in wanted]
            own[0] |= {name: files[name] for name in before}
            yield _by_rank(self._calls.count, zip(self._ranks, own, strict=True))
        finally:
            for name in files.keys() - before:
                delete(folder / name)
            with contextlib.suppress(Exception):  # an earlier error, such as the loss of the ranks, is the cause
                self._everywhere(delete, folder)

    def _travels(self, path: Path) -> bool:
        return bool(self._hosts) and self._bucket is not None and path.is_relative_to(self._bucket.cache)

    @contextlib.contextmanager
    def created(self, folder: Path) -> Iterator[None]:
        """Create a folder of this host on the other hosts, for the files of their ranks; delete it there afterwards."""
        self._everywhere(make_folder, folder)
        try:
            yield
        finally:
            with contextlib.suppress(Exception):  # an earlier error, such as the loss of the ranks, is the cause
                self._everywhere(delete, folder)

    @contextlib.contextmanager
    def gathered(self, folder: Path) -> Iterator[None]:
        """Let the ranks write into a folder of this host inside the block; then it has the files of all hosts.

        Raises RanksLost; OSError if this host's disk is full, or a file that two hosts wrote would be lost.
        """
        with self.created(folder):
            yield
            if self._hosts:
                self._collect(folder)

    def upload(self, folder: Path, names: Sequence[Sequence[str]]) -> None:
        """Let each rank on another host upload its files of a checkpoint; this host gets their record, not the files.

        `names`: the files by rank. May run next to any other call, in the thread that writes the checkpoint. Raises
        RanksLost, OSError; StageFailed if the bucket does not take the files, or a later attempt has started.
        """
        if self._bucket is None or not self._hosts:
            return
        started, others = time.monotonic(), {rank for ranks in self._ranks[1:] for rank in ranks}
        theirs = [list(files) if rank in others else [] for rank, files in enumerate(names)]
        with _stage_failures("the checkpoint cannot be written to"):
            home = self._bucket.new_home()
            records = self._calls.run_background(record_files, [(folder, files) for files in theirs])
            objects = [[PublishedObject(**item.model_dump(), home=home) for item in files] for files in records]
            uploaded = [item for files in objects for item in files]
            write_host_objects(folder, uploaded)
            self._calls.run_background(self._bucket.upload, [(folder, files) for files in objects])
        _report(folder, "uploaded by other hosts", sum(item.size for item in uploaded), started)

    def _collect(self, folder: Path) -> None:
        started, moved = time.monotonic(), 0
        blocks: list[list[tuple[int, str, int]]] = []
        for host, files in zip(self._hosts, self._everywhere(list_files, folder), strict=True):
            for name in files:
                if (folder / name).exists():
                    raise FileExistsError(f"{folder / name} was written on two hosts")
            blocks.append([(host, name, start) for name, size in files.items() for start in _starts(size)])
            moved += sum(files.values())
        order = [block for turn in itertools.zip_longest(*blocks) for block in turn if block is not None]
        contents = self._run((host, read_block, folder / name, start) for host, name, start in order)
        for (_, name, start), content in zip(order, contents, strict=True):
            write_block(folder / name, start, content)
        _report(folder, "received from other hosts", moved, started)

    def _fetch(self, folder: Path, label: str, remote: Sequence[RemoteFiles]) -> None:
        """Let a rank of each host read files from the bucket into a folder. `remote`: by host, this one first."""
        assert self._bucket is not None
        started = time.monotonic()
        args = [(folder, RemoteFiles(())) for _ in range(self._calls.count)]
        for ranks, files in zip(self._ranks, remote, strict=True):
            if ranks:
                args[ranks[0]] = folder, files
        moved = self._calls.run_background(self._bucket.fetch, args)
        sizes = ", ".join(f"{moved[ranks[0]] / 1e6:.1f}" for ranks in self._ranks if ranks)
        log.info("%s: each host read from the bucket in %.1f s: %s MB", label, time.monotonic() - started, sizes)

    def _everywhere(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        return list(self._run((host, function, *args) for host in self._hosts))

    def _run(self, calls: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """Yield the results of calls (host, function, arguments) in their order, with some of them in flight."""
        running: deque[Any] = deque()
        for host, function, *args in calls:
            running.append(self._calls.start_file_call(host, function, *args))
            if len(running) > WINDOW:
                yield self._calls.file_result(running.popleft())
        while running:
            yield self._calls.file_result(running.popleft())


@contextlib.contextmanager
def _stage_failures(effect: str) -> Iterator[None]:
    """Raise StageFailed for an error of the bucket. `effect`: as of `stage_failure`."""
    try:
        yield
    except StorageError as error:
        raise stage_failure(error, effect) from error


def make_folder(folder: Path) -> None:
    """Create a folder."""
    folder.mkdir(parents=True, exist_ok=True)


def list_files(folder: Path) -> dict[str, int]:
    """Return the sizes of a folder's files by their names relative to it, sorted."""
    return {name: version.size for name, version in _versions(folder).items()}


def read_block(file: Path, start: int) -> bytes:
    """Return the block of a file at a position in bytes."""
    with file.open("rb") as stream:
        stream.seek(start)
        return stream.read(BLOCK_BYTES)


def write_block(file: Path, start: int, content: bytes) -> None:
    """Write the block of a file at a position in bytes; the file is created."""
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT, 0o644)
    with os.fdopen(descriptor, "wb") as stream:
        stream.seek(start)
        stream.write(content)


def _union(parts: Iterable[Mapping[str, Sequence[int]]]) -> dict[str, list[int]]:
    """Return the blocks of files that any of some ranks needs."""
    union = defaultdict[str, set[int]](set)
    for part in parts:
        for name, blocks in part.items():
            union[name].update(blocks)
    return {name: sorted(blocks) for name, blocks in union.items()}


def _whole(wanted: Mapping[str, Sequence[int]], files: Mapping[str, tuple[int, str]]) -> list[str]:
    """Return the files whose blocks are all wanted."""
    return [name for name, blocks in wanted.items() if len(blocks) == count_blocks(files[name][0])]


def _by_rank(count: int, hosts: Iterable[tuple[Sequence[int], Mapping[str, tuple[int, str]]]]) -> list[list[str]]:
    """Return the files of each rank to verify: the ranks of a host share its files."""
    result: list[list[str]] = [[] for _ in range(count)]
    for ranks, files in hosts:
        sizes = {name: size for name, (size, _) in files.items()}
        for rank, names in zip(ranks, shares(sizes, len(ranks)), strict=True):
            result[rank] = names
    return result


def _starts(size: int) -> Sequence[int]:
    return range(0, max(size, 1), BLOCK_BYTES)


def _versions(path: Path) -> dict[str, FileVersion]:
    """Return the versions of a folder's files by their names relative to it, or of a file by its name; sorted."""
    files, root = (sorted(path.rglob("*")), path) if path.is_dir() else ([path], path.parent)
    return file_versions({file.relative_to(root).as_posix(): file for file in files if file.is_file()})


def _report(path: Path, moved: str, size: int, started: float) -> None:
    log.info("%s: %.1f MB %s in %.1f s", path.name, size / 1e6, moved, time.monotonic() - started)
