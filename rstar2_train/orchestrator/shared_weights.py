"""The weights for engines that have no common disk with the trainer: below a prefix of their own in the job's bucket.

Before each push the folders of the update are published there; the engines copy them. In the pipeline with staleness
this is a part of the load, so the ranks train meanwhile. If the bucket does not answer, the push waits.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from rstar2_train.api.state_dir import ENGINE_WEIGHTS
from rstar2_train.inference.weight_update import BucketUpdate, FileUpdate, WeightUpdate
from rstar2_train.orchestrator.context import StageContext
from rstar2_train.storage.folders import FolderPublisher, JobClaim
from rstar2_train.storage.pod_starts import launch_start
from rstar2_train.storage.retries import PATIENCE_SECONDS, Outage
from rstar2_train.storage.source import open_store
from rstar2_train.storage.stage_failure import stage_failure
from rstar2_train.storage.store import StorageError, StorageUnavailable

log = logging.getLogger(__name__)

REQUEST_SECONDS = 20.0
"""How long one request is repeated, until the bucket is reported as unreachable."""
LONGEST_WAIT = 15.0
ROLE = "storage"
"""Name of the bucket in `Progress.unreachable`."""
_FAILURE = "the weights cannot be written to"

Result = TypeVar("Result")


class _NotNeeded(Exception):
    """The caller of an upload was cancelled."""


class SharedWeights:
    """The published folders of one stage attempt."""

    def __init__(self, ctx: StageContext, *, patience: float = PATIENCE_SECONDS) -> None:
        """No request is sent. `patience`: seconds of an outage."""
        self._ctx = ctx
        self._patience = patience
        name = ctx.job.metadata.name
        store = open_store(ctx.job.spec.storage, f"{name}/{ENGINE_WEIGHTS}", patience=REQUEST_SECONDS)
        job = open_store(ctx.job.spec.storage, name, patience=REQUEST_SECONDS)
        self._address = store.address
        self._publisher = FolderPublisher(store, JobClaim(job, launch_start(ctx.job, ctx.stage.name, ctx.attempt)))
        self._loaded: list[list[Path]] = []
        """Folders of the last versions that the engines have loaded, the newest last."""

    async def share(self, update: WeightUpdate) -> BucketUpdate:
        """Publish the folders of an update; return the update that engines can load. Raises StageFailed.

        After a cancellation the upload of the current file ends in its thread, and no other file follows.
        """
        assert isinstance(update, FileUpdate), "validation refuses weightTransport Collective with a bucket"
        started, outage, cancelled = time.monotonic(), Outage(), threading.Event()

        def uploaded() -> None:
            outage.end()
            if cancelled.is_set():
                raise _NotNeeded

        publish = partial(self._publisher.publish, uploaded=uploaded)
        try:
            published = {folder: await self._retried(partial(publish, folder), outage) for folder in update.folders}
        finally:
            cancelled.set()
        log.info("weights of %s: in the bucket after %.1f s", update.version, time.monotonic() - started)
        return BucketUpdate(update, published)

    async def prune(self, loaded: WeightUpdate) -> None:
        """Delete what neither this version nor the one before it needs. Call it when the engines have loaded it."""
        assert isinstance(loaded, FileUpdate)
        self._loaded = [*self._loaded, loaded.folders][-2:]
        await self._retain({folder for folders in self._loaded for folder in folders})

    async def close(self) -> None:
        """Delete all weights: the next stage publishes those that its engines need."""
        await self._retain(set())

    async def _retain(self, folders: set[Path]) -> None:
        try:
            await asyncio.to_thread(self._publisher.retain, folders)
        except StorageError as error:  # the next prune, or the next attempt, deletes them
            log.warning("weights that no engine needs stay in the bucket for now: %s", error)

    async def _retried(self, operation: Callable[[], Result], outage: Outage) -> Result:
        """Return the result of an operation, repeated while the bucket does not answer. Raises StageFailed."""
        wait, is_down = 1.0, False
        try:
            while True:
                try:
                    result = await asyncio.to_thread(operation)
                except StorageUnavailable as error:
                    if outage.fail() >= self._patience:
                        raise stage_failure(error, _FAILURE) from error
                    log.warning("StorageUnavailable: %s. The engines wait for their weights", error)
                    self._ctx.report_unreachable(ROLE, str(error))
                    is_down = True
                    await asyncio.sleep(wait)
                    wait = min(2 * wait, LONGEST_WAIT)
                except StorageError as error:
                    raise stage_failure(error, _FAILURE) from error
                else:
                    outage.end()
                    if is_down:
                        log.info("%s works again", self._address)
                    return result
        finally:
            if is_down:  # also after a cancellation: no later request would end the report
                self._ctx.report_unreachable(ROLE, None)
