"""Paths of a job's sources inside its pods: every `source` and `data` value of a manifest as a path. Pure.

The operator writes the resolved job into the job file and mounts the claims; `rstar2_train.launch.pod prepare`
generates or downloads missing sources. data/sources.py does the same for one machine. Both use the directory names of
this module.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from rstar2_train.api.issue import InvalidJob, Issue
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.stages import GRPODefaults
from rstar2_train.utils.local_path import is_no_path

GENERATED = "generated://"
HUB = "hf://"
CLAIM = "pvc://"
BUCKETS = ("s3://", "gs://", "az://")
"""Schemes of buckets: S3 and compatible servers, Google Cloud Storage, Azure Blob Storage."""
IN_BUCKET = "the job's state is in the bucket, not in a claim"
WITH_URL = f"must not be set together with url: {IN_BUCKET}"
LOCAL_FOLDER = "file:///FOLDER is only for `rstar2 run`: pods have no common folder; use s3://, gs:// or az://"
NO_COLLECTIVE = (
    "must not be Collective in a cluster if storage.url is set: engines copy every version from the bucket; set "
    "Folder, Delta or Auto"
)
CLAIM_MOUNT = PurePosixPath("/pvc")
"""Claim C of a pvc:// source is mounted at CLAIM_MOUNT/C."""
_DATASETS = "datasets/"
_CLAIM_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_BUCKET = re.compile(r"(?P<scheme>s3|gs|az)://(?P<bucket>[a-z0-9][a-z0-9._-]{1,61}[a-z0-9])/(?P<key>.+)", re.ASCII)
_KEY_PART = re.compile(r"[A-Za-z0-9_.@+=,-]+", re.ASCII)
_HUB = re.compile(r"(?P<owner>[\w.-]+)/(?P<name>[\w.-]+)(@(?P<revision>[\w.-]+))?(/(?P<file>.+))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class SourceField:
    """A field of the manifest that names a file or directory."""

    owner: object
    attribute: str
    field: str
    """Path of the field in the manifest, such as `spec.model.source`."""
    holds: Literal["model", "template", "problems", "conversations", "tool", "checker", "objective"]
    """Content of the file or directory."""

    @property
    def value(self) -> str:
        """The field's value."""
        return str(getattr(self.owner, self.attribute))

    def put(self, path: str) -> None:
        """Replace the value by a path."""
        setattr(self.owner, self.attribute, path)


@dataclass(frozen=True, slots=True)
class HubSource:
    """A repository of the Hugging Face Hub, or one file of a dataset repository."""

    repository: str
    kind: str
    """`model` or `dataset`."""
    revision: str | None
    file: str | None
    """File of the repository; None: the whole repository."""

    def folder(self, state: PurePosixPath) -> PurePosixPath:
        """Return its directory in a job's state directory."""
        revision = f"@{self.revision}" if self.revision else ""
        return state / f"{self.kind}s" / (self.repository.replace("/", "--") + revision)


@dataclass(frozen=True, slots=True)
class BucketSource:
    """An object of a bucket, or all objects below a prefix."""

    scheme: str
    """`s3`, `gs` or `az`; `file` for a folder of this machine."""
    bucket: str
    key: str
    """Name of the object, or the prefix, without a `/` at its end."""

    def folder(self, state: PurePosixPath) -> PurePosixPath:
        """Return the directory of the bucket's objects in a job's state directory."""
        return state / "buckets" / self.scheme / self.bucket


def sources(job: AgenticRLJob) -> Iterator[SourceField]:
    """Yield every field of a job that names a file or directory."""
    spec = job.spec
    yield SourceField(spec.model, "source", "spec.model.source", "model")
    if spec.model.chat_template is not None:
        yield SourceField(spec.model, "chat_template", "spec.model.chatTemplate", "template")
    for index, tool in enumerate(spec.tools):
        if tool.source is not None:
            yield SourceField(tool, "source", f"spec.tools[{index}].source", "tool")
    for index, reward in enumerate(spec.rewards):
        if reward.source is not None:
            yield SourceField(reward, "source", f"spec.rewards[{index}].source", "checker")
    if spec.validation:
        yield SourceField(spec.validation, "data", "spec.validation.data", "problems")
    if spec.grpo.data is not None:
        yield SourceField(spec.grpo, "data", "spec.grpo.data", "problems")
    yield from _of_grpo(spec.grpo, "spec.grpo")
    for index, stage in enumerate(spec.stages):
        at = f"spec.stages[{index}].{stage.type.lower()}"
        if stage.evaluate:
            for number, benchmark in enumerate(stage.evaluate.benchmarks):
                yield SourceField(benchmark, "data", f"{at}.benchmarks[{number}].data", "problems")
        for member in (stage.sft, stage.grpo, stage.filter):
            if member is not None and member.data is not None:
                yield SourceField(member, "data", f"{at}.data", "conversations" if stage.sft else "problems")
        if stage.grpo:
            yield from _of_grpo(stage.grpo, at)


def _of_grpo(grpo: GRPODefaults, at: str) -> Iterator[SourceField]:
    """Yield the sources of an objective and of a reference."""
    objective, reference = grpo.objective, grpo.reference_kl
    if objective and objective.source:
        yield SourceField(objective, "source", f"{at}.objective.source", "objective")
    if objective and objective.teacher and objective.teacher.source:
        yield SourceField(objective.teacher, "source", f"{at}.objective.teacher.source", "model")
    if reference and reference.source:
        yield SourceField(reference, "source", f"{at}.referenceKl.source", "model")


def resolved_sources(job: AgenticRLJob, state_root: str | PurePosixPath) -> tuple[AgenticRLJob, tuple[str, ...]]:
    """Return the job with every source as a path inside its pods, and the claims of these paths, sorted.

    `state_root`: the job's state directory inside the pods. Raises InvalidJob with every value that has no path.
    """
    job = job.model_copy(deep=True)
    problems, claims = list(_only_local(job)), set()
    for source in sources(job):
        value = source.value
        try:
            path = resolve(value, state=PurePosixPath(state_root), seed=job.spec.seed)
        except ValueError as error:
            problems.append(Issue(source.field, str(error), value))
            continue
        if value.startswith(CLAIM):
            claims.add(path.relative_to(CLAIM_MOUNT).parts[0])
        source.put(str(path))
    if problems:
        raise InvalidJob(problems)
    return job, tuple(sorted(claims))


def _only_local(job: AgenticRLJob) -> Iterator[Issue]:
    """Yield the settings that a cluster cannot use."""
    if url := job.spec.storage.url:
        if url.startswith("file://"):
            yield Issue("spec.storage.url", LOCAL_FOLDER, url)
        if job.spec.rollout.weight_transport == "Collective":
            yield Issue("spec.rollout.weightTransport", NO_COLLECTIVE, "Collective")
    for index, server in enumerate(job.spec.mcp_servers):
        if server.command:
            message = (
                "is only for `rstar2 run`: the trainer pod does not start user programs; run the server over HTTP in "
                "a Deployment of its own and set url"
            )
            yield Issue(f"spec.mcpServers[{index}].command", message)
    if job.spec.agent is not None and job.spec.agent.image is None:
        yield Issue("spec.agent.image", "is required in a cluster: the image of the agent's program, with Python 3.8")
    for index, environment in enumerate(job.spec.environments):
        if environment.url is None and environment.image is None:
            message = "is required in a cluster, unless url is set: the image of the environment's servers"
            yield Issue(f"spec.environments[{index}].image", message)


def schemes(job: AgenticRLJob) -> Iterator[Issue]:
    """Yield the faults of sources that are faults on one machine and in a cluster."""
    for source in sources(job):
        try:
            if "://" in source.value or is_no_path(source.value):
                resolve(source.value, state=PurePosixPath("/"), seed=job.spec.seed)
        except ValueError as error:
            yield Issue(source.field, str(error), source.value)


def resolve(value: str, *, state: PurePosixPath, seed: int) -> PurePosixPath:
    """Return the path of one value inside the pods. Raises ValueError with the allowed forms."""
    if is_no_path(value):
        raise ValueError("must be a path or a URL, without NUL characters")
    if value.startswith(GENERATED):
        name, file = split_generated(value)
        return generated_folder(name, state=state, seed=seed) / file
    if value.startswith(HUB):
        hub = split_hub(value)
        return hub.folder(state) / (hub.file or "")
    if value.startswith(BUCKETS):
        bucket = split_bucket(value)
        return bucket.folder(state) / bucket.key
    if value.startswith(CLAIM):
        claim, _, rest = value.removeprefix(CLAIM).partition("/")
        if not _CLAIM_NAME.fullmatch(claim):
            raise ValueError("must name a PersistentVolumeClaim: pvc://CLAIM/PATH")
        return CLAIM_MOUNT / claim / _inside(rest)
    if "://" in value:
        raise ValueError(
            "allowed: pvc://CLAIM/PATH, hf://OWNER/NAME[@REVISION], hf://datasets/OWNER/NAME[@REVISION]/FILE, "
            "s3://BUCKET/KEY (also gs://, az://), generated://NAME/FILE, or an absolute path inside the image"
        )
    if not value.startswith("/"):
        raise ValueError(
            "a relative path has no meaning in a cluster; copy the file to a claim and use pvc://CLAIM/PATH, or use an "
            "absolute path inside the image"
        )
    return PurePosixPath(value)


def split_bucket(value: str) -> BucketSource:
    """Return bucket and key of an s3://, gs:// or az:// value. Raises ValueError."""
    match = _BUCKET.fullmatch(value.rstrip("/"))
    parts = match["key"].split("/") if match else []
    if match is None or not all(_KEY_PART.fullmatch(part) and part not in (".", "..") for part in parts):
        raise ValueError(
            "must be s3://BUCKET/KEY (also gs://, az://), the name of an object or a prefix: letters, digits and "
            "_.@+=,- between single '/', without '..'"
        )
    return BucketSource(match["scheme"], match["bucket"], match["key"])


def split_store(url: str) -> BucketSource:
    """Return scheme, bucket and prefix of a valid spec.storage.url; the key of a file:/// URL is the folder's path."""
    scheme, _, rest = url.rstrip("/").partition("://")
    bucket, _, key = rest.partition("/")
    return BucketSource(scheme, bucket, key if bucket else f"/{key}")


def split_generated(value: str) -> tuple[str, str]:
    """Return the generator's name and the file of a generated:// value. Raises ValueError."""
    name, _, file = value.removeprefix(GENERATED).partition("/")
    if not re.fullmatch(r"[a-z0-9-]+", name) or not file:
        raise ValueError("must name a generator and one of its files: generated://NAME/FILE")
    return name, str(_inside(file))


def generated_folder(name: str, *, state: PurePosixPath, seed: int) -> PurePosixPath:
    """Return the directory of a generator's files in a job's state directory."""
    return state / "generated" / f"{name}-seed-{seed}"


def split_hub(value: str) -> HubSource:
    """Return the repository or file of a hf:// value. Raises ValueError."""
    rest = value.removeprefix(HUB)
    kind = "dataset" if rest.startswith(_DATASETS) else "model"
    match = _HUB.fullmatch(rest.removeprefix(_DATASETS))
    if match is None or (kind == "dataset") != bool(match["file"]):
        raise ValueError(
            "allowed: a model, hf://OWNER/NAME[@REVISION], or a file of a dataset, "
            "hf://datasets/OWNER/NAME[@REVISION]/FILE"
        )
    file = str(_inside(match["file"])) if match["file"] else None
    return HubSource(f"{match['owner']}/{match['name']}", kind, match["revision"], file)


def _inside(path: str) -> PurePosixPath:
    """Return whether a path is relative and stays inside its directory."""
    parts = PurePosixPath(path.lstrip("/")).parts
    if ".." in parts:
        raise ValueError("must not contain '..'")
    return PurePosixPath(*parts)
