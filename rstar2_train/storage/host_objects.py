"""Objects of a checkpoint that this host does not have: the shards of ranks on other hosts, and those of a resume.

    another host: uploads its files below a prefix of the checkpoint's own
    this host:    HOST_OBJECTS in the folder of the checkpoint, in place of the files

A publication names them without their content on this disk. The record is written before the upload starts and moves
with the folder, so no cleaning deletes an object of a checkpoint in progress.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from pydantic import TypeAdapter

from rstar2_train.storage.manifest import PublishedObject
from rstar2_train.utils.files import write_atomically

HOST_OBJECTS = ".host-objects.json"
"""Hidden: it is about the disks of this attempt, so no publication has it."""
_OBJECTS = TypeAdapter(list[PublishedObject])


def write_host_objects(folder: Path, objects: Sequence[PublishedObject]) -> None:
    """Write the record of a checkpoint. `objects`: their names are relative to `folder`."""
    write_atomically(folder / HOST_OBJECTS, _OBJECTS.dump_json(list(objects)).decode())


def leave_objects(root: Path, objects: Sequence[PublishedObject]) -> None:
    """Write the records of checkpoints whose files stay in the bucket. `objects`: named as in the state folder."""
    folders = defaultdict[PurePosixPath, list[PublishedObject]](list)
    for stored in objects:
        path = PurePosixPath(stored.name)
        folders[path.parent].append(stored.model_copy(update={"name": path.name}))
    for folder, files in folders.items():
        write_host_objects(root / folder, files)


def read_host_objects(folder: Path) -> list[PublishedObject]:
    """Return the objects of a checkpoint's record; none if this host has all files."""
    try:
        return _OBJECTS.validate_json((folder / HOST_OBJECTS).read_bytes())
    except FileNotFoundError:
        return []


def host_objects(root: Path) -> list[PublishedObject]:
    """Return the objects of all complete checkpoints of a state folder, by the names of their files there.

    Raises FileNotFoundError if a checkpoint is deleted meanwhile.
    """
    return [
        stored.model_copy(update={"name": (file.parent.relative_to(root) / stored.name).as_posix()})
        for file in _records(root, "[!.]*")
        for stored in _OBJECTS.validate_json(file.read_bytes())
    ]


def held_keys(root: Path) -> set[str]:
    """Return the objects that the checkpoints of a state folder need, also those in progress.

    A folder gets its visible name when it is complete, so the hidden ones are read first, and none is missed.
    """
    return {
        stored.key
        for pattern in (".*", "[!.]*")
        for file in _records(root, pattern)
        for stored in read_host_objects(file.parent)
    }


def delete_host_objects(root: Path) -> None:
    """Delete the records of a state folder whose checkpoints are replaced. The objects stay."""
    for file in list(_records(root, "*")):
        file.unlink()


def _records(root: Path, pattern: str) -> Iterator[Path]:
    return root.glob(f"stages/*/checkpoints/{pattern}/{HOST_OBJECTS}")
