"""The Code Judge: one Deployment with API and workers, which are trusted, and one with the executors in gVisor.

An executor has no token, no password, no volume except scratch space, and no network except from the workers. It
accepts only clients with the private key to its public key: the workers of its job.
"""

from __future__ import annotations

from rstar2_operator import names
from rstar2_operator.builders.manifest import Manifest
from rstar2_operator.builders.pod import (
    HEADLESS,
    NO_SURGE,
    BuildContext,
    Container,
    PodTemplate,
    deployment,
    image,
    service,
    template,
)
from rstar2_train.api.base import amount
from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.utils.auth import ALIVE_FILE, JUDGE_TOKEN, REDIS_PASSWORD
from rstar2_train.utils.listening import EVERY_ADDRESS

JUDGE_RESOURCES = {"requests": {"cpu": "250m", "memory": "256Mi"}, "limits": {"memory": "2Gi"}}
BOOT_SECONDS = 600
"""Seconds until a starting pod of the judge counts as failed."""
ALIVE_PATH = "/tmp/worker-alive"
ALIVE = f"test ! -e {ALIVE_PATH} || test $(($(date +%s) - $(stat -c %Y {ALIVE_PATH}))) -lt 60"
"""Probe of a worker. An image without the file passes: images may be older than the operator."""
ALIVE_PROBE: Manifest = {"exec": {"command": ["sh", "-c", ALIVE]}, "periodSeconds": 20, "failureThreshold": 6}
EXECUTOR_BASE_MIB = 512
"""Memory of an executor without a call: gVisor and four warm interpreters."""
PACKAGES_MIB = 256
"""Memory of the warm interpreter that has loaded the job's packages."""


def judge(context: BuildContext) -> list[Manifest]:
    """Return Deployment and Service of API and worker."""
    job = context.job
    name, labels = names.judge(context.name), context.labels("judge")
    judge_image = image(job.spec.judge.image, context.settings.judge_image, context)
    redis = f"redis://{names.redis(context.name)}:{names.REDIS_PORT}/0"
    ping = {"httpGet": {"path": "/ping", "port": "api"}, "periodSeconds": 5}
    api = Container(
        name="api",
        image=judge_image,
        command=["python", "-m", "rstar2_train.judge", "api", "--host", EVERY_ADDRESS,
                 "--port", str(names.JUDGE_PORT), "--redis", redis],
        secrets={REDIS_PASSWORD: "redis-password", JUDGE_TOKEN: "judge-token"},
        ports={"api": names.JUDGE_PORT},
        resources=JUDGE_RESOURCES,
        probes={"readinessProbe": ping, "livenessProbe": {**ping, "periodSeconds": 20, "failureThreshold": 6}},
    )  # fmt: skip
    worker = Container(
        name="worker",
        image=judge_image,
        command=["python", "-m", "rstar2_train.judge", "worker", "--redis", redis,
                 "--executors-at", f"{names.executor(context.name)}:{names.EXECUTOR_PORT}",
                 "--key-file", f"{names.WORKER_KEYS}/key", "--isolation", job.spec.executor.isolation_option],
        env={ALIVE_FILE: ALIVE_PATH},
        secrets={REDIS_PASSWORD: "redis-password"},
        probes={"livenessProbe": ALIVE_PROBE},
        mounts=[{"name": "worker-key", "mountPath": names.WORKER_KEYS, "readOnly": True}],
        resources=JUDGE_RESOURCES,
    )  # fmt: skip
    pod = PodTemplate(role="judge", containers=[api, worker], volumes=[_key(context, "worker-key", "key")])
    return [
        service(name, labels, "api", names.JUDGE_PORT),
        deployment(name, labels, job.spec.judge.replicas, template(pod, context), deadline=BOOT_SECONDS),
    ]


def executor(context: BuildContext) -> list[Manifest]:
    """Return Deployment and headless Service of the executors; the workers resolve the Service to every executor."""
    spec, limits = context.job.spec.executor, JudgeLimits.from_spec(context.job.spec.judge.limits)
    name, labels = names.executor(context.name), context.labels("executor")
    share = 6 if context.job.spec.rollout.tool == "jupyter_code" else 2  # as the worker allows: judge/worker/pool.py
    base = EXECUTOR_BASE_MIB + (PACKAGES_MIB if context.job.spec.judge.packages else 0)
    memory = f"{limits.memory_mib * share + base}Mi"
    cpu = f"{round(amount(spec.cpu) * 1000)}m"
    container = Container(
        name="executor",
        image=image(context.job.spec.judge.image, context.settings.judge_image, context),
        command=["python", "-m", "rstar2_train.judge", "executor", "--host", EVERY_ADDRESS,
                 "--port", str(names.EXECUTOR_PORT), "--worker-key-file", f"{names.WORKER_KEYS}/public-key",
                 "--isolation", spec.isolation_option],
        ports={"executor": names.EXECUTOR_PORT},
        mounts=[{"name": "worker-public-key", "mountPath": names.WORKER_KEYS, "readOnly": True}],
        resources={"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}},
        probes={"readinessProbe": {"tcpSocket": {"port": "executor"}, "periodSeconds": 5}},
    )  # fmt: skip
    extra: Manifest = {"dnsPolicy": "None", "dnsConfig": {"nameservers": ["127.0.0.1"]}}
    if spec.isolation == "GVisor":
        extra["runtimeClassName"] = spec.runtime_class_name
    pod = PodTemplate(
        role="executor",
        containers=[container],
        opts_out=True,
        volumes=[_key(context, "worker-public-key", "public-key")],
        extra=extra,
    )
    return [
        service(name, labels, "executor", names.EXECUTOR_PORT, **HEADLESS),
        deployment(name, labels, spec.replicas, template(pod, context), deadline=BOOT_SECONDS, strategy=NO_SURGE),
    ]


def _key(context: BuildContext, entry: str, path: str) -> Manifest:
    """Return the volume with one half of the workers' key, and no other key of the Secret."""
    items = [{"key": entry, "path": path}]
    return {"name": entry, "secret": {"secretName": names.secrets(context.name), "items": items}}
