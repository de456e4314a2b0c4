"""The documents of publications: a manifest per publication, and the index that names the visible ones. Pure.

Both are JSON with a last line `sha256:DIGEST` of the lines before it, so that a damaged document is recognised without
any other. Objects have a digest per block: a part of an object can be verified alone. An object is named by its
digests, so that publications share it, also one of an earlier attempt.

    index.json                                     {attempt, writer, start, publications: [{name, attempt, writer, ..}]}
    attempts/ATTEMPT-WRITER/manifests/NAME.json    {publication, attempt, writer, objects: [{name, size, sha256, home}]}
    attempts/ATTEMPT-WRITER/objects/CONTENT        `home` is the ATTEMPT-WRITER of the object
"""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from rstar2_train.storage.store import CorruptObject, check_name

INDEX = "index.json"
BLOCK_BYTES = 16 * 2**20
"""Bytes of an object that one digest is about."""
MAX_OBJECTS = 10_000
"""Objects of a publication: a checkpoint has some files per rank, and a step has a file of trajectories."""
MAX_BLOCKS = 100_000
"""Blocks of one object: 1.5 TiB."""
MAX_PUBLICATIONS = 10_000
MAX_REPLACED = 1000
"""Deleted jobs of one name that an index remembers."""
MAX_DOCUMENT_BYTES = 32 * 2**20
"""Size up to which a document is read."""
ATTEMPTS = "attempts"
_SEAL = b"\nsha256:"

Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Writer = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{8,64}$")]
Label = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", max_length=128)]
MAX_ATTEMPT = 2**53
Attempt = Annotated[int, Field(ge=0, le=MAX_ATTEMPT)]
_HOME = r"[0-9]{1,16}-[0-9a-f]{8,64}"
Home = Annotated[str, StringConstraints(pattern=f"^{_HOME}$")]
_OWN_NAME = re.compile(rf"{ATTEMPTS}/{_HOME}/(objects|manifests)/[^/]+")


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ObjectRecord(_Document):
    """Name, size and digests of a file."""

    name: str
    size: Annotated[int, Field(ge=0)]
    """Bytes."""
    sha256: Annotated[list[Digest], Field(max_length=MAX_BLOCKS)]
    """Digest of each block of BLOCK_BYTES; the last block may be shorter."""


class PublishedObject(ObjectRecord):
    """An object of a publication."""

    home: Home
    """Attempt and writer that uploaded it: this or an earlier publication."""

    @property
    def key(self) -> str:
        """Return the name of the object in the store. It does not depend on the file's name."""
        content = f"{self.size}:{','.join(self.sha256)}"
        return f"{ATTEMPTS}/{self.home}/objects/{hashlib.sha256(content.encode()).hexdigest()}"


class RemoteFile(ObjectRecord):
    """A file, and the object with its content."""

    key: str
    """Name of the object in its store."""
    blocks: list[int] | None = None
    """Numbers of the blocks to read; the others stay a hole in the file. None: all."""


class PublicationManifest(_Document):
    """The objects of a publication."""

    version: Literal[1] = 1
    publication: Label
    attempt: Attempt
    writer: Writer
    objects: Annotated[list[PublishedObject], Field(max_length=MAX_OBJECTS)]


class IndexEntry(_Document):
    """A visible publication."""

    name: Label
    attempt: Attempt
    """Attempt that wrote it."""
    writer: Writer
    sha256: Digest
    """Digest of the manifest's document."""

    @property
    def manifest(self) -> str:
        """Return the name of the manifest."""
        return f"{ATTEMPTS}/{home(self.attempt, self.writer)}/manifests/{self.name}.json"


class PodStart(_Document):
    """Start of a pod of a cluster that publishes. Pods of lost nodes may start late, after pods that replace them."""

    uid: Label
    """UID of the job. A job that was deleted and created again has another one."""
    namespace: Label | None = None
    """Namespace of the job. A job of the same name in another namespace is another job."""
    program: Literal["prepare", "launch", "report"]
    stage: Label | None = None
    """Stage of program launch."""
    attempt: Attempt = 0
    """Number of the stage's attempt, from 1; 0: not program launch."""

    def __str__(self) -> str:
        """Return the pod in words."""
        pod = f"attempt {self.attempt} of stage {self.stage}" if self.stage else f"program {self.program}"
        return f"{pod} of job {self.uid}"


class PublicationIndex(_Document):
    """The visible publications, the oldest first, and the attempt that may change them."""

    version: Literal[1] = 1
    attempt: Attempt
    """Attempt that may publish; one with a lower number is fenced."""
    writer: Writer
    """Process of that attempt."""
    publications: Annotated[list[IndexEntry], Field(max_length=MAX_PUBLICATIONS)] = []
    start: PodStart | None = None
    """The last pod that claimed the publications; None: only runs on one machine did."""
    replaced: Annotated[list[Label], Field(max_length=MAX_REPLACED)] = []
    """UIDs of deleted jobs of the same name, whose pods may not claim the publications any more."""

    def claimed(self, start: PodStart) -> PublicationIndex:
        """Return the index with another last start."""
        replaced = [self.start.uid] if self.start is not None and self.start.uid != start.uid else []
        return self.model_copy(update={"start": start, "replaced": [*self.replaced, *replaced][-MAX_REPLACED:]})

    def other_namespace(self, start: PodStart) -> str:
        """Return the namespace of the job that the publications belong to if it is not that of a pod; else an empty
        text."""
        namespace = self.start.namespace if self.start else None
        return "" if namespace is None or namespace == start.namespace else namespace

    def refusal(self, start: PodStart) -> str:
        """Return why a pod is older than the last one that claimed the publications; an empty text if it is not.

        A preparation is older than all attempts, the report is younger. The stage of an attempt must not have ended.
        """
        last = self.start
        if start.uid in self.replaced:
            return "the job was deleted and created again"
        if last is None or last.uid != start.uid:
            return ""
        if last.program == "report":
            return "" if start.program == "report" else "the report of the job has started"
        is_older = start.program == "prepare" or (last.stage == start.stage and last.attempt > start.attempt)
        if last.program == "launch" and is_older:
            return f"attempt {last.attempt} of stage {last.stage} has started"
        return ""


Document = TypeVar("Document", PublicationManifest, PublicationIndex)


def home(attempt: int, writer: str) -> str:
    """Return the name of the folder of everything that a process of an attempt uploads."""
    return f"{attempt}-{writer}"


def is_own_name(name: str) -> bool:
    """Return whether a writer of publications can have given this name to an object."""
    return _OWN_NAME.fullmatch(name) is not None


def seal(document: PublicationManifest | PublicationIndex) -> bytes:
    """Return the bytes of a document."""
    body = document.model_dump_json().encode()
    return body + _SEAL + hashlib.sha256(body).hexdigest().encode() + b"\n"


def unseal(body: bytes, kind: type[Document], name: str) -> Document:
    """Return the document of some bytes. Raises CorruptObject, with `name`, for each rule that they break."""
    if len(body) > MAX_DOCUMENT_BYTES:
        raise CorruptObject(f"{name} has {len(body):,} bytes; allowed: {MAX_DOCUMENT_BYTES:,}")
    text, _, digest = body.rpartition(_SEAL)
    if digest.strip() != hashlib.sha256(text).hexdigest().encode():
        raise CorruptObject(f"{name}: the document contradicts its own SHA-256: it is damaged or cut off")
    try:
        document = kind.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise CorruptObject(f"{name}: {error.error_count()} errors, the first: {field}: {first['msg']}") from error
    if isinstance(document, PublicationManifest):
        _check_objects(document, name)
    return document


def _check_objects(manifest: PublicationManifest, name: str) -> None:
    names = {check_name(record.name) for record in manifest.objects}
    if len(names) < len(manifest.objects):
        raise CorruptObject(f"{name}: two objects have the same name")
    folders = {parent for child in names for parent in _parents(child)}
    if clash := sorted(names & folders):
        raise CorruptObject(f"{name}: {clash[0]!r} is an object and a folder of others")
    for record in manifest.objects:
        if len(record.sha256) != blocks(record.size):
            raise CorruptObject(
                f"{name}: {record.name} has {record.size} bytes, so {blocks(record.size)} digests, "
                f"not {len(record.sha256)}"
            )


def _parents(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts))]


def blocks(size: int) -> int:
    """Return the number of blocks of an object."""
    return -(-size // BLOCK_BYTES)
