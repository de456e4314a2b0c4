"""Brings data and model into a job's storage, before its first stage, or says what is missing.

The job file names paths (api/sources.py), source.json beside it what the user wrote. What is generated is made, what
is on the Hugging Face hub is fetched (resumable, once), what should be on a claim or in the image is looked for.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import time
from pathlib import Path, PurePosixPath

from rstar2_train.api.contracts import PREPARE_KEY, Outcome, StageFailed
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.loader import dump_yaml
from rstar2_train.api.sources import GENERATED, HUB, HubSource, sources, split_hub
from rstar2_train.api.state_dir import JobState
from rstar2_train.data.problems import DataError
from rstar2_train.data.sources import find_invalid_files, resolve
from rstar2_train.launch.pod.progress_config_map import ProgressConfigMap
from rstar2_train.launch.pod.progress_mirror import retry_until, to_json, write_termination_message
from rstar2_train.tracking.tracker import Tracker
from rstar2_train.utils.files import DISK_FULL, write_atomically

log = logging.getLogger("rstar2.cluster")

COMPLETE = ".rstar2-complete"
"""In a fetched model's folder, once all of it is there."""
NOT_FETCHED = ["*.bin", "*.pth", "*.pt", "*.gguf", "*.onnx", "*.h5", "*.msgpack", "original/*", "onnx/*"]
"""Files of a model repository that repeat what its safetensors hold."""
STAGE = "prepare"
"""Stands where an outcome has the name of its stage."""


def prepare(job_file: Path, state_root: Path, *, progress: str, account: Path, termination_log: Path) -> int:
    """Prepare the storage; returns the exit code. The ConfigMap `progress`, if named, hears how it ended."""
    job = AgenticRLJob.model_validate_json(job_file.read_text(encoding="utf-8"))
    source = AgenticRLJob.model_validate_json(job_file.with_name("source.json").read_text(encoding="utf-8"))
    state = JobState(state_root)
    try:
        _bring(source, job, state)
        outcome = Outcome(stage=STAGE, attempt=1, outcome="completed", reason="Completed")
    except StageFailed as error:
        log.error("%s", error)
        words = str(error)[:2000]
        outcome = Outcome(
            stage=STAGE, attempt=1, outcome="failed", reason=error.reason, message=words, retryable=error.retryable
        )
    if progress:
        asyncio.run(_tell(progress, outcome, account))
    write_termination_message(outcome.message, termination_log)
    return outcome.exit_code


def _bring(source: AgenticRLJob, job: AgenticRLJob, state: JobState) -> None:
    """`bring` and `begin`; storage that cannot be used is said to be that."""
    try:
        bring(source, job, state)
        begin(source, state)
    except OSError as error:
        if error.errno in DISK_FULL:
            raise StageFailed("StorageFull", f"{error}: enlarge the claim", retryable=False) from error
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        words = f"{error}: the storage must be writable by user {os.getuid()}, group {os.getgid()} (NFS has no fsGroup)"
        raise StageFailed("BadConfiguration", words, retryable=False) from error


async def _tell(progress: str, outcome: Outcome, account: Path) -> None:
    async with ProgressConfigMap.of_pod(progress, account=account) as config_map:
        await retry_until(config_map, {PREPARE_KEY: to_json(outcome)})


def bring(source: AgenticRLJob, job: AgenticRLJob, state: JobState) -> None:
    """Make, fetch or find every source of a job. Raises StageFailed naming every field whose file cannot be used.

    `source`: as the user wrote it; `job`: the same with paths in the places of its sources.
    """
    state.root.mkdir(parents=True, exist_ok=True)
    missing = {}
    for wanted, place in zip(sources(source), sources(job), strict=True):
        value, path = wanted.value, Path(place.value)
        try:
            if value.startswith(GENERATED):
                resolve(value, base_dir=state.root, state_dir=state.root, seed=source.spec.seed)
            elif value.startswith(HUB):
                found = split_hub(value)
                fetch(found, Path(found.folder(PurePosixPath(state.root))))
            if not path.exists():
                raise DataError(f"{value}: no such file or folder (looked at {path})")
        except DataError as error:
            missing[wanted.field] = str(error)
    problems = find_invalid_files(job) | missing
    if problems:
        words = "\n".join(f"{field}: {what}" for field, what in problems.items())
        raise StageFailed("BadData", words, retryable=False)


def begin(source: AgenticRLJob, state: JobState) -> None:
    """Note when the job began, and open its MLflow run with what the user wrote. Again for the same job: no harm."""
    uid = source.metadata.uid
    began = json.loads(state.began_file.read_text(encoding="utf-8")) if state.began_file.exists() else {}
    if began.get("uid") != uid or not began:
        write_atomically(state.began_file, json.dumps({"uid": uid, "at": time.time()}))
    wanted = source.model_dump(mode="json", exclude_defaults=True)
    write_atomically(state.manifest_file, dump_yaml([wanted]))
    tracker = Tracker.for_job(source, state.root)
    tracker.start_job(source.spec.model_dump(by_alias=True, exclude={"stages"}, exclude_none=True))
    tracker.log_artifact("", state.manifest_file)
    tracker.close()


def fetch(source: HubSource, folder: Path) -> None:
    """Fetch a model, or a file of a data set, from the hub into `folder`, unless it is there already.

    Raises DataError when the hub has no such thing or does not give it to us, StageFailed (retryable) when it is away.
    """
    there = folder / (source.file or COMPLETE)
    if there.exists():
        return
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    import httpx2  # what huggingface_hub speaks HTTP with, and lets through
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    log.info("fetching %s into %s", source.repository, folder)
    began = time.monotonic()
    try:
        # By commit: given a name, it takes a half-filled folder for the whole when the hub cannot be asked.
        commit = HfApi().repo_info(source.repository, repo_type=source.kind, revision=source.revision).sha
        snapshot_download(
            source.repository,
            repo_type=source.kind,
            revision=commit,
            local_dir=folder,
            allow_patterns=[source.file] if source.file else None,
            ignore_patterns=None if source.file else NOT_FETCHED,
        )
    except GatedRepoError as error:
        raise DataError(
            f"{source.repository} is gated: accept its terms on the hub, and name the Secret with HF_TOKEN in "
            "spec.secretRefs.hubToken"
        ) from error
    except RevisionNotFoundError as error:
        raise DataError(f"{source.repository} has no revision {source.revision!r}") from error
    except RepositoryNotFoundError as error:
        raise DataError(
            f"the hub knows no {source.kind} {source.repository}, or shows it to members only: check the name, and for "
            "a private one name the Secret with HF_TOKEN in spec.secretRefs.hubToken"
        ) from error
    except (httpx2.HTTPError, OSError) as error:
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            words = f"no space left for {source.repository} in the storage: enlarge its claim"
            raise StageFailed("StorageFull", words, retryable=False) from error
        words = f"{source.repository} could not be fetched from the hub: {type(error).__name__}: {error}"
        raise StageFailed("HubUnavailable", words[:1500], retryable=True) from error
    if source.file and not there.exists():
        raise DataError(f"the data set {source.repository} has no file {source.file}")
    if not source.file:
        write_atomically(there, f"{source.repository}@{source.revision or 'main'}\n")
    log.info("fetched %s in %.0f s", source.repository, time.monotonic() - began)
