"""The vLLM engines: one Deployment, and a headless Service that the orchestrator resolves to every engine.

An engine reads its model and weights from the job's claim or, with spec.storage.url, copies them from the bucket.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rstar2_operator import names
from rstar2_operator.builders import accelerator
from rstar2_operator.builders.manifest import Manifest, merge, resources
from rstar2_operator.builders.pod import (
    CACHE,
    HEADLESS,
    NO_SURGE,
    BuildContext,
    Container,
    PodTemplate,
    bucket_access,
    deployment,
    image,
    job_file,
    service,
    shared_memory,
    storage,
    template,
)
from rstar2_train.api.contracts import SEQUENCE_TOKENS
from rstar2_train.api.engine_args import given_args
from rstar2_train.api.objectives import TeacherSpec
from rstar2_train.api.roles import RolloutSpec
from rstar2_train.capacity.fit import longest_sequence
from rstar2_train.utils.auth import ENGINE_TOKEN
from rstar2_train.utils.listening import EVERY_ADDRESS

BOOT_SECONDS = 1800
"""Seconds until the kubelet restarts an engine that has not loaded its model."""


def rollout(context: BuildContext) -> list[Manifest]:
    """Return Deployment and headless Service."""
    spec, rdma = context.job.spec.rollout, accelerator.engine_rdma(context)
    model = context.resolved.spec.model.source
    pod = engine(
        *(context, "rollout", spec),
        own_image=spec.image,
        options=["--model", model],
        tokens=longest_sequence(context.job),
        devices=rdma,
    )
    name, labels = names.rollout(context.name), context.labels("rollout")
    return [
        service(name, labels, "engine", names.ENGINE_PORT, **HEADLESS),
        deployment(name, labels, spec.replicas, template(pod, context), deadline=BOOT_SECONDS, strategy=NO_SURGE),
    ]


def _length(context: BuildContext, role: str, spec: RolloutSpec | TeacherSpec, tokens: int) -> dict[str, str]:
    """Return the variable by which a longer prompt or response replaces the engines; none if engineArgs decides."""
    if "max-model-len" in given_args(spec):
        return {}
    return {SEQUENCE_TOKENS: str(max(tokens, context.kept_lengths.get(role, 0)))}


def engine(
    context: BuildContext,
    role: Literal["rollout", "teacher"],
    spec: RolloutSpec | TeacherSpec,
    *,
    own_image: str | None,
    options: Sequence[str],
    tokens: int,
    devices: Manifest,
) -> PodTemplate:
    """Return the pod of an engine.

    `options`: of its server; `tokens`: of the longest sequence; `devices`: resources besides its accelerators.
    """
    job_volume, job_mount = job_file(context)
    volumes, mounts = storage(context)
    bucket = bool(context.job.spec.storage.url)
    reads = [mount if bucket and mount["name"] == CACHE else {**mount, "readOnly": True} for mount in mounts]
    shm_volume, shm_mount = shared_memory("16Gi" if context.job.spec.accelerator.vendor != "None" else "256Mi")
    health = {"httpGet": {"path": "/health", "port": "engine"}, "timeoutSeconds": 5}
    container = Container(
        name="engine",
        image=image(own_image, context.settings.rollout_image, context),
        command=["python", "-m", "rstar2_train.inference.server", "--job", names.JOB_FILE, *options,
                 "--port", str(names.ENGINE_PORT), "--host", EVERY_ADDRESS,
                 *(["--bucket", names.state_folder(context.name)] if bucket else [])],
        env=_length(context, role, spec, tokens),
        tuning=accelerator.environment(context),
        env_from=bucket_access(context),
        secrets={ENGINE_TOKEN: "engine-token"},
        ports={"engine": names.ENGINE_PORT},
        mounts=[job_mount, shm_mount, *reads],
        resources=merge(merge(resources(spec.resources), accelerator.devices(context, spec.tensor_parallel)), devices),
        probes={
            "startupProbe": {**health, "periodSeconds": 5, "failureThreshold": BOOT_SECONDS // 5},
            "readinessProbe": {**health, "periodSeconds": 5},
            "livenessProbe": {**health, "periodSeconds": 20, "failureThreshold": 6, "timeoutSeconds": 10},
        },
    )  # fmt: skip
    return PodTemplate(
        role=role,
        containers=[container],
        volumes=[job_volume, shm_volume, *volumes],
        groups=accelerator.groups(context),
        extra=accelerator.claims(context, role),
    )
