"""The state of `rstar2 run` in the bucket of `spec.storage.url`.

    open_upload (before a run): claim, restore     follow (during it): a publication after each commit point
                                                   finish (after it): the last publication, with retries

A commit point is what a restarted stage resumes from: a complete checkpoint, an outcome, a measurement. Training does
not wait for an upload; the next one has the newest state. If the bucket does not answer, the state stays in the folder.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.state_dir import JobState
from rstar2_train.launch.local.preflight import PreflightError
from rstar2_train.storage.job_state import BucketState, fetch_newest, read_origin
from rstar2_train.storage.publication import Fenced
from rstar2_train.storage.source import open_store
from rstar2_train.storage.store import AccessDenied, StorageError
from rstar2_train.trainer.checkpoint import list_checkpoints
from rstar2_train.utils.supervisor import ChildFailed, stop_leftovers


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
    finish: float = 600.0
    """For the last publication of a run."""


DEFAULT_TIMES = UploadTimes()


def open_upload(
    job: AgenticRLJob, state: JobState, *, warn: Callable[[str], None], times: UploadTimes = DEFAULT_TIMES
) -> StateUpload | None:
    """Claim the bucket of a job and restore its newest state; None without spec.storage.url.

    The folder is locked by the caller. Raises PreflightError.
    """
    try:
        if job.spec.storage.url is None:
            if (origin := read_origin(state)) is not None and not origin.writer:
                raise PreflightError(
                    f"error: {state.root} was not restored completely from {origin.address}: set spec.storage.url, or "
                    "delete the folder"
                )
            return None
        stop_leftovers(state.children_file)  # an orchestrator of a killed run writes into the folder
        store = open_store(job.spec.storage, job.metadata.name, patience=times.request)
        bucket = BucketState(store, state)
        if bucket.open():
            warn(f"The state of the job was restored from {bucket.address}.")
        return StateUpload(bucket, job, state, warn=warn, times=times)
    except (StorageError, OSError) as error:
        raise _preflight_error(error) from error


def fetch_state(job: AgenticRLJob, state: JobState) -> str:
    """Bring a folder to the newest state in the bucket of a job; return a message about it. Raises PreflightError."""
    if job.spec.storage.url is None:
        raise PreflightError("error: spec.storage.url is not set: the state of the job is only in its folder or claim")
    try:
        store = open_store(job.spec.storage, job.metadata.name, patience=DEFAULT_TIMES.request)
        fetched = fetch_newest(store, state)
    except (StorageError, OSError) as error:
        raise _preflight_error(error) from error
    return f"downloaded from {store.address}" if fetched else f"has the newest state of {store.address}"


class StateUpload:
    """The publications of one run."""

    def __init__(
        self,
        bucket: BucketState,
        job: AgenticRLJob,
        state: JobState,
        *,
        warn: Callable[[str], None],
        times: UploadTimes = DEFAULT_TIMES,
    ) -> None:
        """`bucket`: open. `warn`: prints a line for the user."""
        self._bucket = bucket
        self._state = state
        self._stages = [state.stage(stage.name) for stage in job.spec.stages]
        self._warn = warn
        self._times = times
        self._published: list[tuple[str, int]] = []
        """Commit points of the last publication."""
        self._unavailable = ""
        self._fenced = ""

    def check(self) -> None:
        """Publish the state before anything starts. Raises PreflightError if that fails."""
        points = self._commit_points()
        try:
            self._bucket.publish()
        except (StorageError, OSError) as error:
            raise _preflight_error(error) from error
        self._published = points

    async def follow(self, fail: Callable[[ChildFailed], None]) -> None:
        """Publish after each commit point, until cancelled. `fail`: called if another run has claimed the bucket."""
        wait, last = self._times.poll, time.monotonic()
        while True:
            await asyncio.sleep(wait)
            if self._commit_points() == self._published and time.monotonic() - last < self._times.interval:
                continue
            if await asyncio.to_thread(self._publish):
                wait, last = self._times.poll, time.monotonic()
            elif self._fenced:
                fail(ChildFailed(self._fenced))
                return
            else:
                wait = min(2 * wait, self._times.longest_wait)

    def finish(self) -> str:
        """Publish the end of the run; return why it failed, an empty text if it did not.

        Repeated for some minutes. Ctrl-C stops the repetition.
        """
        deadline, wait = time.monotonic() + self._times.finish, self._times.poll
        try:
            while not self._fenced:
                if self._publish():
                    return ""
                if time.monotonic() > deadline:
                    break
                time.sleep(wait)
                wait = min(2 * wait, self._times.longest_wait)
        except KeyboardInterrupt:
            self._unavailable = self._unavailable or "stopped before the upload was complete"
        return self._fenced or (
            f"{self._bucket.address} does not have the last state of the job ({self._unavailable}). It is in "
            f"{self._state.root}: run the same command again to publish it"
        )

    def health(self) -> dict[str, str]:
        """Return the state of the bucket for the terminal view."""
        return {"bucket": "StorageUnavailable" if self._unavailable else "ready"}

    def _publish(self) -> bool:
        """Publish the state; return whether that succeeded. Prints when the bucket fails and when it works again."""
        points = self._commit_points()
        try:
            self._bucket.publish()
        except Fenced as error:
            self._fenced = f"{error}: the job was started again, here or on another machine. This run publishes nothing"
            return False
        except (StorageError, OSError) as error:
            if not self._unavailable:
                self._warn(f"StorageUnavailable: {error}. Training continues; the state is in {self._state.root}.")
            self._unavailable = str(error)
            return False
        if self._unavailable:
            self._warn(f"{self._bucket.address} works again and has the state of the job.")
        self._unavailable, self._published = "", points
        return True

    def _commit_points(self) -> list[tuple[str, int]]:
        """Return the files that a restarted stage resumes from, with their versions."""
        points = []
        for stage in self._stages:
            points += [(str(path), 0) for _, path in list_checkpoints(stage.checkpoints)]
            for file in (stage.attempt_file, stage.outcome_file, stage.evaluation_file, stage.kept_file):
                points += [(str(file), file.stat().st_mtime_ns)] if file.exists() else []
        return points


def _preflight_error(error: Exception) -> PreflightError:
    advice = ""
    if isinstance(error, AccessDenied):
        advice = ". The variables of the environment need credentials with the right to read, write, list and delete"
    return PreflightError(f"error: spec.storage.url: {error}{advice}")
