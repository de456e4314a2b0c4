"""Redis, the judge's queue: one pod with an append-only file on a volume of its own."""

from __future__ import annotations

from rstar2_operator import names
from rstar2_operator.builders.pod import (
    BuildContext,
    Container,
    Manifest,
    PodTemplate,
    image,
    resources,
    service,
    template,
)
from rstar2_train.api.roles import REDIS_DATA

# The password comes from the environment and goes to Redis on its standard input: on a command line it would be seen
# by whoever lists the processes. `exec` makes Redis the process that gets SIGTERM, and writes its file before it ends.
SCRIPT = f"""exec redis-server - <<END
port {names.REDIS_PORT}
bind * -::*
requirepass $REDIS_PASSWORD
dir {REDIS_DATA}
appendonly yes
appendfsync everysec
save ""
maxmemory-policy noeviction
END
"""
PROBE = f"REDISCLI_AUTH=$REDIS_PASSWORD redis-cli -p {names.REDIS_PORT} ping | grep -q PONG"


def redis(built: BuildContext) -> list[Manifest]:
    """StatefulSet and Service."""
    wanted = built.job.spec.redis
    name = names.redis(built.name)
    labels = built.labels("redis")
    probe = {"exec": {"command": ["sh", "-c", PROBE]}, "periodSeconds": 5, "timeoutSeconds": 3}
    container = Container(
        name="redis",
        image=image(wanted.image, built.settings.redis_image, built),
        command=["sh", "-c", SCRIPT],
        secrets={"REDIS_PASSWORD": "redis-password"},
        ports={"redis": names.REDIS_PORT},
        mounts=[{"name": "data", "mountPath": REDIS_DATA}],
        resources=resources(wanted.resources),
        probes={
            "readinessProbe": probe,
            "livenessProbe": {**probe, "periodSeconds": 10, "failureThreshold": 6, "timeoutSeconds": 5},
        },
    )
    claim: Manifest = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "labels": labels},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": str(wanted.storage)}}},
    }
    if built.job.spec.storage.storage_class_name:
        claim["spec"]["storageClassName"] = built.job.spec.storage.storage_class_name
    return [
        service(name, labels, "redis", names.REDIS_PORT),
        {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {"name": name, "labels": labels},
            "spec": {
                "replicas": 1,
                "serviceName": name,
                # Otherwise a pod that never got ready is not replaced, whatever is put right in its template.
                "podManagementPolicy": "Parallel",
                "selector": {"matchLabels": labels},
                "template": template(PodTemplate(role="redis", containers=[container]), built),
                "volumeClaimTemplates": [claim],
                # The queue holds no more than the calls of one step: it is of no worth without its job.
                "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete", "whenScaled": "Retain"},
            },
        },
    ]
