"""The endpoint in front of a served model: `rstar2 serve` with an engine and a judge in pods of their own.

It needs a tokenizer and an HTTP server, but no accelerator. It runs the engines' image, which is on the node already.
"""

from __future__ import annotations

from rstar2_operator import names
from rstar2_operator.builders.manifest import Manifest
from rstar2_operator.builders.pod import (
    BuildContext,
    Container,
    PodTemplate,
    deployment,
    image,
    server_tokens,
    service,
    storage,
    template,
)
from rstar2_operator.builders.rollout import BOOT_SECONDS
from rstar2_train.utils.auth import ENGINE_TOKEN, JUDGE_TOKEN, SERVE_TOKEN
from rstar2_train.utils.listening import EVERY_ADDRESS

GRACE_SECONDS = 120
"""Seconds that answers in flight have to finish after SIGTERM."""
RESOURCES = {"requests": {"cpu": "250m", "memory": "512Mi"}, "limits": {"memory": "4Gi"}}


def endpoint(context: BuildContext) -> list[Manifest]:
    """Return Deployment and Service. A pod is ready after its engine and its judge have answered it."""
    name, labels = names.endpoint(context.name), context.labels("endpoint")
    volumes, mounts = storage(context)
    health = {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 5, "timeoutSeconds": 5}
    container = Container(
        name="endpoint",
        image=image(context.job.spec.rollout.image, context.settings.rollout_image, context),
        command=["python", "-m", "rstar2_train.cli", "serve", context.resolved.spec.model.source,
                 "--host", EVERY_ADDRESS, "--port", str(names.ENDPOINT_PORT), "--grace", str(GRACE_SECONDS),
                 "--endpoint", f"http://{names.rollout(context.name)}:{names.ENGINE_PORT}",
                 "--judge", f"http://{names.judge(context.name)}:{names.JUDGE_PORT}"],
        secrets={
            SERVE_TOKEN: "serve-token",
            ENGINE_TOKEN: "engine-token",
            JUDGE_TOKEN: "judge-token",
        },
        site_secrets=server_tokens(context.job),
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
        deployment(name, labels, 1, template(pod, context), deadline=BOOT_SECONDS),
    ]
