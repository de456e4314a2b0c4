"""The state of a job in the bucket of `spec.storage.url`, for `rstar2 run` and for the pods of a job.

    open_upload (at the start): claim, restore     check: a first publication, before anything starts
                                                   follow (during the work): a publication after each commit point
                                                   finish (at the end): the last publication, with retries

A commit point is what a restarted stage resumes from: a complete checkpoint, an outcome, a measurement. Training does
not wait for an upload; the next one has the newest state. If the bucket does not answer, the state stays in the folder.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.state_dir import JobState
from rstar2_train.storage.job_state import BucketState, Wanted
from rstar2_train.storage.manifest import PodStart
from rstar2_train.storage.probe import require_conditions
from rstar2_train.storage.publication import Fenced
from rstar2_train.storage.retries import PATIENCE_SECONDS, Outage
from rstar2_train.storage.source import open_store
from rstar2_train.storage.store import StorageError
from rstar2_train.trainer.checkpoint import list_checkpoints
from rstar2_train.utils.disk import DiskRefused
from rstar2_train.utils.supervisor import ChildFailed


@dataclass(frozen=True, slots=True)
class UploadTimes:
    """Intervals and bounds of the uploads, in seconds."""

    request: float = 20.0
    """For the retries of one request. After it, the bucket is reported as unavailable."""
    poll: float = 1.0
    """Between two looks for a commit point."""
    interval: float = 300.0
    """After which the state is published without a commit point, with the rollouts and samples since the last one."""
    longest_wait: float = 60.0
    """Between two tries, if the bucket does not answer."""
    finish: float = PATIENCE_SECONDS
    """For an outage during the last publication of a run."""


DEFAULT_TIMES = UploadTimes()


def open_upload(
    job: AgenticRLJob,
    state: JobState,
    *,
    warn: Callable[[str], None],
    advice: str,
    start: PodStart | None = None,
    wanted: Wanted | None = None,
    on_demand: Wanted = lambda _: False,
    times: UploadTimes = DEFAULT_TIMES,
) -> StateUpload:
    """Claim the bucket of a job and restore its newest state into the folder, which no other process uses.

    `start`: the pod of a cluster; `wanted`, `on_demand`: as of `BucketState.open`; `advice`: what a person can do about
    a state that was not uploaded. Raises StorageError, OSError.
    """
    store = open_store(job.spec.storage, job.metadata.name, patience=times.request)
    require_conditions(store)
    bucket = BucketState(store, state)
    if bucket.open(start, wanted=wanted, on_demand=on_demand):
        warn(f"The state of the job was restored from {bucket.address}.")
    return StateUpload(bucket, job, state, warn=warn, advice=advice, times=times)


class StateUpload:
    """The publications of one run, or of one pod."""

    def __init__(
        self,
        bucket: BucketState,
        job: AgenticRLJob,
        state: JobState,
        *,
        warn: Callable[[str], None],
        advice: str,
        times: UploadTimes = DEFAULT_TIMES,
    ) -> None:
        """`bucket`: open. `warn`: prints a line for the user. `advice`: see `open_upload`."""
        self._bucket = bucket
        self._state = state
        self._stages = [state.stage(stage.name) for stage in job.spec.stages]
        self._warn = warn
        self._advice = advice
        self._times = times
        self._lock = threading.Lock()
        """Held by a publication: that of a cancelled `follow` may still run."""
        self._published: list[tuple[str, int]] = []
        """Commit points of the last publication."""
        self.unavailable = ""
        """Why the last upload failed; an empty text if it did not."""
        self.fenced = ""
        """Why this run may not publish any more; empty if it may."""

    def check(self) -> None:
        """Publish the state before anything starts. Raises StorageError, OSError."""
        points = self._commit_points()
        self._bucket.publish()
        self._published = points

    async def follow(self, fail: Callable[[ChildFailed], None]) -> None:
        """Publish after each commit point, until cancelled. `fail`: called if another start has claimed the bucket."""
        wait, last = self._times.poll, time.monotonic()
        while True:
            await asyncio.sleep(wait)
            if self._commit_points() == self._published and time.monotonic() - last < self._times.interval:
                continue
            if await asyncio.to_thread(self._publish):
                wait, last = self._times.poll, time.monotonic()
            elif self.fenced:
                fail(ChildFailed(self.fenced))
                return
            else:
                wait = min(2 * wait, self._times.longest_wait)

    def finish(self) -> str:
        """Publish the end of the run; return why it failed, an empty text if it did not.

        Repeated until the bucket has not answered for some minutes. Ctrl-C stops the repetition.
        """
        outage, wait = Outage(), self._times.poll
        try:
            while not self.fenced:
                if self._publish():
                    return ""
                if outage.fail() >= self._times.finish:
                    break
                time.sleep(wait)
                wait = min(2 * wait, self._times.longest_wait)
        except KeyboardInterrupt:
            self.unavailable = self.unavailable or "stopped before the upload was complete"
        return self.fenced or (
            f"{self._bucket.address} does not have the last state of the job ({self.unavailable}). {self._advice}"
        )

    def health(self) -> dict[str, str]:
        """Return the state of the bucket for the terminal view."""
        return {"bucket": "StorageUnavailable" if self.unavailable else "ready"}

    def _publish(self) -> bool:
        """Publish the state; return whether that succeeded. Prints when the bucket fails and when it works again."""
        with self._lock:
            return self._try_publish()

    def _try_publish(self) -> bool:
        points = self._commit_points()
        try:
            self._bucket.publish()
        except Fenced as error:
            self.fenced = f"{error}: the job was started again, here or on another machine. This run publishes nothing"
            return False
        except Exception as error:  # also a defect: training continues, and a person must know of it
            is_known = isinstance(error, StorageError | OSError)
            reason = str(error) if is_known else f"{type(error).__name__}: {error}"
            if not self.unavailable:
                kind = "The state is not published" if isinstance(error, DiskRefused) else "StorageUnavailable"
                self._warn(f"{kind}: {reason}. Training continues; the state is in {self._state.root}.")
            self.unavailable = reason
            return False
        if self.unavailable:
            self._warn(f"{self._bucket.address} has the state of the job again.")
        self.unavailable, self._published = "", points
        return True

    def _commit_points(self) -> list[tuple[str, int]]:
        """Return the files that a restarted stage resumes from, with their versions."""
        points = []
        for stage in self._stages:
            points += [(str(path), 0) for _, path in list_checkpoints(stage.checkpoints)]
            for file in (stage.attempt_file, stage.outcome_file, stage.evaluation_file, stage.kept_file):
                points += [(str(file), file.stat().st_mtime_ns)] if file.exists() else []
        return points
