"""Creates, downloads or finds a job's data and model in its storage, before the first stage.

The job file has paths (api/sources.py), source.json next to it has the sources as the user wrote them. Generated data
is created, a source on the Hugging Face Hub or in a bucket is downloaded once (resumable), one in a claim or the image
must exist.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import time
from pathlib import Path, PurePosixPath

from rstar2_train.api.contracts import PREPARE_KEY, ExitCode, Outcome, StageFailed
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.loader import dump_yaml, read_source
from rstar2_train.api.sources import BUCKETS, GENERATED, HUB, HubSource, sources, split_bucket, split_hub
from rstar2_train.api.state_dir import JobState
from rstar2_train.data.problems import DataError
from rstar2_train.data.sources import download_bucket, resolve
from rstar2_train.inference.engine_errors import EngineUnavailable
from rstar2_train.launch.pod.bucket import PodBucket, disk_failure
from rstar2_train.launch.pod.progress_config_map import ProgressConfigMap
from rstar2_train.launch.pod.progress_mirror import put_with_retries, to_json, write_termination_message
from rstar2_train.launch.source_errors import find_source_errors
from rstar2_train.rollout.teacher_check import find_teacher_errors
from rstar2_train.storage.pod_starts import prepare_start
from rstar2_train.storage.publication import Fenced
from rstar2_train.storage.store import StorageError, StorageUnavailable
from rstar2_train.tracking.tracker import Tracker
from rstar2_train.utils.disk import DISK_FULL, DiskRefused, named_disk
from rstar2_train.utils.files import write_atomically

log = logging.getLogger(__name__)

COMPLETE = ".rstar2-complete"
"""File in the folder of a downloaded model that marks it as complete."""
IGNORED_FILES = [
    *("*.bin", "*.pth", "*.pt", "*.gguf", "*.onnx", "*.h5", "*.msgpack"),
    *("original/*", "onnx/*", "consolidated*.safetensors"),
]
"""Files of a model repository with the same weights as its safetensors."""
STAGE = "prepare"
"""Name of the stage in the outcome of this program."""


def prepare(job_file: Path, state_root: Path, *, progress: str, account: Path, termination_log: Path) -> int:
    """Prepare the storage; return the exit code. `progress`: ConfigMap that gets the outcome; empty: none."""
    job = AgenticRLJob.model_validate_json(job_file.read_text(encoding="utf-8"))
    source = read_source(job_file)
    state = JobState(state_root)
    bucket = PodBucket(job, state, prepare_start(job))
    try:
        _open(bucket)
        _prepare_storage(source, job, state)
        bucket.publish()
        outcome = Outcome(stage=STAGE, attempt=1, outcome="completed", reason="Completed")
    except StageFailed as error:
        log.error("%s", error)
        message = str(error)[:2000]
        outcome = Outcome(
            stage=STAGE, attempt=1, outcome="failed", reason=error.reason, message=message, retryable=error.retryable
        )
    except Fenced as error:  # by the pod that replaces this one, which reports
        log.error("%s", error)
        write_termination_message(str(error), termination_log)
        return ExitCode.RETRYABLE
    if progress:
        asyncio.run(_report(progress, outcome, account))
    write_termination_message(outcome.message, termination_log)
    return outcome.exit_code


def _open(bucket: PodBucket) -> None:
    """Claim the bucket. If an attempt has it, only restore: the next attempt downloads new sources too."""
    try:
        bucket.open()
    except Fenced as error:
        log.info("%s", error)
        bucket.restore()


def _prepare_storage(source: AgenticRLJob, job: AgenticRLJob, state: JobState) -> None:
    """Provide the sources and start the job's run. Raises StageFailed, also for storage that cannot be written."""
    try:
        with named_disk(state.root):
            provide_sources(source, job, state)
            start_job(source, state)
    except DiskRefused as error:
        raise disk_failure(error, job) from error
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM):
            raise
        message = f"{error}: user {os.getuid()}, group {os.getgid()} must be able to write to the storage"
        raise StageFailed("BadConfiguration", f"{message} (NFS ignores fsGroup)", retryable=False) from error


async def _report(progress: str, outcome: Outcome, account: Path) -> None:
    async with ProgressConfigMap.from_pod(progress, account=account) as config_map:
        await put_with_retries(config_map, {PREPARE_KEY: to_json(outcome)})


def provide_sources(source: AgenticRLJob, job: AgenticRLJob, state: JobState) -> None:
    """Create, download or find every source of a job. Raises StageFailed with each field whose file is unusable.

    `source`: the job as the user wrote it; `job`: the same job with paths in place of the sources.
    """
    state.root.mkdir(parents=True, exist_ok=True)
    missing = {}
    for original, resolved in zip(sources(source), sources(job), strict=True):
        value, path = original.value, Path(resolved.value)
        try:
            if value.startswith(GENERATED):
                resolve(value, base_dir=state.root, state_dir=state.root, seed=source.spec.seed)
            elif value.startswith(HUB):
                hub = split_hub(value)
                download(hub, Path(hub.folder(PurePosixPath(state.root))))
            elif value.startswith(BUCKETS):
                download_bucket(split_bucket(value), source.spec.storage, state=state.root)
            if not path.exists():
                raise DataError(f"{value}: no such file or folder (path: {path})")
        except DataError as error:
            missing[original.field] = str(error)
        except StorageUnavailable as error:
            raise StageFailed("StorageUnavailable", f"{value}: {error}"[:1500], retryable=True) from error
        except StorageError as error:
            missing[original.field] = f"{value}: {error}"
    errors = find_source_errors(job) | missing
    if not errors:
        try:
            errors = find_teacher_errors(job)
        except EngineUnavailable as error:
            message = f"the server of the teacher does not answer: {error}"
            raise StageFailed("ServerUnavailable", message[:1500], retryable=True) from error
    if errors:
        message = "\n".join(f"{field}: {error}" for field, error in errors.items())
        raise StageFailed("BadData", message, retryable=False)


def start_job(source: AgenticRLJob, state: JobState) -> None:
    """Write the start time of the job, and open its MLflow run with the user's manifest. Idempotent."""
    uid = source.metadata.uid
    start = json.loads(state.start_file.read_text(encoding="utf-8")) if state.start_file.exists() else {}
    if start.get("uid") != uid or not start:
        write_atomically(state.start_file, json.dumps({"uid": uid, "at": time.time()}))
    manifest = source.model_dump(mode="json", exclude_defaults=True)
    write_atomically(state.manifest_file, dump_yaml([manifest]))
    tracker = Tracker.for_job(source, state.root)
    tracker.start_job(source.spec.model_dump(by_alias=True, exclude={"stages"}, exclude_none=True))
    tracker.log_artifact("", state.manifest_file)
    tracker.close()


def download(source: HubSource, folder: Path) -> None:
    """Download a model, or a file or folder of a data set, from the Hub into `folder`, unless it is complete already.

    Raises DataError if the Hub has no such repository, revision or file, or denies access, StageFailed (retryable) if
    the Hub is unreachable.
    """
    wanted = folder / (source.file or COMPLETE)
    marker = folder / f"{COMPLETE}--{source.file.replace('/', '--')}" if source.file else wanted
    if wanted.is_file() or marker.exists():
        return
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    import httpx2  # the HTTP client of huggingface_hub, which raises its errors
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    log.info("downloading %s into %s", source.repository, folder)
    started = time.monotonic()
    try:
        # By commit: for a branch, huggingface_hub accepts an incomplete folder if the Hub is unreachable.
        commit = HfApi().repo_info(source.repository, repo_type=source.kind, revision=source.revision).sha
        snapshot_download(
            source.repository,
            repo_type=source.kind,
            revision=commit,
            local_dir=folder,
            allow_patterns=[source.file, f"{source.file}/*"] if source.file else None,
            ignore_patterns=None if source.file else IGNORED_FILES,
        )
    except GatedRepoError as error:
        raise DataError(
            f"{source.repository} is gated. Accept its terms on the Hub, and name the Secret with a token in "
            "spec.secretRefs.hubToken."
        ) from error
    except RevisionNotFoundError as error:
        raise DataError(f"{source.repository} has no revision {source.revision!r}") from error
    except RepositoryNotFoundError as error:
        raise DataError(
            f"the Hub has no {source.kind} {source.repository}, or it is private. Check the name. For a private one, "
            "name the Secret with a token in spec.secretRefs.hubToken."
        ) from error
    except (httpx2.HTTPError, OSError) as error:
        if isinstance(error, OSError) and error.errno in (*DISK_FULL, errno.EROFS):
            raise
        message = f"cannot download {source.repository} from the Hub: {type(error).__name__}: {error}"
        raise StageFailed("HubUnavailable", message[:1500], retryable=True) from error
    if source.file and not wanted.exists():
        raise DataError(f"the data set {source.repository} has no file {source.file}")
    if not wanted.is_file():  # a model or a folder, of which an earlier attempt may have left a part
        write_atomically(marker, f"{source.repository}@{source.revision or 'main'}\n")
    log.info("downloaded %s in %.0f s", source.repository, time.monotonic() - started)
