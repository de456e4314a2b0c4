"""All names that the operator uses: labels, annotations, objects, ports, mounts.

Names depend only on the job, so that a restart after a crash at any point leads to the same objects.
"""

from __future__ import annotations

from typing import Final

from rstar2_train.api.base import API_VERSION

GROUP, _, VERSION = API_VERSION.partition("/")
PLURAL: Final = "agenticrljobs"
KUEUE_API: Final = "kueue.x-k8s.io/v1beta2"
FIELD_MANAGER: Final = "rstar2-operator"
SERVE_MANAGER: Final = "rstar2-serve"
"""managed-by label of objects that a person applies and the operator ignores (serving_manifests.py)."""

MANAGED_BY: Final = "app.kubernetes.io/managed-by"
JOB_LABEL: Final = f"{GROUP}/job"
ROLE_LABEL: Final = f"{GROUP}/role"
STAGE_LABEL: Final = f"{GROUP}/stage"
ATTEMPT_LABEL: Final = f"{GROUP}/attempt"
BATCH_JOB_LABEL: Final = "batch.kubernetes.io/job-name"  # set by the Job controller: the pod's Job
INDEX_LABEL: Final = "batch.kubernetes.io/job-completion-index"  # of a pod of an Indexed Job
HASH: Final = f"{GROUP}/applied-hash"
"""Annotation: hash of the last applied form; an unchanged object is not written again."""
SPEC: Final = f"{GROUP}/applied-spec"
"""Annotation: generation of the job, and a hash of its spec without replicas and timing, when it was last applied."""
RESTARTS: Final = f"{GROUP}/restarts"
COUNTED: Final = f"{GROUP}/restarts-counted"
"""Annotations of an attempt's Job: restarts of the whole job before it, and those that count towards maxRestarts."""
WINDOW_START: Final = f"{GROUP}/restart-window-start"
"""Annotation of an attempt's Job: time of the first counted restart in the window of spec.failurePolicy."""
FAILURES: Final = f"{GROUP}/failures"
"""Annotation of an attempt's Job: consecutive failures before it without a new checkpoint."""
DISRUPTIONS: Final = f"{GROUP}/disruptions"
QUOTA: Final = f"{GROUP}/quota-request"
"""Annotation of a Workload: digest of all that decides which quota the stage needs."""
SOURCES: Final = f"{GROUP}/sources"
"""Annotation of the prepare Job: digest of the sources that it downloads or generates."""
START_STEP: Final = f"{GROUP}/start-step"
"""Annotations of an attempt's Job: consecutive disruptions before it, and its checkpoint's step."""

FINALIZER: Final = f"{GROUP}/ordered-deletion"
"""Finalizer of an AgenticRLJob that may have pods: its deletion waits for them (decide/deletion.py)."""

SELECTOR: Final = f"{MANAGED_BY}={FIELD_MANAGER}"

REDIS_PORT: Final = 6379
JUDGE_PORT: Final = 8080
EXECUTOR_PORT: Final = 7070
ENGINE_PORT: Final = 8000
ENDPOINT_PORT: Final = 8000
ENVIRONMENT_PORT: Final = 8000

JOB_FILE: Final = "/etc/rstar2/job.json"
WORKER_KEYS: Final = "/etc/rstar2/worker"
STORAGE_MOUNT: Final = "/state"
CLAIM_MOUNT: Final = "/pvc"
CA_MOUNT: Final = "/etc/rstar2-ca"
CA_VARIABLES: Final = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO")
"""Variables by which OpenSSL, requests, curl and git find a bundle of certificates."""


def state_folder(job: str) -> str:
    """Return the path of the job's state directory in its pods."""
    return f"{STORAGE_MOUNT}/{job}"


def job_file(job: str) -> str:
    """Return the name of the ConfigMap with the job file."""
    return f"{job}-job"


def progress(job: str) -> str:
    """Return the name of the ConfigMap with progress and outcomes."""
    return f"{job}-progress"


def secrets(job: str) -> str:
    """Return the name of the Secret with the passwords and keys that the job's pods share."""
    return f"{job}-secrets"


def claim(job: str) -> str:
    """Return the name of the claim that the operator creates for a job without claimName."""
    return f"{job}-state"


def pods_account(job: str) -> str:
    """Return the name of the ServiceAccount without rights, of all pods except the trainer's."""
    return f"{job}-pods"


def trainer(job: str) -> str:
    """Return the name of ServiceAccount, Role and headless Service of the stage pods."""
    return f"{job}-trainer"


def redis(job: str) -> str:
    """Return the name of StatefulSet and Service of Redis."""
    return f"{job}-redis"


def judge(job: str) -> str:
    """Return the name of Deployment and Service of the judge (API and worker)."""
    return f"{job}-judge"


def executor(job: str) -> str:
    """Return the name of Deployment and headless Service of the executors."""
    return f"{job}-executor"


def rollout(job: str) -> str:
    """Return the name of Deployment and headless Service of the engines."""
    return f"{job}-rollout"


def teacher(job: str) -> str:
    """Return the name of Deployment and Service of the teacher's engines."""
    return f"{job}-teacher"


def environment(job: str) -> str:
    """Return the name of Deployment and headless Service of the environment's servers."""
    return f"{job}-environment"


def agent(job: str) -> str:
    """Return the name of Deployment and ConfigMap of the pods that run an agent's programs."""
    return f"{job}-agent"


def prepare(job: str) -> str:
    """Return the name of the Job that downloads model and datasets into the storage."""
    return f"{job}-prepare"


def report(job: str) -> str:
    """Return the name of the Job that writes the report and closes the MLflow run."""
    return f"{job}-report"


def attempt(job: str, stage: str, number: int) -> str:
    """Return the name of the Job of one attempt of a stage."""
    return f"{job}-{stage}-{number}"


def workload(job: str, stage: str) -> str:
    """Return the name of the Kueue Workload of a stage."""
    return f"{job}-{stage}"


def serving(job: str) -> str:
    """Return the name that replaces the job's in objects that serve its model.

    It does not start with the job's name, because the operator finds the job of an event by that prefix.
    """
    return f"serve-{job}"


def endpoint(job: str) -> str:
    """Return the name of Deployment and Service of the endpoint in front of a served model."""
    return f"{job}-endpoint"


def labels(job: str, role: str, *, manager: str = FIELD_MANAGER) -> dict[str, str]:
    """Return the labels of every object of a role."""
    return {MANAGED_BY: manager, JOB_LABEL: job, ROLE_LABEL: role}
