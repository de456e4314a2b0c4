"""The files of a job's state folder that a bucket holds, and a consistent copy of them while the job writes.

The rest belongs to one machine: locks, logs, Redis, and what is derived from published files, such as MLflow's local
database. Files of buckets are not published either, only their digests, so that a later download is compared with
them.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from rstar2_train.storage.host_objects import host_objects
from rstar2_train.storage.manifest import PublishedObject
from rstar2_train.storage.store import SOURCE_RECORD, StorageRejected
from rstar2_train.utils.files import delete

MACHINE_FILES = frozenset(
    {
        *("lock", "device.lock", "children.json", "mlflow.db", "mlflow.db-journal", "mlflow.db-wal", "mlflow.db-shm"),
        *("logs", "redis", "judge", "weights", "mlruns", "analysis", "entropies"),
    }
)
"""Files and folders of a state folder that are not published."""
_MARK = ".rstar2-"
"""Start of the names of hidden files that are published: such records, and the marks of complete downloads."""
_CHECKPOINT_INDEX = ".metadata"
_WHOLE = frozenset({"generated", "models", "datasets"})
_WHOLE_OF_STAGE = frozenset({"checkpoints", "model", "tokens", "evaluation"})
"""Folders of the job and of a stage whose files are replaced as a whole. A link to such a file keeps its content."""
_STATUS = frozenset({"progress.json", "track/shipped.json"})
"""Files that are replaced all the time and on which no other file depends."""
_FIRST = "track/shipped.json"
"""Holds a position in the journal, so it is copied before the journal grows."""
_TRIES, _PAUSE_SECONDS = 200, 0.05


def state_files(root: Path) -> Iterator[str]:
    """Yield the names of the published files of a state folder, relative to it, sorted."""
    for folder, children, files in os.walk(root):
        at = Path(folder).relative_to(root)
        children[:] = sorted(child for child in children if _is_followed(at, child))
        yield from (name for file in sorted(files) if is_published(name := (at / file).as_posix()))


def is_published(name: str) -> bool:
    """Return whether a file of a state folder is published. No other file is restored, even if a manifest names it."""
    path = Path(name)
    at, file = path.parent, path.name
    if not all(_is_followed(parent.parent, parent.name) for parent in (*at.parents, at) if parent.name):
        return False
    if at.parts[:1] == ("buckets",):
        return file.startswith(SOURCE_RECORD)
    if file.startswith("."):
        return file.startswith(_MARK) or file == _CHECKPOINT_INDEX
    return bool(at.parts) or file not in MACHINE_FILES


def is_checkpoint(name: str) -> bool:
    """Return whether a file belongs to a checkpoint of a stage."""
    parts = Path(name).parts
    return parts[:1] == ("stages",) and parts[2:3] == ("checkpoints",)


def is_shard(name: str) -> bool:
    """Return whether a file has the tensors that one rank wrote into a checkpoint."""
    return is_checkpoint(name) and name.endswith(".distcp")


def is_record(name: str) -> bool:
    """Return whether a file is a JSON record of the job or of a stage, which its report is built from."""
    parts = Path(name).parts
    return name.endswith(".json") and (len(parts) == 1 or (parts[0] == "stages" and len(parts) == 3))


def is_model(name: str) -> bool:
    """Return whether a file belongs to the final model of a stage, or to a model of the Hub."""
    parts = Path(name).parts
    return parts[0] == "models" or (parts[0] == "stages" and parts[2:3] == ("model",))


def _is_followed(at: Path, folder: str) -> bool:
    return not folder.startswith(".") and (bool(at.parts) or folder not in MACHINE_FILES)


def snapshot(root: Path, target: Path) -> tuple[dict[str, Path], list[PublishedObject]]:
    """Copy the published files of a state folder to `target` as of one moment.

    Returns name -> file of the copy, and the files of checkpoints that other hosts have uploaded.

    Files that never change are linked. A file that appears, disappears or is replaced meanwhile starts the copy again,
    so that the copy is a state in which kill -9 may have left the folder. Raises StorageRejected if the files never
    rest, OSError.
    """
    for _ in range(_TRIES):
        delete(target)
        try:
            before = _versions(root)
            order = sorted(before, key=lambda name: (name != _FIRST, name))
            copied = {name: _copy(root, name, target) for name in order}
            uploaded = host_objects(root)
            if before == _versions(root):
                return copied, uploaded
        except FileNotFoundError:  # deleted meanwhile
            pass
        time.sleep(_PAUSE_SECONDS)
    raise StorageRejected(f"{root}: files were created and deleted all the time, {_TRIES} copies failed")


def _versions(root: Path) -> dict[str, int]:
    """Return the inode of each published file: another one after a replacement, the same one after an append."""
    return {name: 0 if name in _STATUS else (root / name).stat().st_ino for name in state_files(root)}


def _copy(root: Path, name: str, target: Path) -> Path:
    path = target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = Path(name).parts
    is_whole = parts[0] in _WHOLE or (parts[0] == "stages" and len(parts) > 2 and parts[2] in _WHOLE_OF_STAGE)
    if is_whole or name.endswith(".parquet"):
        os.link(root / name, path)
    else:
        shutil.copyfile(root / name, path)
    return path
