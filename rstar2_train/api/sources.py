"""Where the sources of a job lie inside its pods: every `source` and `data` value of a manifest as a path. Pure.

The operator puts the located job into the job file, mounts the claims that it names, and `rstar2_train.launch.pod
prepare` makes or fetches what is not there. Locally `data/sources.py` does the same for one machine. The names of
generated and fetched folders are decided here, for both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from rstar2_train.api.issue import InvalidJob, Issue
from rstar2_train.api.job import AgenticRLJob

GENERATED = "generated://"
HUB = "hf://"
CLAIM = "pvc://"
CLAIM_MOUNT = PurePosixPath("/pvc")
"""Claim C of a pvc:// source is mounted at CLAIM_MOUNT/C."""
_DATASETS = "datasets/"
_CLAIM_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_HUB = re.compile(r"(?P<owner>[\w.-]+)/(?P<name>[\w.-]+)(@(?P<revision>[\w.-]+))?(/(?P<file>.+))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class SourceField:
    """A value of the manifest that names a file or folder, and where it stands."""

    owner: object
    attribute: str
    field: str
    """As a person writes it: `spec.model.source`."""
    holds: Literal["model", "template", "problems", "conversations"]
    """What the file or folder is."""

    @property
    def value(self) -> str:
        """What the manifest says."""
        return str(getattr(self.owner, self.attribute))

    def put(self, path: str) -> None:
        """Put a path in its place."""
        setattr(self.owner, self.attribute, path)


@dataclass(frozen=True, slots=True)
class HubSource:
    """A repository of the Hugging Face hub, or one file of a data set in it."""

    repository: str
    kind: str
    """`model` or `dataset`."""
    revision: str | None
    file: str | None
    """The file that is wanted; None: all of the repository."""

    def folder(self, state: PurePosixPath) -> PurePosixPath:
        """Where it is kept in a job's state folder."""
        revision = f"@{self.revision}" if self.revision else ""
        return state / f"{self.kind}s" / (self.repository.replace("/", "--") + revision)


def sources(job: AgenticRLJob) -> Iterator[SourceField]:
    """Every value of a job that names a file or folder."""
    spec = job.spec
    yield SourceField(spec.model, "source", "spec.model.source", "model")
    if spec.model.chat_template:
        yield SourceField(spec.model, "chat_template", "spec.model.chatTemplate", "template")
    if spec.validation:
        yield SourceField(spec.validation, "data", "spec.validation.data", "problems")
    if spec.grpo.data:
        yield SourceField(spec.grpo, "data", "spec.grpo.data", "problems")
    for index, stage in enumerate(spec.stages):
        at = f"spec.stages[{index}].{stage.type.lower()}"
        if stage.evaluate:
            for number, benchmark in enumerate(stage.evaluate.benchmarks):
                yield SourceField(benchmark, "data", f"{at}.benchmarks[{number}].data", "problems")
        for member in (stage.sft, stage.grpo, stage.filter):
            if member is not None and member.data:
                yield SourceField(member, "data", f"{at}.data", "conversations" if stage.sft else "problems")


def resolved_sources(job: AgenticRLJob, state_root: str | PurePosixPath) -> tuple[AgenticRLJob, tuple[str, ...]]:
    """The job with every source as a path inside its pods, and the claims that those paths lie in, sorted.

    `state_root`: the job's state folder inside the pods. Raises InvalidJob naming every value that cannot be located.
    """
    job = job.model_copy(deep=True)
    problems, claims = [], set()
    for source in sources(job):
        value = source.value
        try:
            path = locate(value, state=PurePosixPath(state_root), seed=job.spec.seed)
        except ValueError as error:
            problems.append(Issue(source.field, str(error), value))
            continue
        if value.startswith(CLAIM):
            claims.add(path.relative_to(CLAIM_MOUNT).parts[0])
        source.put(str(path))
    if problems:
        raise InvalidJob(problems)
    return job, tuple(sorted(claims))


def schemes(job: AgenticRLJob) -> Iterator[Issue]:
    """What is wrong with sources that are no paths: wrong on a machine and on a cluster alike."""
    for source in sources(job):
        try:
            if "://" in source.value:
                locate(source.value, state=PurePosixPath("/"), seed=job.spec.seed)
        except ValueError as error:
            yield Issue(source.field, str(error), source.value)


def locate(value: str, *, state: PurePosixPath, seed: int) -> PurePosixPath:
    """The path that one value stands for inside the pods. Raises ValueError, which says what is allowed."""
    if value.startswith(GENERATED):
        name, file = split_generated(value)
        return generated_folder(name, state=state, seed=seed) / file
    if value.startswith(HUB):
        found = split_hub(value)
        return found.folder(state) / (found.file or "")
    if value.startswith(CLAIM):
        claim, _, rest = value.removeprefix(CLAIM).partition("/")
        if not _CLAIM_NAME.fullmatch(claim):
            raise ValueError("after pvc:// comes the name of a PersistentVolumeClaim: pvc://CLAIM/PATH")
        return CLAIM_MOUNT / claim / _inside(rest)
    if "://" in value:
        raise ValueError(
            "allowed: pvc://CLAIM/PATH, hf://OWNER/NAME[@REVISION], hf://datasets/OWNER/NAME[@REVISION]/FILE, "
            "generated://NAME/FILE, or an absolute path inside the image"
        )
    if not value.startswith("/"):
        raise ValueError(
            "a relative path is relative to the manifest, which a cluster does not have; put the file on a claim and "
            "name it pvc://CLAIM/PATH, or give a path that is in the image, beginning with '/'"
        )
    return PurePosixPath(value)


def split_generated(value: str) -> tuple[str, str]:
    """Name of the generator and the file that is wanted. Raises ValueError."""
    name, _, file = value.removeprefix(GENERATED).partition("/")
    if not re.fullmatch(r"[a-z0-9-]+", name) or not file:
        raise ValueError("after generated:// come a generator's name and a file that it makes: generated://NAME/FILE")
    return name, str(_inside(file))


def generated_folder(name: str, *, state: PurePosixPath, seed: int) -> PurePosixPath:
    """Where the files of a generator are kept in a job's state folder."""
    return state / "generated" / f"{name}-seed-{seed}"


def split_hub(value: str) -> HubSource:
    """What a hf:// value names. Raises ValueError."""
    rest = value.removeprefix(HUB)
    kind = "dataset" if rest.startswith(_DATASETS) else "model"
    match = _HUB.fullmatch(rest.removeprefix(_DATASETS))
    if match is None or (kind == "dataset") != bool(match["file"]):
        raise ValueError(
            "allowed: a model, hf://OWNER/NAME[@REVISION], or a file of a data set, "
            "hf://datasets/OWNER/NAME[@REVISION]/FILE"
        )
    file = str(_inside(match["file"])) if match["file"] else None
    return HubSource(f"{match['owner']}/{match['name']}", kind, match["revision"], file)


def _inside(path: str) -> PurePosixPath:
    """A relative path that stays below where it begins."""
    parts = PurePosixPath(path.lstrip("/")).parts
    if ".." in parts:
        raise ValueError("'..' is not allowed in it")
    return PurePosixPath(*parts)
