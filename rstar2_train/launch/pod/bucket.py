"""The bucket of `spec.storage.url`, as the pods of a job use it. The pod's disk is a cache, and starts empty.

    open: claim the publications (a pod of a replaced attempt cannot), restore the newest state, provide the sources
    publish: the first state, before any work     follow: a publication after each commit point     finish: the last one

A job with a claim has no bucket: `open` notes in its folder, if it came from one, that it has another owner now.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TypeVar

from rstar2_train.api.contracts import MESSAGE_LENGTH, Reason, StageFailed
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.state_dir import JobState
from rstar2_train.launch.state_upload import DEFAULT_TIMES, StateUpload, UploadTimes, open_upload
from rstar2_train.storage.job_state import StageDone, Wanted, fetch_newest, leave_bucket, published_outcome
from rstar2_train.storage.manifest import PodStart
from rstar2_train.storage.publication import Fenced
from rstar2_train.storage.retries import PATIENCE_SECONDS, Retries
from rstar2_train.storage.source import open_store
from rstar2_train.storage.state_files import is_checkpoint, is_model, is_shard
from rstar2_train.storage.store import ObjectStore, StorageError, StorageUnavailable
from rstar2_train.utils.disk import DISK_FULL, DiskRefused
from rstar2_train.utils.supervisor import ChildFailed

log = logging.getLogger(__name__)

UNREACHABLE = "storage"
"""Name of the bucket in `Progress.unreachable`."""
_ADVICE = "A new attempt continues from the newest state in the bucket"
_MAX_CHARACTERS = 500
"""Characters of the server's words in a progress report."""

Result = TypeVar("Result")


class PodBucket:
    """The bucket of one pod. Not thread-safe."""

    def __init__(
        self,
        job: AgenticRLJob,
        state: JobState,
        start: PodStart,
        *,
        start_seconds: float = PATIENCE_SECONDS,
        times: UploadTimes = DEFAULT_TIMES,
    ) -> None:
        """`start_seconds`: of the retries before the work starts."""
        self._job = job
        self._state = state
        self._start = start
        self._seconds = start_seconds
        self._times = times
        self._upload: StateUpload | None = None
        self._following: asyncio.Task[None] | None = None
        self.fenced = ""
        """Why this pod may not publish any more; empty if it may."""

    def outage(self) -> dict[str, str]:
        """Return the server's words about the last failed upload, for the progress; empty if the last one succeeded."""
        message = self._upload.unavailable if self._upload is not None else ""
        return {UNREACHABLE: message[:_MAX_CHARACTERS]} if message else {}

    def open(self, stopped: Callable[[], bool] = lambda: False) -> bool:
        """Claim the bucket and restore the newest state; return whether this pod may publish.

        It may not if the stage has ended already: the state is restored then too. `stopped`: whether the pod must stop.
        Raises StageFailed if the bucket does not answer or cannot be used, Fenced if a later pod has started.
        """
        if self._job.spec.storage.url is None:
            self._retried(lambda: leave_bucket(self._state), stopped)
            return False
        self._state.root.mkdir(parents=True, exist_ok=True)
        try:
            self._upload = self._retried(self._open, stopped)
        except StageDone as done:
            log.info("%s", done)
            self.restore(stopped)
        return self._upload is not None

    def restore(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Restore the newest state without checkpoints, and without a claim. Raises StageFailed."""
        self._state.root.mkdir(parents=True, exist_ok=True)
        self._retried(lambda: fetch_newest(self._store(), self._state, checkpoints=False), stopped)

    def publish(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Publish the state now, so that missing rights are a failure before any work. Raises StageFailed, Fenced."""
        if self._upload is not None:
            self._retried(self._upload.check, stopped)

    def follow(self) -> None:
        """Publish in the background after each commit point."""
        if self._upload is not None:
            self._following = asyncio.create_task(self._upload.follow(self._stop))

    async def finish(self) -> str:
        """Publish the last state; return why that failed, an empty text if it did not. Sets `fenced`."""
        if self._upload is None:
            return ""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        failure = await asyncio.to_thread(self._upload.finish)
        self.fenced = self._upload.fenced
        return failure

    def _open(self) -> StateUpload:
        return open_upload(
            self._job,
            self._state,
            warn=lambda message: log.warning("%s", message),
            advice=_ADVICE,
            start=self._start,
            wanted=self._wanted(),
            on_demand=lambda name: is_shard(name) and self._has_hosts(),
            times=self._times,
        )

    def _store(self) -> ObjectStore:
        return open_store(self._job.spec.storage, self._job.metadata.name, patience=self._times.request)

    def _wanted(self) -> Wanted:
        """Return which files this pod needs: of checkpoints, those of its stage, and the one that it starts from. The
        report needs no models either."""
        if self._start.program == "report":
            return lambda name: not is_checkpoint(name) and not is_model(name)
        stage = None if self._start.stage is None else self._job.stage(self._start.stage)
        folders = []
        if stage is not None and stage.learns:
            folders.append(self._state.stage(stage.name).checkpoints.relative_to(self._state.root).as_posix())
            source = self._job.trained_before(stage)
            outcome = None if source is None else published_outcome(self._store(), self._state, source.name)
            if outcome is not None and outcome.checkpoint is not None:
                folders.append(outcome.checkpoint.path)
        return lambda name: not is_checkpoint(name) or name.startswith(tuple(f"{folder}/" for folder in folders))

    def _has_hosts(self) -> bool:
        """Return whether ranks run in other pods too: each host then reads its shards from the bucket."""
        stage = self._start.stage
        return stage is not None and self._job.replicas(self._job.stage(stage)) > 1

    def _stop(self, error: ChildFailed) -> None:
        self.fenced = str(error)

    def _retried(self, operation: Callable[[], Result], stopped: Callable[[], bool]) -> Result:
        """Return the result of an operation, repeated while the bucket does not answer."""

        def sleep(seconds: float) -> None:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                if stopped():
                    raise StageFailed("StorageUnavailable", "stopped before the bucket had answered", retryable=True)
                time.sleep(min(0.2, seconds))

        try:
            return Retries(patience=self._seconds, first_delay=1.0, sleep=sleep).run(operation)
        except (Fenced, StageDone):
            raise
        except StorageUnavailable as error:
            raise StageFailed("StorageUnavailable", _message(error), retryable=True) from error
        except StorageError as error:
            raise StageFailed("BadConfiguration", _message(error), retryable=False) from error
        except DiskRefused as error:
            raise disk_failure(error, self._job) from error


def disk_failure(error: DiskRefused, job: AgenticRLJob) -> StageFailed:
    """Return the failure of a pod whose disk is full or read-only."""
    reason: Reason = "StorageFull" if error.errno in DISK_FULL else "BadConfiguration"
    return StageFailed(reason, f"{error}. {disk_remedy(job)}.", retryable=False)


def disk_remedy(job: AgenticRLJob) -> str:
    """Return what gives the pods of a job a larger disk."""
    if job.spec.storage.url is None:
        return "Free some space in the claim, or enlarge it"
    return "The disk is a cache: raise spec.storage.size, or select nodes with a larger disk"


def _message(error: StorageError) -> str:
    return f"spec.storage.url: {error}"[:MESSAGE_LENGTH]
