"""The bucket of a job, as the processes on its other hosts use it: each host uploads the files that its ranks wrote.

    orchestrator: new_home ─> record of each host ─> host_objects.py     then each host: upload     a restore: download

Nothing is visible before pod 0 publishes a state that names the objects, which only the last claim can do.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rstar2_train.api.storage import StorageSpec
from rstar2_train.storage.folders import JobClaim
from rstar2_train.storage.host_objects import read_host_objects
from rstar2_train.storage.manifest import ObjectRecord, PodStart, PublishedObject, home
from rstar2_train.storage.publication import record
from rstar2_train.storage.retries import PATIENCE_SECONDS
from rstar2_train.storage.source import open_store
from rstar2_train.storage.store import ObjectStore
from rstar2_train.storage.verified_read import fetch


@dataclass(frozen=True, slots=True)
class HostBucket:
    """The bucket of one attempt. Travels to the hosts, whose credentials are in their own environment."""

    cache: Path
    """Folder of the job's files, which every host has on a disk of its own."""
    settings: StorageSpec
    job: str
    start: PodStart
    patience: float = PATIENCE_SECONDS
    """Seconds for the retries of one operation."""

    def new_home(self) -> str:
        """Return a new prefix for the objects of one checkpoint: no cleaning of other objects is about them.

        Raises Fenced if a later pod has claimed the state of the job, StorageError.
        """
        JobClaim(self._store(), self.start).check()
        return home(self.start.attempt, uuid.uuid4().hex)

    def upload(self, folder: Path, objects: Sequence[PublishedObject]) -> None:
        """Upload files of a folder. Raises StorageError, OSError."""
        store = self._store()
        for stored in objects:
            store.upload(stored.key, folder / stored.name)

    def download(self, folder: Path) -> None:
        """Download the files of a checkpoint that other hosts have uploaded, if they are missing here.

        Raises StorageError, OSError: DiskRefused if they do not fit on the disk.
        """
        if objects := read_host_objects(folder):
            fetch(self._store(), objects, folder)

    def _store(self) -> ObjectStore:
        return open_store(self.settings, self.job, patience=self.patience)


def record_files(folder: Path, names: Sequence[str]) -> list[ObjectRecord]:
    """Return names, sizes and digests of files of a folder. Raises OSError."""
    return [record(name, folder / name) for name in names]
