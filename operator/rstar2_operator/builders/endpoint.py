"""The endpoint in front of a served model: `rstar2 serve` with an engine and a judge that run in pods of their own.

It needs no accelerator, only a tokenizer and what serves HTTP. The engines' image has both, and a node has it already.
"""

from __future__ import annotations

from rstar2_operator import names
from rstar2_operator.builders.pod import (
    BuildContext,
    Container,
    Manifest,
    PodTemplate,
    deployment,
    image,
    service,
    storage,
    template,
)
from rstar2_operator.builders.rollout import BOOT_SECONDS
from rstar2_train.utils.auth import ENGINE_TOKEN, JUDGE_TOKEN, SERVE_TOKEN

GRACE_SECONDS = 120
"""What answers under way have to end when the pod is told to."""
RESOURCES = {"requests": {"cpu": "250m", "memory": "512Mi"}, "limits": {"memory": "4Gi"}}


def endpoint(built: BuildContext) -> list[Manifest]:
    """Deployment and Service. A pod is ready once its engine and its judge have answered it."""
    name, labels = names.endpoint(built.name), built.labels("endpoint")
    volumes, mounts = storage(built)
    health = {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 5, "timeoutSeconds": 5}
    container = Container(
        name="endpoint",
        image=image(built.job.spec.rollout.image, built.settings.rollout_image, built),
        command=["python", "-m", "rstar2_train.cli", "serve", built.located.spec.model.source,
                 "--host", "0.0.0.0", "--port", str(names.ENDPOINT_PORT), "--grace", str(GRACE_SECONDS),
                 "--endpoint", f"http://{names.rollout(built.name)}:{names.ENGINE_PORT}",
                 "--judge", f"http://{names.judge(built.name)}:{names.JUDGE_PORT}"],
        secrets={
            SERVE_TOKEN: "serve-token",
            ENGINE_TOKEN: "engine-token",
            JUDGE_TOKEN: "judge-token",
        },
        ports={"http": names.ENDPOINT_PORT},
        mounts=[{**mount, "readOnly": True} for mount in mounts],
        resources=RESOURCES,
        probes={
            "startupProbe": {**health, "failureThreshold": BOOT_SECONDS // 5},
            "readinessProbe": health,
            "livenessProbe": {**health, "periodSeconds": 20, "failureThreshold": 6},
        },
    )  # fmt: skip
    pod = PodTemplate(
        role="endpoint",
        patched_as="rollout",  # the same image, so the same pull secrets, mounts and nodes
        containers=[container],
        volumes=volumes,
        extra={"terminationGracePeriodSeconds": GRACE_SECONDS + 15},
    )
    return [
        service(name, labels, "http", names.ENDPOINT_PORT),
        deployment(name, labels, 1, template(pod, built), deadline=BOOT_SECONDS),
    ]
