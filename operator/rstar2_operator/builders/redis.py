"""Redis, the judge's queue: one pod with an append-only file on its own volume."""

from __future__ import annotations

from decimal import Decimal

from rstar2_operator import names
from rstar2_operator.builders.manifest import Manifest, resources
from rstar2_operator.builders.pod import BuildContext, Container, PodTemplate, image, service, template
from rstar2_train.api.base import amount
from rstar2_train.api.roles import REDIS_DATA

# Redis reads its password from standard input, because command lines are visible to every process of the node. With
# `exec`, Redis itself gets SIGTERM and writes its file before it exits.
SCRIPT = f"""exec redis-server - <<END
port {names.REDIS_PORT}
bind * -::*
requirepass $REDIS_PASSWORD
dir {REDIS_DATA}
appendonly yes
appendfsync everysec
save ""
maxmemory-policy noeviction
{{maxmemory}}END
"""
MEMORY_SHARE = Decimal("0.7")
"""Share of the memory limit for data: the rest is for copies during the rewrite of the file, and for connections."""
PROBE = f"REDISCLI_AUTH=$REDIS_PASSWORD redis-cli -p {names.REDIS_PORT} ping | grep -q PONG"


def _maxmemory(context: BuildContext) -> str:
    """Return the line with the limit of the data: above it Redis refuses writes, and is not killed with all calls."""
    patches = [patch.resources for patch in context.job.spec.runtime_patches if "redis" in patch.roles]
    limits = [part.limits.get("memory") for part in (context.job.spec.redis.resources, *filter(None, patches))]
    limit = next((memory for memory in reversed(limits) if memory is not None), None)
    return "" if limit is None else f"maxmemory {int(amount(limit) * MEMORY_SHARE)}\n"


def redis(context: BuildContext) -> list[Manifest]:
    """Return StatefulSet and Service."""
    spec = context.job.spec.redis
    name = names.redis(context.name)
    labels = context.labels("redis")
    probe = {"exec": {"command": ["sh", "-c", PROBE]}, "periodSeconds": 5, "timeoutSeconds": 3}
    container = Container(
        name="redis",
        image=image(spec.image, context.settings.redis_image, context),
        command=["sh", "-c", SCRIPT.format(maxmemory=_maxmemory(context))],
        secrets={"REDIS_PASSWORD": "redis-password"},
        ports={"redis": names.REDIS_PORT},
        mounts=[{"name": "data", "mountPath": REDIS_DATA}],
        resources=resources(spec.resources),
        probes={
            "readinessProbe": probe,
            "livenessProbe": {**probe, "periodSeconds": 10, "failureThreshold": 6, "timeoutSeconds": 5},
        },
    )
    claim: Manifest = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "labels": labels},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": str(spec.storage)}}},
    }
    if context.job.spec.storage.storage_class_name:
        claim["spec"]["storageClassName"] = context.job.spec.storage.storage_class_name
    return [
        service(name, labels, "redis", names.REDIS_PORT),
        {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {"name": name, "labels": labels},
            "spec": {
                "replicas": 1,
                "serviceName": name,
                # With OrderedReady, a pod that was never ready is not replaced after its template is fixed.
                "podManagementPolicy": "Parallel",
                "selector": {"matchLabels": labels},
                "template": template(PodTemplate(role="redis", containers=[container]), context),
                "volumeClaimTemplates": [claim],
                # The queue has at most the calls of one step, which are worthless without the job.
                "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete", "whenScaled": "Retain"},
            },
        },
    ]
