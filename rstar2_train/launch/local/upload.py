"""The bucket of `spec.storage.url` for `rstar2 run`, `fetch` and `publish`: faults are errors before any work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.state_dir import JobState
from rstar2_train.launch import state_upload
from rstar2_train.launch.local.preflight import PreflightError, locked, read_job
from rstar2_train.launch.state_upload import DEFAULT_TIMES, StateUpload
from rstar2_train.storage.job_state import BucketState, fetch_newest, fetch_part, is_ahead, leave_bucket
from rstar2_train.storage.probe import require_conditions
from rstar2_train.storage.retries import PATIENCE_SECONDS
from rstar2_train.storage.source import open_store
from rstar2_train.storage.state_files import is_record
from rstar2_train.storage.store import AccessDenied, ObjectStore, StorageError
from rstar2_train.storage.verified_read import read_index
from rstar2_train.utils.disk import DiskRefused, named_disk
from rstar2_train.utils.leftovers import stop_leftovers
from rstar2_train.utils.text import reason


def open_upload(job: AgenticRLJob, state: JobState, *, warn: Callable[[str], None]) -> StateUpload | None:
    """Claim the bucket of a job and restore its newest state; None without spec.storage.url.

    The folder is locked by the caller. Raises PreflightError.
    """
    try:
        if job.spec.storage.url is None:
            leave_bucket(state)
            return None
        with named_disk(state.root):
            stop_leftovers(state.children_file)  # an orchestrator of a killed run writes into the folder
        advice = f"It is in {state.root}: run the same command again to publish it"
        return state_upload.open_upload(job, state, warn=warn, advice=advice)
    except (StorageError, OSError) as error:
        raise _preflight_error(error) from error


def check(upload: StateUpload | None) -> None:
    """Publish the state before anything starts; None: nothing. Raises PreflightError if that fails."""
    try:
        if upload is not None:
            upload.check()
    except (StorageError, OSError) as error:
        raise _preflight_error(error) from error


def fetch_state(job: AgenticRLJob, state: JobState, *, checkpoints: bool = True) -> str:
    """Bring a folder to the newest state in the bucket of a job; return a message about it. Raises PreflightError.

    `checkpoints`: whether to download them too.
    """
    try:
        store = _store_with_state(job)
        fetched = fetch_newest(store, state, checkpoints=checkpoints)
    except (StorageError, OSError) as error:
        raise _preflight_error(error) from error
    return f"downloaded from {store.address}" if fetched else f"has the newest state of {store.address}"


def fetched_state(manifest: Path, *, jobs: Path) -> JobState:
    """Return the state folder of a manifest's job, with its newest state in the bucket but for checkpoints.

    `jobs`: folder of the state of all jobs. Raises PreflightError.
    """
    job, _ = read_job(manifest)
    state = JobState((jobs / job.metadata.name).resolve())
    try:
        with locked(state):
            fetch_state(job, state, checkpoints=False)
    except OSError as error:
        raise PreflightError(f"{error.filename or state.root}: {reason(error)}") from error
    return state


def fetch_records(job: AgenticRLJob, root: Path) -> None:
    """Download the JSON records of the newest state in the bucket of a job into a folder. Raises PreflightError."""
    try:
        fetch_part(_store_with_state(job), root, wanted=is_record)
    except (StorageError, OSError) as error:
        raise _preflight_error(error) from error


def publish_state(job: AgenticRLJob, state: JobState) -> str:
    """Publish a folder, which no run and no pod uses, into the empty bucket of a job; return a message about it.

    Raises PreflightError, also if the bucket has a state that the folder is not ahead of.
    """
    if job.spec.storage.url is None:
        raise PreflightError("error: spec.storage.url is not set: the manifest names no bucket")
    if not state.job_file.exists():
        raise PreflightError(f"error: {state.root} has no state of a job: pass the folder above it with --state")
    try:
        store = _reachable_store(job)
        if not is_ahead(store, state):
            raise PreflightError(
                f"error: {store.address} has a state of this job that {state.root} does not continue: delete the "
                "objects, or download them by `rstar2 fetch`"
            )
        require_conditions(store)
        bucket = BucketState(store, state)
        bucket.open()
        bucket.publish()
    except (StorageError, OSError) as error:
        raise _preflight_error(error) from error
    return f"published in {store.address}"


def _store_with_state(job: AgenticRLJob) -> ObjectStore:
    if job.spec.storage.url is None:
        raise PreflightError(
            "error: spec.storage.url is not set, so no bucket has the state of the job. Pass its name, "
            f"{job.metadata.name}, in place of the manifest, to read its folder"
        )
    return _reachable_store(job)


def _reachable_store(job: AgenticRLJob) -> ObjectStore:
    """Return the store of a job. The first request is repeated only for seconds: the address may be wrong."""
    read_index(open_store(job.spec.storage, job.metadata.name, patience=DEFAULT_TIMES.request))
    return open_store(job.spec.storage, job.metadata.name, patience=PATIENCE_SECONDS)


def _preflight_error(error: Exception) -> PreflightError:
    if isinstance(error, DiskRefused):
        return PreflightError(f"error: {error}")
    advice = ""
    if isinstance(error, AccessDenied):
        advice = ". The variables of the environment need credentials with the right to read, write, list and delete"
    return PreflightError(f"error: spec.storage.url: {error}{advice}")
