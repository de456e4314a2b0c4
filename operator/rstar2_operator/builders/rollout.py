"""The vLLM engines: one Deployment, and a headless Service by which the driver finds every engine."""

from __future__ import annotations

from rstar2_operator import names
from rstar2_operator.builders import accelerator
from rstar2_operator.builders.pod import (
    HEADLESS,
    NO_SURGE,
    BuildContext,
    Container,
    Manifest,
    PodTemplate,
    deployment,
    image,
    job_file,
    merge,
    resources,
    service,
    shared_memory,
    storage,
    template,
)
from rstar2_train.utils.auth import ENGINE_TOKEN

BOOT_SECONDS = 1800
"""How long an engine may take to load its model before the kubelet starts it anew."""


def rollout(built: BuildContext) -> list[Manifest]:
    """Deployment and headless Service."""
    wanted = built.job.spec.rollout
    name, labels = names.rollout(built.name), built.labels("rollout")
    job_volume, job_mount = job_file(built)
    volumes, mounts = storage(built)
    shm_volume, shm_mount = shared_memory("16Gi" if built.job.spec.accelerator.vendor != "None" else "256Mi")
    health = {"httpGet": {"path": "/health", "port": "engine"}, "timeoutSeconds": 5}
    container = Container(
        name="engine",
        image=image(wanted.image, built.settings.rollout_image, built),
        command=["python", "-m", "rstar2_train.inference.server", "--job", names.JOB_FILE,
                 "--model", built.located.spec.model.source, "--port", str(names.ENGINE_PORT), "--host", "0.0.0.0"],
        tuning=accelerator.environment(built),
        secrets={ENGINE_TOKEN: "engine-token"},
        ports={"engine": names.ENGINE_PORT},
        mounts=[job_mount, shm_mount, *({**mount, "readOnly": True} for mount in mounts)],
        resources=merge(resources(wanted.resources), accelerator.devices(built, wanted.tensor_parallel)),
        probes={
            "startupProbe": {**health, "periodSeconds": 5, "failureThreshold": BOOT_SECONDS // 5},
            "readinessProbe": {**health, "periodSeconds": 5},
            "livenessProbe": {**health, "periodSeconds": 20, "failureThreshold": 6, "timeoutSeconds": 10},
        },
    )  # fmt: skip
    pod = PodTemplate(
        role="rollout",
        containers=[container],
        volumes=[job_volume, shm_volume, *volumes],
        groups=accelerator.groups(built),
    )
    return [
        service(name, labels, "engine", names.ENGINE_PORT, **HEADLESS),
        deployment(name, labels, wanted.replicas, template(pod, built), deadline=BOOT_SECONDS, strategy=NO_SURGE),
    ]
