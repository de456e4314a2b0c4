"""The servers of an environment: one Deployment, and a headless Service that the orchestrator resolves to each of them.

They run a user's image: no secret, no volume of the job, no egress, and no client except the trainer.
"""

from __future__ import annotations

from rstar2_operator import names
from rstar2_operator.builders.manifest import Manifest, resources
from rstar2_operator.builders.pod import HEADLESS, BuildContext, Container, PodTemplate, deployment, service, template
from rstar2_train.api.tasks import EnvironmentSpec

BOOT_SECONDS = 600
"""Seconds until the kubelet restarts a server that does not answer after its start."""


def own_environment(context: BuildContext) -> EnvironmentSpec | None:
    """Return the environment whose servers the job starts; None without one."""
    return next((spec for spec in context.job.spec.environments if spec.url is None), None)


def environment(context: BuildContext) -> list[Manifest]:
    """Return Deployment and headless Service; nothing for a job without servers of its own."""
    spec = own_environment(context)
    if spec is None or spec.image is None:
        return []
    name, labels = names.environment(context.name), context.labels("environment")
    health = {"httpGet": {"path": "/schema", "port": "http"}, "periodSeconds": 5, "timeoutSeconds": 5}
    container = Container(
        name="environment",
        image=spec.image,
        command=spec.argv(host="0.0.0.0", port=names.ENVIRONMENT_PORT),
        ports={"http": names.ENVIRONMENT_PORT},
        resources=resources(spec.resources),
        probes={
            "startupProbe": {**health, "failureThreshold": BOOT_SECONDS // 5},
            "readinessProbe": health,
            "livenessProbe": {**health, "periodSeconds": 20, "failureThreshold": 6, "timeoutSeconds": 10},
        },
    )
    pod = PodTemplate(role="environment", containers=[container])
    return [
        service(name, labels, "http", names.ENVIRONMENT_PORT, **HEADLESS),
        deployment(name, labels, spec.replicas, template(pod, context), deadline=BOOT_SECONDS),
    ]
