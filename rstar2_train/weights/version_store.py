"""The folders of the published weight versions: snapshots and deltas, their manifests, and their retention.

A version is a folder with one shard file per rank and a manifest. The folder is renamed into place when it is complete.
Each version has a random id; a delta names the id of its base, so that a resumed trainer's version 7 is never applied
to the version 6 of another run. The chain of a version starts at its last snapshot. Pure, except for the files.
"""

from __future__ import annotations

import json
import re
import shutil
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rstar2_train.weights.shard_file import FileSummary, ShardFile, ShardFileInvalid

MANIFEST = "manifest.json"
FORMAT = 1
KEPT_VERSIONS = 2
"""Newest versions that are always kept: an engine may still read the previous one."""
_NAME = re.compile(r"\d{6}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class VersionManifest:
    """One published version."""

    id: str
    """Random name of this version of this run."""
    version: str
    """Weight version that the engines report."""
    base: str | None
    """Id of the version to which the files are changes; None: a snapshot."""
    files: list[FileSummary]

    @property
    def bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.bytes for file in self.files)

    @property
    def changed(self) -> int:
        """Number of elements with a new value."""
        return sum(file.changed for file in self.files)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values, for `from_json`."""
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> VersionManifest:
        """Return the manifest of JSON values. Raises ValueError or TypeError for another format or other fields."""
        fields = dict(content)
        if fields.pop("format", None) != FORMAT:
            raise ValueError(f"it does not have format {FORMAT}, the only format that this program reads")
        return cls(files=[FileSummary(**file) for file in fields.pop("files", [])], **fields)


@dataclass(frozen=True, slots=True)
class Link:
    """A version in a chain: its folder and its manifest."""

    folder: Path
    manifest: VersionManifest

    def files(self) -> list[tuple[Path, str]]:
        """Return the path and the SHA-256 of each file."""
        return [(self.folder / file.name, file.digest) for file in self.manifest.files]


def new_id() -> str:
    """Return the id of a new version."""
    return uuid.uuid4().hex[:12]


def version_folder(root: Path, number: int, version_id: str) -> Path:
    """Return the folder of the `number`-th version of a run."""
    return root / f"{number:06d}-{version_id}"


def write_manifest(folder: Path, manifest: VersionManifest) -> None:
    """Write the manifest of a version whose files are complete."""
    (folder / MANIFEST).write_text(json.dumps(manifest.to_json()), encoding="utf-8")


def read_manifest(folder: Path) -> VersionManifest:
    """Return the manifest of a version. Raises ShardFileInvalid if it is missing or damaged."""
    path = folder / MANIFEST
    try:
        return VersionManifest.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ShardFileInvalid(f"{path} is missing or damaged: {error}") from error


def read_links(folders: Sequence[Path], *, have: str | None) -> list[Link]:
    """Return the versions of a chain that an engine with version `have` still needs; empty if it needs none.

    Args:
        folders: the chain, from a snapshot to the target.
        have: id of the version in the host copy; None, or an id outside the chain, needs the whole chain.

    Raises:
        ShardFileInvalid: if a manifest is missing or damaged, or a version does not follow the one before it.
    """
    links = [Link(folder, read_manifest(folder)) for folder in folders]
    for previous, link in zip([None, *links[:-1]], links, strict=True):
        base = previous.manifest.id if previous else None
        if link.manifest.base is not None and link.manifest.base != base:
            raise ShardFileInvalid(
                f"{link.folder} starts from version {link.manifest.base}, and the version before it in the chain is "
                f"{base}"
            )
    ids = [link.manifest.id for link in links]
    if have in ids:
        return links[ids.index(have) + 1 :]
    if links and links[0].manifest.base is not None:
        raise ShardFileInvalid(f"{links[0].folder} is not a snapshot: the chain must start with one")
    return links


def read_files(link: Link) -> list[ShardFile]:
    """Return the verified files of a version. Raises ShardFileInvalid."""
    return [ShardFile.read(path, digest=digest) for path, digest in link.files()]


def prune(root: Path, *, chain: Sequence[Path]) -> list[Path]:
    """Delete all versions except those of `chain` and the newest `KEPT_VERSIONS`; return the deleted folders.

    Newest means the highest number: a run numbers its versions upwards, and a new run starts after the last one.
    """
    if not root.is_dir():
        return []
    folders = sorted(path for path in root.iterdir() if _NAME.fullmatch(path.name))
    keep = {path.name for path in [*chain, *folders[-KEPT_VERSIONS:]]}
    deleted = [folder for folder in folders if folder.name not in keep]
    for folder in deleted:
        # The manifest first, so that a partly deleted version is never complete.
        (folder / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
    return deleted


def next_number(root: Path) -> int:
    """Return the number after that of the newest version in `root`; 0 for an empty or missing folder."""
    if not root.is_dir():
        return 0
    return max((int(path.name[:6]) + 1 for path in root.iterdir() if _NAME.fullmatch(path.name)), default=0)
