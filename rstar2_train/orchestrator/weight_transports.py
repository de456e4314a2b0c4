"""How a weight version travels from the ranks to the engines: one interface, and `Auto`, which chooses.

A transport publishes the trainer's weights as files, and returns the update that each engine loads. `Folder`: a whole
model per version. `Delta`: a snapshot, then the changes; every rank writes its own shards. `Collective`: rank 0 sends
the files of `Delta` to each engine; an engine that lacks their base reads the chain. A stage with LoRA has a transport
of its own: the adapter alone.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path
from typing import Protocol

from rstar2_train.api.roles import RolloutSpec, WeightTransportName
from rstar2_train.capacity.config_file import read_config
from rstar2_train.inference.weight_update import (
    AdapterUpdate,
    CollectiveUpdate,
    DeltaUpdate,
    FolderUpdate,
    PendingProbe,
    WeightUpdate,
)
from rstar2_train.trainer.trainer_group import TrainerGroup
from rstar2_train.weights import version_store
from rstar2_train.weights.adapter_check import AdapterOrder, is_zero
from rstar2_train.weights.probe import Probe, probe_rows

log = logging.getLogger(__name__)

KEPT_FOLDERS = 2
"""Number of model folders kept: the engines' current version and the previous one."""
PHASE_SECONDS = 120
"""Longest time of one phase of a collective transfer: join, and broadcast of one tensor."""
VERSIONS = "versions"
"""Subdirectory of the weights directory with snapshots and deltas. No model folder has this name: all end in a step."""


class WeightTransport(Protocol):
    """Publishes weight versions."""

    async def publish(self, group: TrainerGroup, version: str, *, overlapped: bool = False) -> WeightUpdate:
        """Write the trainer's weights as `version`. Raises StageFailed if the disk is full.

        `overlapped`: score a probe after the return, while the engines load the files (`PendingProbe`).
        """
        ...

    def prune(self, loaded: WeightUpdate) -> None:
        """Delete what no engine needs any more. Call it when the engines have loaded a version."""
        ...

    def restart(self) -> bool:
        """Make the next version independent of all files before it. Returns False if every version already is."""
        ...


class ProbeWriter:
    """Creates the probe of each published version."""

    def __init__(self) -> None:
        self._fingerprint: list[list[int]] | None = None

    async def probe(
        self, group: TrainerGroup, *, has_adapter: bool = False, overlapped: bool = False
    ) -> Probe | PendingProbe:
        """Return the probe of the trainer's current weights; with `overlapped` before the ranks have scored it."""
        rows = probe_rows(read_config(group.model_dir)["vocab_size"])
        scoring = self._score(group, rows, has_adapter=has_adapter)
        return PendingProbe(rows, scoring, has_adapter=has_adapter) if overlapped else await scoring

    async def _score(self, group: TrainerGroup, rows: list[list[int]], *, has_adapter: bool) -> Probe:
        expected, fingerprint = await asyncio.to_thread(group.score, rows)
        changed = self._fingerprint is not None and fingerprint != self._fingerprint
        self._fingerprint = fingerprint
        return Probe(rows, expected, group.probe_tolerance, changed, has_adapter)


class FolderTransport:
    """A whole Hugging Face folder per version, gathered and written by rank 0. Works with every engine."""

    def __init__(self, weights: Path, *, probes: ProbeWriter | None) -> None:
        """`weights`: directory of the versions; `probes`: None for no probe."""
        self._weights = weights
        self._probes = probes
        self._folder = weights

    async def publish(self, group: TrainerGroup, version: str, *, overlapped: bool = False) -> WeightUpdate:
        """Export the model."""
        self._folder = self._weights / version
        await asyncio.to_thread(group.export, self._folder, for_engines=True)
        probe = await self._probes.probe(group, overlapped=overlapped) if self._probes else None
        return FolderUpdate.make(self._folder, version, probe)

    def prune(self, loaded: WeightUpdate) -> None:
        """Delete all folders except the newest ones and the current one."""
        folders = sorted(
            (path for path in self._weights.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime
        )
        for folder in folders[:-KEPT_FOLDERS]:
            if folder != self._folder:
                shutil.rmtree(folder, ignore_errors=True)

    def restart(self) -> bool:
        """Return False: every version is complete in itself."""
        return False


class DeltaTransport:
    """A snapshot, then lossless changes to the version before; every rank writes its own shards, without a gather."""

    def __init__(self, weights: Path, *, snapshot_every: int, probes: ProbeWriter | None) -> None:
        """`snapshot_every`: number of versions from one snapshot to the next; `probes`: None for no probe."""
        self._weights = weights
        self._root = weights / VERSIONS
        self._snapshot_every = snapshot_every
        self._probes = probes
        self._group: TrainerGroup | None = None
        self._chain: list[Path] = []
        self._base: str | None = None

    async def publish(self, group: TrainerGroup, version: str, *, overlapped: bool = False) -> DeltaUpdate:
        """Write a snapshot if it is due, else the changes."""
        if group is not self._group:
            await asyncio.to_thread(group.start_versions)
            self._group, self._base = group, None
        snapshot = self._base is None or len(self._chain) >= self._snapshot_every
        version_id = version_store.new_id()
        folder = version_store.version_folder(self._root, version_store.next_number(self._root), version_id)
        manifest = await asyncio.to_thread(
            group.publish, folder, version=version, version_id=version_id, base=None if snapshot else self._base
        )
        log.info("weights of %s: %s of %d bytes", version, "snapshot" if snapshot else "delta", manifest.bytes)
        self._base = version_id
        self._chain = [folder] if snapshot else [*self._chain, folder]
        probe = await self._probes.probe(group, overlapped=overlapped) if self._probes else None
        return DeltaUpdate([path.absolute() for path in self._chain], version, version_id, probe)

    def prune(self, loaded: WeightUpdate) -> None:
        """Delete the versions before the last snapshot, and the model folders of an attempt with another transport."""
        version_store.prune(self._root, chain=self._chain)
        _remove_folders(self._weights)

    def restart(self) -> bool:
        """Make the next version a snapshot. Returns False if the last one is a snapshot already."""
        if len(self._chain) == 1:
            return False
        self._base = None
        return True


class CollectiveTransport:
    """The files of `Delta`, sent by rank 0 to each engine over a group per engine."""

    def __init__(self, delta: DeltaTransport, *, phase_seconds: float) -> None:
        """`delta`: writes the files; `phase_seconds`: deadline of each phase of a transfer."""
        self._delta = delta
        self._phase_seconds = phase_seconds
        self._group: TrainerGroup | None = None

    async def publish(self, group: TrainerGroup, version: str, *, overlapped: bool = False) -> WeightUpdate:
        """Write the files, and let rank 0 offer them. Never overlapped: rank 0 sends them during the load."""
        delta = await self._delta.publish(group, version)
        await asyncio.to_thread(group.serve_transfers)
        self._group = group
        return CollectiveUpdate(delta, group, version_store.read_manifest(delta.chain[-1]), self._phase_seconds)

    def prune(self, loaded: WeightUpdate) -> None:
        """Close the transfers of the version, and delete the files that no engine needs."""
        assert isinstance(loaded, CollectiveUpdate)
        loaded.is_open = False
        if self._group is not None:
            self._group.release_weights(loaded.delta.chain[-1])
        self._delta.prune(loaded)

    def restart(self) -> bool:
        """Make the next version a snapshot."""
        return self._delta.restart()


class AdapterTransport:
    """The adapter alone, as a version of its own, with a probe. The base under it never changes during a stage."""

    def __init__(self, weights: Path, *, base: FolderUpdate) -> None:
        """`weights`: directory of the versions; `base`: the model that the stage started from."""
        self._weights = weights
        self._root = weights / VERSIONS
        self._base = base
        self._probes = ProbeWriter()
        self._version = ""
        self._is_repeated = False

    async def publish(self, group: TrainerGroup, version: str, *, overlapped: bool = False) -> AdapterUpdate:
        """Write the adapter."""
        self._is_repeated, self._version = version == self._version, version
        version_id = version_store.new_id()
        folder = version_store.version_folder(self._root, version_store.next_number(self._root), version_id)
        manifest = await asyncio.to_thread(group.publish_adapter, folder, version=version, version_id=version_id)
        log.info("weights of %s: adapter of %d bytes", version, manifest.bytes)
        has_adapter = not await asyncio.to_thread(is_zero, folder)
        probe = await self._probes.probe(group, has_adapter=has_adapter, overlapped=overlapped)
        order = AdapterOrder(
            folder=str(folder.absolute()),
            version=version,
            version_id=version_id,
            adapter=group.adapter,
        )
        return AdapterUpdate(self._base, order, probe)

    def prune(self, loaded: WeightUpdate) -> None:
        """Delete the versions before those that the engines have, and the model folders of other stages."""
        assert isinstance(loaded, AdapterUpdate)
        version_store.prune(self._root, chain=[Path(loaded.order.folder)])
        _remove_folders(self._weights)

    def restart(self) -> bool:
        """Let the next version be the same one in other files. Returns False if the last one was already."""
        return not self._is_repeated


def _remove_folders(weights: Path) -> None:
    """Delete the model folders of a transport that wrote whole models."""
    for path in weights.iterdir():
        if path.is_dir() and path.name != VERSIONS:
            shutil.rmtree(path, ignore_errors=True)


def make_transport(rollout: RolloutSpec, *, weights: Path, dtype: str) -> WeightTransport:
    """Return the transport of a job.

    Args:
        rollout: the job's engines.
        weights: directory of the versions, which the engines can read.
        dtype: number format of the versions.
    """
    name, reason = choose_transport(rollout.weight_transport, dtype=dtype)
    log.info("weight transport %s: %s", name, reason)
    probes = ProbeWriter() if rollout.weight_probe else None
    if name == "Folder":
        return FolderTransport(weights, probes=probes)
    delta = DeltaTransport(weights, snapshot_every=rollout.weight_snapshot_every, probes=probes)
    if name == "Delta":
        return delta
    log.warning("weight transport Collective is experimental: it never ran on GPUs (NCCL, RCCL)")
    return CollectiveTransport(delta, phase_seconds=min(PHASE_SECONDS, rollout.weight_timeout_seconds))


def choose_transport(wanted: WeightTransportName, *, dtype: str) -> tuple[WeightTransportName, str]:
    """Return the transport of a job, and the reason of the choice; `dtype`: that of the versions."""
    if wanted != "Auto":
        return wanted, "set by spec.rollout.weightTransport"
    if dtype == "float32":
        return "Folder", "every float32 weight changes in each step, so a delta would be as large as the model"
    return "Delta", f"about 1 % of {dtype} weights change per step, and any shared file system can carry deltas"
