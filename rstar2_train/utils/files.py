"""Files: JSON objects, atomic writes, digests, versions, and the folder of the cache."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rstar2_train.utils.text import reason


class FileVersion(NamedTuple):
    """A mark of the content of a file, without a read of it: another content has another one."""

    inode: int
    changed: int
    """Time of the last change, in nanoseconds."""
    size: int
    """In bytes."""


def write_atomically(path: Path, text: str, *, mode: int = 0o666) -> None:
    """Write a small file so that a reader gets the old text or the new text, also after kill -9. Raises OSError.

    `mode`: permissions of the file, less the process's umask.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file. Raises ValueError, which names the file, if it has no such object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # RecursionError: 1,000 brackets deep
        raise ValueError(f"{path} cannot be read: {reason(error)}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must be a JSON object, not {type(content).__name__}")
    return content


def delete(path: Path) -> None:
    """Delete a file, a folder with its files, or a symbolic link without its target, if it exists. Raises OSError."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sync_to_disk(path: Path) -> None:
    """Write a file, or the entries of a folder, to the disk: a rename then survives a power failure. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_versions(files: Mapping[str, Path]) -> dict[str, FileVersion]:
    """Return the version of each file, by the names given: another one after a change. Raises OSError."""
    status = {name: path.stat() for name, path in files.items()}
    return {name: FileVersion(item.st_ino, item.st_mtime_ns, item.st_size) for name, item in status.items()}


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cache_folder() -> Path:
    """Return the folder of compiled files and roots of sandboxes: RSTAR2_CACHE, or a folder in the user's cache."""
    configured = os.environ.get("RSTAR2_CACHE")
    if configured:
        return Path(configured)
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "rstar2"
