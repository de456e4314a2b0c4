"""The weight versions of a stage's engines: published by the trainer's ranks, loaded by the engines.

The engines' part is `inference/pool.py`, the ranks' part `weight_transports.py`. Engines without a common disk with the
trainer get the files by `shared_weights.py`.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from rstar2_train.api.contracts import StageFailed
from rstar2_train.inference.engine_errors import EngineRejected, EngineUnavailable
from rstar2_train.inference.pool import EnginePool
from rstar2_train.inference.weight_update import FolderUpdate, PendingProbe, WeightUpdate
from rstar2_train.orchestrator.context import StageContext
from rstar2_train.orchestrator.initial_policy import step_version
from rstar2_train.orchestrator.shared_weights import SharedWeights
from rstar2_train.orchestrator.weight_transports import (
    AdapterTransport,
    FolderTransport,
    WeightTransport,
    make_transport,
)
from rstar2_train.trainer.trainer_group import TrainerGroup
from rstar2_train.weights import version_store

log = logging.getLogger(__name__)


class EngineWeights:
    """The weights of the engines of one stage attempt."""

    def __init__(self, ctx: StageContext, pool: EnginePool) -> None:
        self._ctx = ctx
        self._pool = pool
        self._transport: WeightTransport | None = None
        self._exported: WeightUpdate | None = None
        self._lora = ctx.job.lora(ctx.stage)
        self._attempt_id = version_store.new_id()
        self._shared = SharedWeights(ctx) if ctx.endpoints.bucket else None

    async def push(self, group: TrainerGroup, version: str) -> None:
        """Publish the trainer's weights and load them into the engines as `version`. Raises as `push_folder` does.

        If the engines reject a delta, such as a torn file, a snapshot of the same version follows; a rejected adapter
        is written once more.
        """
        transport, device = self._transport_of(group), self._ctx.device
        await device.to_trainer()
        update = await transport.publish(group, version, overlapped=not device.enabled)
        await device.to_engines()
        try:
            await self._load_probed(update)
        except EngineRejected as error:
            if not transport.restart():
                raise _stage_failure(error) from error
            log.warning("%s; writing the version again", error)
            await device.to_trainer()
            update = await transport.publish(group, version)
            await self._load(update)
        except EngineUnavailable as error:
            raise _stage_failure(error) from error
        await self._prune(transport, update)

    async def export(self, group: TrainerGroup, version: str) -> None:
        """Publish the trainer's weights as `version`, for `load_exported`. Raises StageFailed if the disk is full."""
        self._exported = await self._transport_of(group).publish(group, version)

    async def load_exported(self) -> bool:
        """Load the last exported version into the engines; the rollouts in flight continue with its weights.

        Return False if the engines reject a delta: the next exported version is then a snapshot. Raises as
        `push_folder` does.
        """
        update = self._exported
        assert update is not None
        assert self._transport is not None
        try:
            await self._load_into_engines(update, keep_requests=True)
        except EngineRejected as error:
            if not self._transport.restart():
                raise _stage_failure(error) from error
            log.warning("%s; writing the version again", error)
            return False
        except EngineUnavailable as error:
            raise _stage_failure(error) from error
        await self._prune(self._transport, update)
        return True

    async def push_folder(self, folder: Path, version: str) -> None:
        """Load the model in `folder` into the engines as `version`; on return at least one engine has confirmed it.

        An engine of another project has loaded its model already, whose name is the version. Raises SuspendRequested
        on a stop request, StageFailed when no engine is available or the model is rejected.
        """
        await self._load(self._folder_update(folder, self._ctx.endpoints.served_model or version))

    async def _load(self, update: WeightUpdate) -> None:
        await self._ctx.device.to_engines()
        try:
            await self._load_into_engines(update)
        except (EngineUnavailable, EngineRejected) as error:
            raise _stage_failure(error) from error

    async def _load_probed(self, update: WeightUpdate) -> None:
        """Load a version whose probe the ranks may still score; on return or error they are idle."""
        probe = update.probe
        if not isinstance(probe, PendingProbe):
            await self._load_into_engines(update)
            return
        loading = asyncio.create_task(self._load_into_engines(update))
        try:
            await asyncio.gather(loading, probe.result())
        finally:
            loading.cancel()
            await asyncio.gather(loading, probe.settle(), return_exceptions=True)

    async def _load_into_engines(self, update: WeightUpdate, *, keep_requests: bool = False) -> None:
        """Load a version into the engines, through the bucket if they have no common disk with the trainer."""
        if self._shared is not None:
            update = await self._ctx.unless_stopped(self._shared.share(update))
        await self._ctx.unless_stopped(self._pool.push(update, keep_requests=keep_requests))

    async def _prune(self, transport: WeightTransport, loaded: WeightUpdate) -> None:
        await asyncio.to_thread(transport.prune, loaded)
        if self._shared is not None:
            await self._shared.prune(loaded)

    async def close(self) -> None:
        """Delete the weights in the bucket, which no engine reads after the stage."""
        if self._shared is not None:
            await self._shared.close()

    def _transport_of(self, group: TrainerGroup) -> WeightTransport:
        """Return the job's transport; the first call creates it."""
        if self._transport is None:
            self._transport = self._make_transport(group)
        return self._transport

    def _make_transport(self, group: TrainerGroup) -> WeightTransport:
        rollout = self._ctx.job.spec.rollout
        if self._lora is not None:
            base = self._folder_update(group.model_dir, step_version(self._ctx.stage, 0))
            return AdapterTransport(self._ctx.state.weights, base=base)
        if rollout.weight_transport == "Folder" and not rollout.weight_probe:
            return FolderTransport(self._ctx.state.weights, probes=None)
        return make_transport(rollout, weights=self._ctx.state.weights, dtype=group.version_dtype)

    def _folder_update(self, folder: Path, version: str) -> FolderUpdate:
        """Return the update to a model folder. As the base of adapters its name is that of the folder in this attempt:
        an earlier attempt may have had other files in the folder."""
        name = f"{self._attempt_id} {folder.absolute()}" if self._lora is not None else ""
        return FolderUpdate.make(folder, version, base_name=name)


def _stage_failure(error: EngineUnavailable | EngineRejected) -> StageFailed:
    """Return the failure of a stage whose engines do not take new weights."""
    if isinstance(error, EngineRejected):
        return StageFailed("BadConfiguration", str(error), retryable=False)
    return StageFailed("EngineUnavailable", str(error), retryable=True)
