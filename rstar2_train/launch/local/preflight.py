"""Makes a job ready to run on this machine, or says in one message why it cannot: before anything is started.

manifest -> validated job with every `source` and `data` resolved to a path -> the state folder with its lock.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rstar2_train.api.contracts import AttemptRecord, write_model
from rstar2_train.api.issue import InvalidJob, Issue
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.loader import ManifestError, read_manifest
from rstar2_train.api.roles import ExecutorSpec, Vendor
from rstar2_train.api.sources import sources
from rstar2_train.api.state_dir import JobState
from rstar2_train.api.validation import check
from rstar2_train.data.problems import DataError
from rstar2_train.data.sources import find_invalid_files, resolve
from rstar2_train.utils.files import write_atomically

MIN_FREE_BYTES = 512 * 2**20
"""Less free disk than this and nothing is started."""
LOW_BYTES = 128 * 2**20
"""Less than this and what runs is stopped, while a checkpoint and a report can still be written."""


class PreflightError(Exception):
    """Why the job cannot run here, and what to do; for a person to read."""


def vendor(dev: Path = Path("/dev")) -> Vendor:
    """Return the vendor of the accelerator that this machine's device files show."""
    if (dev / "nvidiactl").exists():
        return "NVIDIA"
    return "AMD" if (dev / "kfd").exists() else "None"


def read_job(manifest: Path) -> tuple[AgenticRLJob, list[Issue]]:
    """The validated job and its warnings. Raises PreflightError with every error."""
    try:
        job, problems = check(read_manifest(manifest))
    except ManifestError as error:
        raise PreflightError(str(error)) from error
    if job is None:
        errors = InvalidJob([problem for problem in problems if not problem.warning])
        raise PreflightError(f"{manifest} is not a valid job:\n{errors}")
    return job, problems


def resolve_sources(job: AgenticRLJob, *, manifest: Path, state: JobState) -> AgenticRLJob:
    """The job with every source and data value as an absolute path; generated data is made here, once.

    Raises PreflightError naming every field whose file is not there or cannot be used.
    """
    job = job.model_copy(deep=True)
    missing = {}
    for source in sources(job):
        try:
            found = resolve(source.value, base_dir=manifest.parent, state_dir=state.root, seed=job.spec.seed)
        except DataError as error:
            missing[source.field] = str(error)
            continue
        source.put(str(found.resolve()))
    problems = find_invalid_files(job) | missing
    _refuse([f"{field}: {words}" for field, words in problems.items()])
    return job


def check_machine(executor: ExecutorSpec, state: JobState) -> None:
    """Look for what the children need. Raises PreflightError with everything that is missing."""
    missing = []
    if shutil.which("redis-server") is None:
        missing.append("redis-server is not on the PATH: install it (Debian: apt-get install redis-server)")
    if executor.isolation == "GVisor" and shutil.which("runsc") is None:
        missing.append(
            "runsc (gVisor) is not on the PATH: run `make setup`, which builds it, or install it by hand "
            "(Debian: apt-get install runsc). Without it the model's code cannot be run safely"
        )
    too_little = too_little_disk(state, wanted=MIN_FREE_BYTES)
    if too_little:
        missing.append(too_little)
    _refuse(missing)


def too_little_disk(state: JobState, *, wanted: int) -> str:
    """What to say when fewer than `wanted` bytes are free for the state; else empty."""
    free = shutil.disk_usage(state.root).free
    if free >= wanted:
        return ""
    return f"only {free // 2**20} MiB are free under {state.root}; at least {wanted // 2**20} needed: free some"


def _refuse(problems: list[str]) -> None:
    if problems:
        raise PreflightError("\n".join(f"error: {line}" for line in problems))


@contextmanager
def locked(state: JobState) -> Iterator[None]:
    """Hold the job's state folder for this process. Raises PreflightError when another run has it."""
    state.root.mkdir(parents=True, exist_ok=True)
    with (state.root / "lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise PreflightError(f"{state.root} is in use: this job is already running (pid {holder})") from error
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def write_job(job: AgenticRLJob, *, manifest: Path, state: JobState) -> tuple[AgenticRLJob, list[str]]:
    """Put the resolved job into its state folder, with the UID of its first run. Returns it, and notes for the user."""
    notes = []
    earlier = state.job() if state.job_file.exists() else None
    uid = earlier.metadata.uid if earlier is not None else job.metadata.uid or str(uuid.uuid4())
    job = job.model_copy(update={"metadata": job.metadata.model_copy(update={"uid": uid})})
    if earlier is not None and earlier.spec != job.spec:
        done = [stage.name for stage in job.spec.stages if state.stage(stage.name).done]
        kept = f" (finished and kept: {', '.join(done)})" if done else ""
        notes.append(
            f"the manifest has changed since the last run; what is finished stays as it is{kept}. "
            f"To start over, remove {state.root}"
        )
    write_model(state.job_file, job)
    write_atomically(state.manifest_file, manifest.read_text(encoding="utf-8"))
    return job, notes


def next_attempt(job: AgenticRLJob, state: JobState, stage: str) -> int:
    """Number the stage's next attempt and make it the current one."""
    folder = state.stage(stage)
    last = folder.attempt()
    attempt = AttemptRecord(attempt=last.attempt + 1 if last else 1, uid=job.metadata.uid)
    write_model(folder.attempt_file, attempt)
    return attempt.attempt
