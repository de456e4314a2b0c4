"""One weight version that engines must load, per transport: a model folder, a chain of a snapshot and
deltas, a transfer from the trainer's rank 0, or an adapter on a model folder.

The pool calls `load` for each engine, also for one that restarts later. Each update names its files; the
engine reads them itself. Without a common disk with the trainer it first copies them from a bucket (`BucketUpdate`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from rstar2_train.api.contracts import StageFailed
from rstar2_train.inference.engine_errors import EngineUnavailable
from rstar2_train.inference.engine_protocols import PooledClient, weight_receiver
from rstar2_train.storage.manifest import IndexEntry
from rstar2_train.weights.adapter_check import AdapterOrder
from rstar2_train.weights.experimental.transfer import Offer
from rstar2_train.weights.probe import Probe
from rstar2_train.weights.version_store import VersionManifest

log = logging.getLogger(__name__)


class PendingProbe:
    """A probe that the trainer still scores, while the engines load the version. Bound to the event loop."""

    def __init__(self, rows: list[list[int]], scoring: Coroutine[Any, Any, Probe], *, has_adapter: bool) -> None:
        """`rows`, `has_adapter`: as of the probe; `scoring`: starts now, and returns the probe."""
        self.rows = rows
        self.has_adapter = has_adapter
        self._scoring = asyncio.create_task(scoring)

    async def result(self) -> Probe:
        """Wait for the probe. Raises the error of the trainer. A caller that is cancelled does not stop the trainer."""
        return await asyncio.shield(self._scoring)

    async def settle(self) -> None:
        """Wait until the trainer has scored the probe, or failed: its ranks are idle then."""
        await asyncio.wait({self._scoring})


async def complete(probe: Probe | PendingProbe) -> Probe:
    """Return a probe with the trainer's values. Raises EngineUnavailable if the trainer has failed."""
    if isinstance(probe, Probe):
        return probe
    try:
        return await probe.result()
    except StageFailed as error:
        raise EngineUnavailable(f"the trainer has not scored the probe: {error}") from error


class WeightUpdate(Protocol):
    """A version to load."""

    @property
    def version(self) -> str:
        """Weight version that the engine reports afterwards."""
        ...

    @property
    def probe(self) -> Probe | PendingProbe | None:
        """Check of the engine after the update; None: no check."""
        ...

    async def load(self, client: PooledClient, *, seconds: float, fresh: bool, keep_requests: bool) -> None:
        """Load the version into one engine.

        Args:
            client: the engine.
            seconds: timeout.
            fresh: use nothing that the engine kept from earlier versions, because the probe refused its weights.
            keep_requests: let the requests in flight wait for `EngineClient.release` and continue with the new
                weights, instead of aborting them.

        Raises:
            EngineRejected: the files do not fit the engine; its weights stay.
            EngineUnavailable: the engine fails or exceeds `seconds`.
        """
        ...


@dataclass(frozen=True, slots=True)
class FolderUpdate:
    """A whole model as a Hugging Face folder. Works with every engine."""

    folder: Path
    """Absolute path that the engine can read until the next version."""
    version: str
    probe: Probe | PendingProbe | None = None
    base_name: str = ""
    """Name of the weights, by which an `AdapterUpdate` recognises its base; empty: no adapter follows."""

    @classmethod
    def make(
        cls, folder: Path, version: str, probe: Probe | PendingProbe | None = None, *, base_name: str = ""
    ) -> FolderUpdate:
        """Return the update; the engines have other working directories, so the path becomes absolute."""
        return cls(folder.absolute(), version, probe, base_name)

    @property
    def folders(self) -> list[Path]:
        """Folders that the engine reads."""
        return [self.folder]

    def moved(self, paths: Mapping[Path, Path]) -> FolderUpdate:
        """Return the update with copies of its folders. `paths`: folder -> copy."""
        return replace(self, folder=paths[self.folder])

    async def load(self, client: PooledClient, *, seconds: float, fresh: bool, keep_requests: bool) -> None:
        """Let the engine read the folder."""
        await client.load_weights(self.folder, self.version, seconds=seconds, keep_requests=keep_requests)
        if self.base_name:
            await weight_receiver(client).name_base(self.base_name)


@dataclass(frozen=True, slots=True)
class AdapterUpdate:
    """An adapter on a base that does not change. An engine that restarted, or joins later, reads the base first."""

    base: FolderUpdate
    """The model that the stage started from, with a name."""
    order: AdapterOrder
    probe: Probe | PendingProbe | None = None

    @property
    def version(self) -> str:
        """Weight version that the engine reports afterwards."""
        return self.order.version

    @property
    def folders(self) -> list[Path]:
        """Folders that the engine reads."""
        return [self.base.folder, Path(self.order.folder)]

    def moved(self, paths: Mapping[Path, Path]) -> AdapterUpdate:
        """Return the update with copies of its folders. `paths`: folder -> copy."""
        order = replace(self.order, folder=str(paths[Path(self.order.folder)]))
        return replace(self, base=self.base.moved(paths), order=order)

    async def load(self, client: PooledClient, *, seconds: float, fresh: bool, keep_requests: bool) -> None:
        """Let the engine read the base unless it has it, then the adapter."""
        receiver = weight_receiver(client)
        if fresh or await receiver.base_name() != self.base.base_name:
            await self.base.load(client, seconds=seconds, fresh=fresh, keep_requests=keep_requests)
        await receiver.load_adapter(self.order, seconds=seconds, keep_requests=keep_requests)


@dataclass(frozen=True, slots=True)
class DeltaUpdate:
    """A chain of a snapshot and deltas. The engine reads only what its host copy lacks."""

    chain: Sequence[Path]
    """Absolute paths of the versions, from the snapshot to this one."""
    version: str
    version_id: str
    """Id of this version of this run."""
    probe: Probe | PendingProbe | None = None

    @property
    def folders(self) -> list[Path]:
        """Folders that the engine reads."""
        return list(self.chain)

    def moved(self, paths: Mapping[Path, Path]) -> DeltaUpdate:
        """Return the update with copies of its folders. `paths`: folder -> copy."""
        return replace(self, chain=[paths[folder] for folder in self.chain])

    async def load(self, client: PooledClient, *, seconds: float, fresh: bool, keep_requests: bool) -> None:
        """Let the engine update its host copy, then load all tensors from it."""
        await weight_receiver(client).load_chain(
            self.chain,
            self.version,
            version_id=self.version_id,
            seconds=seconds,
            fresh=fresh,
            keep_requests=keep_requests,
        )


FileUpdate = FolderUpdate | AdapterUpdate | DeltaUpdate
"""An update whose folders the engine reads itself."""


@dataclass(frozen=True, slots=True)
class BucketUpdate:
    """An update whose folders are in a bucket: each engine copies them to its own disk, then loads the copies."""

    update: FileUpdate
    published: Mapping[Path, IndexEntry]
    """Publication of each folder of the update."""

    @property
    def version(self) -> str:
        """Weight version that the engine reports afterwards."""
        return self.update.version

    @property
    def probe(self) -> Probe | PendingProbe | None:
        """Check of the engine after the update."""
        return self.update.probe

    async def load(self, client: PooledClient, *, seconds: float, fresh: bool, keep_requests: bool) -> None:
        """Let the engine copy the folders that it lacks while it generates, then load the version."""
        started, folders = time.monotonic(), self.update.folders
        copies = await weight_receiver(client).copy_folders([self.published[path] for path in folders], seconds=seconds)
        moved = self.update.moved(dict(zip(folders, copies, strict=True)))
        left = seconds - (time.monotonic() - started)
        await moved.load(client, seconds=left, fresh=fresh, keep_requests=keep_requests)


class WeightSender(Protocol):
    """The trainer, which sends a version that it has published."""

    def start_transfer(self, folder: Path, *, workers: int, seconds: float) -> Offer:
        """Start a transfer to one engine. Blocks until the trainer has started it. Raises StageFailed or OSError."""
        ...


@dataclass(slots=True)
class CollectiveUpdate:
    """The last files of a chain, sent by the trainer; the chain itself is the fallback.

    An engine reads the chain if it lacks the base of the last version, and if it restarts or fails later: the trainer
    keeps the files in memory only during the push.
    """

    delta: DeltaUpdate
    """The chain."""
    sender: WeightSender
    manifest: VersionManifest
    """Of the last version."""
    seconds: float
    """Deadline of each phase of the transfer."""
    is_open: bool = True
    """Whether the trainer still sends the files."""
    failures: dict[str, str] = field(default_factory=dict)
    """Why an engine reads the files instead, by its address."""

    @property
    def version(self) -> str:
        """Weight version that the engine reports afterwards."""
        return self.delta.version

    @property
    def probe(self) -> Probe | PendingProbe | None:
        """Check of the engine after the update."""
        return self.delta.probe

    async def load(self, client: PooledClient, *, seconds: float, fresh: bool, keep_requests: bool) -> None:
        """Receive the weights from the trainer; after a failure read the files."""
        if self.is_open and not fresh and client.url not in self.failures:
            try:
                await self._receive(client, seconds=seconds, keep_requests=keep_requests)
                return
            except EngineUnavailable as error:
                self.failures[client.url] = str(error)
                log.warning("collective transfer failed, using the files of version %s: %s", self.version, error)
        await self.delta.load(client, seconds=seconds, fresh=fresh, keep_requests=keep_requests)

    async def _receive(self, client: PooledClient, *, seconds: float, keep_requests: bool) -> None:
        receiver = weight_receiver(client)
        workers = await receiver.workers()
        try:
            async with asyncio.timeout(seconds):
                offer = await asyncio.to_thread(
                    self.sender.start_transfer, self.delta.chain[-1], workers=workers, seconds=self.seconds
                )
        except (StageFailed, OSError) as error:  # the trainer is lost, or cannot read its storage in time
            reason = str(error) or f"no answer within {seconds:g} s"
            raise EngineUnavailable(f"{client.url}: the trainer offers no transfer: {reason}") from error
        await receiver.receive_weights(offer, self.manifest, seconds=seconds, keep_requests=keep_requests)
