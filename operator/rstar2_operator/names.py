"""Every name that the operator gives: labels, annotations, objects, ports, mounts. The one place that knows them.

Names are functions of the job alone, so that a crash at any point, then a restart, ends in the same objects.
"""

from __future__ import annotations

from typing import Final

from rstar2_train.api.base import API_VERSION

GROUP, _, VERSION = API_VERSION.partition("/")
PLURAL: Final = "agenticrljobs"
FIELD_MANAGER: Final = "rstar2-operator"
SERVE_MANAGER: Final = "rstar2-serve"
"""Of objects that a person applies and the operator must not see (serving_manifests.py)."""

MANAGED_BY: Final = "app.kubernetes.io/managed-by"
JOB_LABEL: Final = f"{GROUP}/job"
ROLE_LABEL: Final = f"{GROUP}/role"
STAGE_LABEL: Final = f"{GROUP}/stage"
ATTEMPT_LABEL: Final = f"{GROUP}/attempt"
OF_JOB_LABEL: Final = "batch.kubernetes.io/job-name"  # set by the cluster: the Job whose pod it is
HASH: Final = f"{GROUP}/applied-hash"
"""Annotation: hash of what was last applied, so that an unchanged object is not written again."""
RESTARTS: Final = f"{GROUP}/restarts"
COUNTED: Final = f"{GROUP}/restarts-counted"
"""Annotations of a stage attempt: restarts of the whole job up to it, and those that count towards maxRestarts."""

SELECTOR: Final = f"{MANAGED_BY}={FIELD_MANAGER}"

REDIS_PORT: Final = 6379
JUDGE_PORT: Final = 8080
EXECUTOR_PORT: Final = 7070
ENGINE_PORT: Final = 8000
ENDPOINT_PORT: Final = 8000

JOB_FILE: Final = "/etc/rstar2/job.json"
WORKER_KEYS: Final = "/etc/rstar2/worker"
STORAGE_MOUNT: Final = "/state"
CLAIM_MOUNT: Final = "/pvc"


def state_folder(job: str) -> str:
    """The job's state folder inside its storage."""
    return f"{STORAGE_MOUNT}/{job}"


def job_file(job: str) -> str:
    """ConfigMap with the job file."""
    return f"{job}-job"


def progress(job: str) -> str:
    """ConfigMap that the driver tells its progress in."""
    return f"{job}-progress"


def secrets(job: str) -> str:
    """Secret with the passwords and keys that the job's pods share."""
    return f"{job}-secrets"


def claim(job: str) -> str:
    """The claim that is made when the job names none."""
    return f"{job}-state"


def pods_account(job: str) -> str:
    """ServiceAccount of every pod but the trainer's: may do nothing."""
    return f"{job}-pods"


def trainer(job: str) -> str:
    """ServiceAccount, Role and headless Service of the stage pods."""
    return f"{job}-trainer"


def redis(job: str) -> str:
    """StatefulSet and Service of Redis."""
    return f"{job}-redis"


def judge(job: str) -> str:
    """Deployment and Service of the judge (API and worker)."""
    return f"{job}-judge"


def executor(job: str) -> str:
    """Deployment and headless Service of the executors."""
    return f"{job}-executor"


def rollout(job: str) -> str:
    """Deployment and headless Service of the engines."""
    return f"{job}-rollout"


def prepare(job: str) -> str:
    """Job that brings data and model into storage."""
    return f"{job}-prepare"


def report(job: str) -> str:
    """Job that writes the report and closes the MLflow run."""
    return f"{job}-report"


def attempt(job: str, stage: str, number: int) -> str:
    """Job of one attempt of a stage."""
    return f"{job}-{stage}-{number}"


def serving(job: str) -> str:
    """In place of the job's name in the names and labels of what serves its model.

    It does not begin with the job's name: by that the operator tells which job an event is about.
    """
    return f"serve-{job}"


def endpoint(job: str) -> str:
    """Deployment and Service of the endpoint in front of a served model."""
    return f"{job}-endpoint"


def labels(job: str, role: str, *, manager: str = FIELD_MANAGER) -> dict[str, str]:
    """Labels of every object of a job."""
    return {MANAGED_BY: manager, JOB_LABEL: job, ROLE_LABEL: role}
