"""An engine without a common disk with the trainer: its model and its weight versions are copies from the job's bucket.

`server.py` fetches the model before vLLM starts (`fetch_model`). Then `generate_route.py` copies the folders of each
version (`FolderCopies`), by the entries that the trainer has published. Nothing else of the bucket is read, and nothing
is written.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.sources import BUCKETS, split_bucket
from rstar2_train.api.state_dir import ENGINE_WEIGHTS, JobState
from rstar2_train.storage.manifest import IndexEntry
from rstar2_train.storage.retries import PATIENCE_SECONDS
from rstar2_train.storage.store import ObjectMissing, StorageError, StorageUnavailable

JOB, STATE = "RSTAR2_BUCKET_JOB", "RSTAR2_BUCKET_STATE"
"""Variables of an engine's process: its job file, and the folder of its copies."""


def cache_environment(job_file: Path, state: Path) -> dict[str, str]:
    """Return the variables of an engine that reads from the bucket."""
    return {JOB: str(job_file.absolute()), STATE: str(state.absolute())}


def fetch_model(job: AgenticRLJob, source: str, model: Path, state: Path) -> None:
    """Bring the engine's first model to this disk, unless it is in the image or in a claim.

    A model that the preparation has generated, or downloaded from the Hub, is a part of the state in the bucket. One of
    another bucket is downloaded from there, and compared with the digests of the preparation's download. `source`: the
    model's source in the manifest; `state`: folder of the copies, in which `model` is then. Raises StorageError,
    OSError.
    """
    from rstar2_train.storage.job_state import fetch_part
    from rstar2_train.storage.source import fetch_source, open_source, open_store

    if not model.is_relative_to(state):
        return
    store = open_store(job.spec.storage, job.metadata.name, patience=PATIENCE_SECONDS)
    if not source.startswith(BUCKETS):
        below = model.relative_to(state).as_posix()
        if not fetch_part(store, state, wanted=lambda name: name.startswith(f"{below}/")):
            raise ObjectMissing(f"{store.address}: the newest state of the job has no files below {below}")
        return
    place = split_bucket(source)
    folder = place.folder(PurePosixPath("."))
    fetch_part(store, state, wanted=lambda name: name.startswith(f"{folder}/"))
    bucket = open_source(place, job.spec.storage, patience=PATIENCE_SECONDS)
    fetch_source(bucket, place.key, state / folder, is_plain=bucket.is_plain)


class FolderCopies:
    """The copies of published folders for one engine. Created by the server, in whose environment the settings are."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        """Read the settings; no request is sent. Raises StorageError for settings that no server can have."""
        self._cache = None
        if JOB in environ:
            from rstar2_train.storage.folders import FolderCache
            from rstar2_train.storage.source import open_store

            job = AgenticRLJob.model_validate_json(Path(environ[JOB]).read_text(encoding="utf-8"))
            name = f"{job.metadata.name}/{ENGINE_WEIGHTS}"
            store = open_store(job.spec.storage, name, patience=PATIENCE_SECONDS, environ=environ)
            self._cache = FolderCache(store, JobState(Path(environ[STATE])).weights)

    def reply(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Copy the folders of a request, and return the body of the reply: their paths, or the reason of a failure.

        `retry`: whether the same request can succeed later. Raises ValueError for an invalid request.
        """
        entries = [IndexEntry.model_validate(entry) for entry in fields["folders"]]
        if self._cache is None:
            return _refusal("the engine was started without --bucket, so it reads no folders from a bucket")
        started = time.monotonic()
        try:
            folders = self._cache.copies(entries)
        except StorageError as error:
            return _refusal(str(error), retry=isinstance(error, StorageUnavailable))
        except OSError as error:  # such as a full disk
            return _refusal(f"the folders of the version cannot be written: {error}", retry=True)
        return {"ok": True, "folders": [str(folder) for folder in folders], "seconds": time.monotonic() - started}


def _refusal(reason: str, *, retry: bool = False) -> dict[str, Any]:
    return {"ok": False, "why": reason, "retry": retry}
