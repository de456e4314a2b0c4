"""The Code Judge: API and workers, which are trusted, in one Deployment; executors in gVisor in another.

An executor has nothing worth taking: no token, no password, no volume but scratch space, no network that a policy does
not open. It serves whoever proves to hold the key whose public half it is given, and that is a worker of this job.
"""

from __future__ import annotations

from rstar2_operator import names
from rstar2_operator.builders.pod import (
    HEADLESS,
    NO_SURGE,
    BuildContext,
    Container,
    Manifest,
    PodTemplate,
    deployment,
    image,
    service,
    template,
)
from rstar2_train.api.base import amount
from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.utils.auth import JUDGE_TOKEN, REDIS_PASSWORD

JUDGE_RESOURCES = {"requests": {"cpu": "250m", "memory": "256Mi"}, "limits": {"memory": "2Gi"}}
BOOT_SECONDS = 600
"""How long a pod of the judge may take to come up."""
EXECUTOR_BASE_MIB = 512
"""What an executor holds besides the call in it: gVisor itself and three warmed-up interpreters."""


def judge(built: BuildContext) -> list[Manifest]:
    """API and worker: Deployment and Service."""
    job = built.job
    name, labels = names.judge(built.name), built.labels("judge")
    chosen = image(job.spec.judge.image, built.settings.judge_image, built)
    redis = f"redis://{names.redis(built.name)}:{names.REDIS_PORT}/0"
    ping = {"httpGet": {"path": "/ping", "port": "api"}, "periodSeconds": 5}
    api = Container(
        name="api",
        image=chosen,
        command=["python", "-m", "rstar2_train.judge", "api", "--host", "0.0.0.0",
                 "--port", str(names.JUDGE_PORT), "--redis", redis],
        secrets={REDIS_PASSWORD: "redis-password", JUDGE_TOKEN: "judge-token"},
        ports={"api": names.JUDGE_PORT},
        resources=JUDGE_RESOURCES,
        probes={"readinessProbe": ping, "livenessProbe": {**ping, "periodSeconds": 20, "failureThreshold": 6}},
    )  # fmt: skip
    worker = Container(
        name="worker",
        image=chosen,
        command=["python", "-m", "rstar2_train.judge", "worker", "--redis", redis,
                 "--executors-at", f"{names.executor(built.name)}:{names.EXECUTOR_PORT}",
                 "--key-file", f"{names.WORKER_KEYS}/key", "--isolation", job.spec.executor.isolation_option],
        secrets={REDIS_PASSWORD: "redis-password"},
        mounts=[{"name": "worker-key", "mountPath": names.WORKER_KEYS, "readOnly": True}],
        resources=JUDGE_RESOURCES,
    )  # fmt: skip
    pod = PodTemplate(role="judge", containers=[api, worker], volumes=[_key(built, "worker-key", "key")])
    return [
        service(name, labels, "api", names.JUDGE_PORT),
        deployment(name, labels, job.spec.judge.replicas, template(pod, built), deadline=BOOT_SECONDS),
    ]


def executor(built: BuildContext) -> list[Manifest]:
    """The sandboxes: Deployment and headless Service, by which workers find every one of them."""
    wanted, limits = built.job.spec.executor, JudgeLimits.from_spec(built.job.spec.judge.limits)
    name, labels = names.executor(built.name), built.labels("executor")
    share = 6 if built.job.spec.rollout.tool == "jupyter_code" else 2  # as the worker allows: pool.py
    memory = f"{limits.memory_mib * share + EXECUTOR_BASE_MIB}Mi"
    cpu = f"{round(amount(wanted.cpu) * 1000)}m"
    container = Container(
        name="executor",
        image=image(built.job.spec.judge.image, built.settings.judge_image, built),
        command=["python", "-m", "rstar2_train.judge", "executor", "--host", "0.0.0.0",
                 "--port", str(names.EXECUTOR_PORT), "--worker-key-file", f"{names.WORKER_KEYS}/public-key",
                 "--isolation", wanted.isolation_option],
        ports={"executor": names.EXECUTOR_PORT},
        mounts=[{"name": "worker-public-key", "mountPath": names.WORKER_KEYS, "readOnly": True}],
        resources={"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}},
        probes={"readinessProbe": {"tcpSocket": {"port": "executor"}, "periodSeconds": 5}},
    )  # fmt: skip
    extra: Manifest = {"dnsPolicy": "None", "dnsConfig": {"nameservers": ["127.0.0.1"]}}
    if wanted.isolation == "GVisor":
        extra["runtimeClassName"] = wanted.runtime_class_name
    pod = PodTemplate(
        role="executor",
        containers=[container],
        volumes=[_key(built, "worker-public-key", "public-key")],
        extra=extra,
    )
    return [
        service(name, labels, "executor", names.EXECUTOR_PORT, **HEADLESS),
        deployment(name, labels, wanted.replicas, template(pod, built), deadline=BOOT_SECONDS, strategy=NO_SURGE),
    ]


def _key(built: BuildContext, entry: str, path: str) -> Manifest:
    """One half of the workers' key, and nothing else of the Secret."""
    items = [{"key": entry, "path": path}]
    return {"name": entry, "secret": {"secretName": names.secrets(built.name), "items": items}}
