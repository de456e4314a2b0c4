"""Checks before anything is started: the manifest, the machine, the data; then the job's state folder and its lock.

    manifest -> read_job -> check_machine -> resolve_sources (paths) -> write_job (state folder) -> next_attempt

Each check reports all its errors in one message.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rstar2_train.api.contracts import AttemptRecord, write_model
from rstar2_train.api.issue import InvalidJob, Issue
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.loader import ManifestError, parse_manifest, read_text
from rstar2_train.api.roles import ExecutorSpec, JudgeSpec, Vendor
from rstar2_train.api.sources import sources
from rstar2_train.api.stages import Stage
from rstar2_train.api.state_dir import JobState
from rstar2_train.api.validation import check
from rstar2_train.capacity.model_shape import local_shape
from rstar2_train.capacity.number_format import is_bfloat16, requested_format
from rstar2_train.capacity.reference_model import remote_teachers
from rstar2_train.data.problems import DataError
from rstar2_train.data.sources import resolve
from rstar2_train.inference.engine_errors import EngineUnavailable
from rstar2_train.judge.sandbox import packages
from rstar2_train.judge.sandbox.oci_bundle import Isolation, find_runsc
from rstar2_train.judge.sandbox.rootfs import SetupError
from rstar2_train.launch.local.devices import DeviceAssignment, DevicesError, assign, assign_engine, visible_devices
from rstar2_train.launch.source_errors import find_source_errors
from rstar2_train.rollout.teacher_check import find_teacher_errors
from rstar2_train.utils.disk import disk_shortage
from rstar2_train.utils.files import write_atomically
from rstar2_train.utils.open_files import open_file_shortage

MIN_FREE_BYTES = 512 * 2**20
"""Free disk space in bytes below which nothing is started."""
LOW_BYTES = 128 * 2**20
"""Free disk space in bytes below which a run stops, while a report and the checkpoint of a small model still fit."""


class PreflightError(Exception):
    """The job cannot run here. The message, for the user, names each cause and what to do."""


def read_job(manifest: Path) -> tuple[AgenticRLJob, list[Issue]]:
    """Return the validated job and its warnings. Raises PreflightError with every error."""
    return read_job_and_text(manifest)[:2]


def read_job_and_text(manifest: Path) -> tuple[AgenticRLJob, list[Issue], str]:
    """As `read_job`, with the text: a pipe can be read only once, and a file may change. Raises PreflightError."""
    try:
        text = read_text(manifest)
        job, issues = check(parse_manifest(text, manifest))
    except ManifestError as error:
        raise PreflightError(str(error)) from error
    if job is None:
        errors = InvalidJob([issue for issue in issues if not issue.warning])
        raise PreflightError(f"{manifest} is not a valid job:\n{errors}")
    return job, issues, text


def resolve_sources(job: AgenticRLJob, *, manifest: Path, state: JobState) -> AgenticRLJob:
    """Return the job with every source and data value as an absolute path. Generated data is created once.

    Raises PreflightError with every field whose file is missing or unusable.
    """
    job = job.model_copy(deep=True)
    missing = {}
    for source in sources(job):
        try:
            path = resolve(
                source.value,
                base_dir=manifest.parent,
                state_dir=state.root,
                seed=job.spec.seed,
                storage=job.spec.storage,
            )
        except DataError as error:
            missing[source.field] = str(error)
            continue
        source.put(str(path.resolve()))
    errors = find_source_errors(job) | missing
    if not errors:
        errors = _try_teachers(job)
    _raise_all([f"{field}: {message}" for field, message in errors.items()] + _missing_programs(job))
    return job


def _try_teachers(job: AgenticRLJob) -> dict[str, str]:
    """Return why servers cannot be teachers: field -> reason. A server that does not answer is one."""
    try:
        return find_teacher_errors(job)
    except EngineUnavailable as error:
        return {", ".join(remote_teachers(job)): f"the server of the teacher does not answer: {error}"}


def check_programs(job: AgenticRLJob) -> None:
    """Raise PreflightError unless the servers of the environment and the agent can be started on this machine."""
    _raise_all(_missing_programs(job))


def _missing_programs(job: AgenticRLJob) -> list[str]:
    errors = [
        f"spec.environments[{index}].command: is required on one machine, where no image is started: the command line "
        "of the environment's server"
        for index, environment in enumerate(job.spec.environments)
        if environment.url is None and not environment.command
    ]
    if job.spec.agent is not None and shutil.which(job.spec.agent.command[0]) is None:
        errors.append(f"spec.agent.command: no such program: {job.spec.agent.command[0]}")
    return errors


def assign_devices(job: AgenticRLJob, *, pending: Sequence[Stage] | None = None) -> DeviceAssignment:
    """Return the devices of the trainer and of each engine; none for a job on the CPU.

    `pending`: the stages to run, default: all. Raises PreflightError if the devices do not suffice, or the CPU lacks
    the number format of the trainer.
    """
    if job.spec.accelerator.vendor == "None":
        try:
            is_bfloat16(requested_format(job.spec), "None")
        except RuntimeError as error:
            raise PreflightError(f"error: {error}") from error
        return DeviceAssignment()
    shape = local_shape(job.spec.model.source)
    try:
        devices = visible_devices(job.spec.accelerator.vendor, os.environ)
        return assign(job, devices, shape=shape, pending=pending)
    except DevicesError as error:
        raise PreflightError(f"error: {error}") from error


def engine_devices(vendor: Vendor, *, tensor_parallel: int) -> DeviceAssignment:
    """Return the devices of a single engine. Raises PreflightError if they do not suffice."""
    if vendor == "None":
        return DeviceAssignment()
    try:
        return assign_engine(vendor, visible_devices(vendor, os.environ), tensor_parallel=tensor_parallel)
    except DevicesError as error:
        raise PreflightError(f"error: {error}") from error


def check_machine(executor: ExecutorSpec | None, state: JobState) -> None:
    """Check the tools of a local judge and the free disk space. Raises PreflightError with everything missing.

    `executor`: None if no judge starts.
    """
    missing = [] if executor is None else missing_tools(executor.isolation_option)
    if shortage := open_file_shortage():
        missing.append(shortage)
    if shortage := disk_shortage(state.root, needed=MIN_FREE_BYTES):
        missing.append(shortage)
    _raise_all(missing)


def prepare_packages(judge: JudgeSpec, state: JobState) -> Path | None:
    """Install the packages of `spec.judge.packages`; return their folder, None without packages.

    The job's state folder holds the lock with their versions. Raises PreflightError, which names missing packages.
    """
    if not judge.packages:
        return None
    try:
        return packages.install(judge.packages, lock=state.packages_lock)
    except SetupError as error:
        raise PreflightError(f"error: spec.judge.packages: {error}") from error


def missing_tools(isolation: Isolation) -> list[str]:
    """Return a message for each tool that a local judge needs and this machine lacks."""
    missing = []
    if shutil.which("redis-server") is None:
        missing.append("redis-server is not on the PATH. Install it (Debian: apt-get install redis-server).")
    if isolation == "gvisor":
        try:
            find_runsc()
        except SetupError as error:
            missing.append(str(error))
    return missing


def _raise_all(errors: list[str]) -> None:
    if errors:
        raise PreflightError("\n".join(f"error: {line}" for line in errors))


@contextmanager
def locked(state: JobState) -> Iterator[None]:
    """Lock the job's state folder for this process. Raises PreflightError if another process holds the lock."""
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


def with_uid(job: AgenticRLJob, state: JobState) -> AgenticRLJob:
    """Return the job with the UID of its first run in this state folder, a new one before."""
    earlier = state.job() if state.job_file.exists() else None
    uid = earlier.metadata.uid if earlier is not None else job.metadata.uid or str(uuid.uuid4())
    return job.model_copy(update={"metadata": job.metadata.model_copy(update={"uid": uid})})


def write_job(job: AgenticRLJob, *, manifest: str, state: JobState) -> tuple[AgenticRLJob, list[str]]:
    """Write the resolved job and the text of its manifest into the state folder, with the UID of its first run.

    Returns the job with its UID, and notes for the user.
    """
    notes = []
    earlier = state.job() if state.job_file.exists() else None
    job = with_uid(job, state)
    if earlier is not None and earlier.spec != job.spec:
        done = [stage.name for stage in job.spec.stages if state.stage(stage.name).done]
        kept = f" (kept: {', '.join(done)})" if done else ""
        notes.append(
            f"The manifest has changed since the last run. Finished stages are not run again{kept}. "
            f"To start over, delete {state.root}."
        )
    write_model(state.job_file, job)
    write_atomically(state.manifest_file, manifest)
    return job, notes


def next_attempt(job: AgenticRLJob, state: JobState, stage: str) -> int:
    """Create the stage's next attempt and return its number."""
    folder = state.stage(stage)
    last = folder.attempt()
    attempt = AttemptRecord(attempt=last.attempt + 1 if last else 1, uid=job.metadata.uid)
    write_model(folder.attempt_file, attempt)
    return attempt.attempt
