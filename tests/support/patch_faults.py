"""Faults of spec.runtimePatches, as a part of manifests.py."""

from __future__ import annotations

from tests.support.good_manifest import Fault


def patch(**fields: object) -> list[dict[str, object]]:
    """Return spec.runtimePatches with one patch of the trainer."""
    return [{"manager": "m", "roles": ["trainer"], **fields}]


def two_patches(first: dict[str, object], second: dict[str, object]) -> list[dict[str, object]]:
    """Return spec.runtimePatches with two patches that share a role."""
    return [{"manager": "a", "roles": ["trainer"], **first}, {"manager": "b", "roles": ["judge", "trainer"], **second}]


CACHE = {"name": "cache", "persistentVolumeClaim": {"claimName": "site.cache"}}
AFFINITY = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "In", "values": ["mi300x"]}]}]
        }
    },
    "podAntiAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {
                "weight": 5,
                "podAffinityTerm": {
                    "labelSelector": {"matchLabels": {"app": "noisy"}},
                    "topologyKey": "kubernetes.io/hostname",
                },
            }
        ]
    },
}
NODE = {"fieldPath": "spec.nodeName"}
SITE: dict[str, object] = {
    "labels": {"kai.scheduler/queue": "research"},
    "annotations": {"k8s.v1.cni.cncf.io/networks": "roce-0,roce-1"},
    "serviceAccountName": "cloud-identity",
    "env": [
        {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "bucket", "key": "password"}}},
        {"name": "ZONE", "valueFrom": {"configMapKeyRef": {"name": "site.env", "key": "zone"}}},
        {"name": "NODE", "valueFrom": {"fieldRef": NODE}},
        {"name": "POOL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['example.org/pool']"}}},
    ],
    "envFrom": [{"secretRef": {"name": "bucket"}}, {"configMapRef": {"name": "site.env"}}],
    "topologySpreadConstraints": [{"topologyKey": "topology.kubernetes.io/block", "maxSkew": 2}],
    "schedulerName": "kai-scheduler",
    "schedulingGates": [{"name": "example.org/budget"}],
    "resourceClaims": [{"name": "nic", "resourceClaimTemplateName": "rdma-nic"}],
}
"""Every field of a patch about schedulers, networks and accounts of a site."""
PATCH_FAULTS: list[Fault] = [
    (
        "spec.runtimePatches",
        [{"manager": "m", "roles": ["executor"], "env": [{"name": "A"}]}],
        "executors accept only",
        "executors accept only nodeSelector, tolerations, imagePullSecrets, labels",
    ),
    ("spec.runtimePatches", patch(env=[{"name": "1A"}]), "letters, digits and '_'", "env[0].name in body should match"),
    (
        "spec.runtimePatches",
        patch(env=[{"name": "RSTAR2_ENGINE_TOKEN"}]),
        "env[0].name is 'RSTAR2_ENGINE_TOKEN': is reserved for the operator",
        "are reserved for the operator",
    ),
    *(
        (
            "spec.runtimePatches",
            patch(env=[{"name": name, "value": "x"}]),
            f"env[0].name is {name!r}: is reserved for the operator",
            "are reserved for the operator",
        )
        for name in ("HOME", "JOB_COMPLETION_INDEX", "POD_IP", "RAY_ADDRESS", "REDIS_PASSWORD")
    ),
    *(
        (
            "spec.runtimePatches",
            patch(volumes=[CACHE], volumeMounts=[mount]),
            "subPath is",
            "subPath in body should match",
        )
        for sub in ("../../etc", "/etc", "a/./b", "a/", "..")
        for mount in ({"name": "cache", "mountPath": "/c", "subPath": sub},)
    ),
    (
        "spec.runtimePatches",
        patch(nodeSelector={"a b": "1"}),
        "nodeSelector: key 'a b' is not allowed; allowed: a label key",
        None,
    ),
    (
        "spec.runtimePatches",
        patch(nodeSelector={"a": "b c"}),
        "nodeSelector.a is 'b c'",
        "nodeSelector.a in body should",
    ),
    (
        "spec.runtimePatches",
        patch(tolerations=[{"key": "a b", "operator": "Exists"}]),
        "tolerations[0].key is 'a b': allowed: a label key",
        "tolerations[0].key in body should match",
    ),
    *(
        (
            "spec.runtimePatches",
            patch(resources={"requests": {"memory": request}, "limits": {"memory": limit}}),
            f"limits.memory is {limit!r}: must not be less than the request, which is {request}",
            None,
        )
        for request, limit in (("2Gi", "2G"), ("1Ti", "1023Gi"), ("1e3", 999), ("1", "500m"), ("1Ei", "1E"), (1, "0.5"))
    ),
    (
        "spec.runtimePatches",
        patch(volumes=[CACHE], volumeMounts=[{"name": "cache", "mountPath": "/c"}] * 2),
        "volumeMounts[1].mountPath is '/c': duplicate",
        'spec.runtimePatches[0].volumeMounts[1]: Duplicate value: {"mountPath":"/c"}',
    ),
    *(
        ("spec.runtimePatches", patch(resources={kind: {"amd.com/gpu": "1"}}), f"resources.{kind}.amd.com/gpu", None)
        for kind in ("requests", "limits")
    ),
    *(
        (
            "spec.runtimePatches",
            two_patches(first, second),
            f"{field}: spec.runtimePatches[0] (a) already sets {setting} of trainer pods",
            None,
        )
        for first, second, field, setting in (
            (
                {"env": [{"name": "A", "value": "1"}]},
                {"env": [{"name": "A", "value": "2"}]},
                "env[0].name",
                "the variable A",
            ),
            ({"nodeSelector": {"p": "1"}}, {"nodeSelector": {"p": "2"}}, "nodeSelector.p", "the node label p"),
            ({"affinity": AFFINITY}, {"affinity": {}}, "affinity", "the affinity"),
            ({"schedulerName": "volcano"}, {"schedulerName": "kai"}, "schedulerName", "the scheduler"),
            ({"labels": {"queue": "a"}}, {"labels": {"queue": "b"}}, "labels.queue", "the label queue"),
            (
                {"resources": {"limits": {"memory": "1Gi"}}},
                {"resources": {"limits": {"memory": "2Gi"}}},
                "limits.memory",
                "resources.limits.memory",
            ),
            (
                {"volumes": [CACHE], "volumeMounts": [{"name": "cache", "mountPath": "/c"}]},
                {"volumes": [CACHE], "volumeMounts": [{"name": "cache", "mountPath": "/c"}]},
                "volumeMounts[0].mountPath",
                "the mount at /c",
            ),
        )
    ),
    (
        "spec.runtimePatches",
        patch(env=[{"name": "A", "value": "1"}, {"name": "A", "value": "1"}]),
        "env[1].name is 'A': duplicate",
        'spec.runtimePatches[0].env[1]: Duplicate value: {"name":"A"}',
    ),
    (
        "spec.runtimePatches",
        [
            {
                "manager": "m",
                "roles": ["redis"],
                "volumes": [CACHE],
                "volumeMounts": [{"name": "cache", "mountPath": "/data"}],
            }
        ],
        "must not cover /data",
        None,
    ),
    (
        "spec.runtimePatches",
        patch(volumes=[{"name": "v", "hostPath": {"path": "/"}}]),
        "volumes[0].hostPath: unknown field",
        'unknown field "spec.runtimePatches[0].volumes[0].hostPath"',
    ),
    (
        "spec.runtimePatches",
        patch(volumes=[{"name": "v"}]),
        "must set exactly one of persistentVolumeClaim, configMap, secret, emptyDir",
        "must set exactly one of persistentVolumeClaim, configMap, secret, emptyDir",
    ),
    (
        "spec.runtimePatches",
        patch(volumes=[{**CACHE, "emptyDir": {}}]),
        "must set exactly one of persistentVolumeClaim, configMap, secret, emptyDir",
        "must set exactly one of persistentVolumeClaim, configMap, secret, emptyDir",
    ),
    (
        "spec.runtimePatches",
        patch(labels={"rstar2.dev/job": "other"}),
        "labels.rstar2.dev/job: is reserved for the operator and the cluster's controllers",
        None,
    ),
    (
        "spec.runtimePatches",
        patch(labels={"job-name": "other"}),
        "labels.job-name: is reserved for the operator and the cluster's controllers",
        None,
    ),
    (
        "spec.runtimePatches",
        patch(envFrom=[{"secretRef": {"name": "a"}, "configMapRef": {"name": "a"}}]),
        "envFrom[0]: must set exactly one of secretRef, configMapRef",
        "must set exactly one of secretRef, configMapRef",
    ),
    (
        "spec.runtimePatches",
        patch(resourceClaims=[{"name": "nic"}]),
        "resourceClaims[0]: must set exactly one of resourceClaimName, resourceClaimTemplateName",
        "must set exactly one of resourceClaimName, resourceClaimTemplateName",
    ),
    (
        "spec.runtimePatches",
        patch(resourceClaims=[{"name": "rstar2-accelerator", "resourceClaimName": "a"}]),
        "resourceClaims[0].name is 'rstar2-accelerator': is reserved for spec.accelerator.claimTemplates",
        "is reserved for spec.accelerator.claimTemplates",
    ),
    (
        "spec.runtimePatches",
        patch(env=[{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}, "fieldRef": NODE}}]),
        "env[0].valueFrom: must set exactly one of secretKeyRef, configMapKeyRef, fieldRef",
        "must set exactly one of secretKeyRef, configMapKeyRef, fieldRef",
    ),
    (
        "spec.runtimePatches",
        patch(env=[{"name": "A", "value": "x", "valueFrom": {"fieldRef": NODE}}]),
        "env[0].valueFrom: must not be set together with value",
        "must not be set together with value",
    ),
    (
        "spec.runtimePatches",
        patch(env=[{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.containers"}}}]),
        "fieldPath is 'spec.containers': allowed: metadata.name",
        "fieldPath in body should match",
    ),
    (
        "spec.runtimePatches",
        patch(affinity={"nodeAffinity": {"required": {}}}),
        "affinity.nodeAffinity.required: unknown field",
        'unknown field "spec.runtimePatches[0].affinity.nodeAffinity.required"',
    ),
    (
        "spec.runtimePatches",
        patch(topologySpreadConstraints=[{"topologyKey": "a", "maxSkew": 0}]),
        "maxSkew is 0: should be greater than or equal to 1",
        "maxSkew in body should be greater than or equal to 1",
    ),
    (
        "spec.runtimePatches",
        [{"manager": "m", "roles": ["executor"], "annotations": {"dev.gvisor.flag.network": "host"}}],
        "annotations.dev.gvisor.flag.network: could weaken the sandbox of executors",
        "could weaken the sandbox of executors",
    ),
    (
        "spec.runtimePatches",
        patch(volumes=[CACHE, CACHE]),
        "volumes[1].name is 'cache': duplicate",
        "volumes[1]: Duplicate value",
    ),
    (
        "spec.runtimePatches",
        patch(volumeMounts=[{"name": "state", "mountPath": "/x"}]),
        "must name a volume of the same patch, which has none",
        "each volumeMount must name a volume of the same patch",
    ),
    *(
        (
            "spec.runtimePatches",
            patch(volumes=[CACHE], volumeMounts=[{"name": "cache", "mountPath": path}]),
            f"mountPath is {path!r}: {offline}",
            online,
        )
        for path, offline, online in (
            ("/etc/rstar2", "must not cover /etc/rstar2", "must not cover /etc/rstar2, /state"),
            ("/etc", "must not cover /etc/rstar2", "must not cover /etc/rstar2, /state"),
            ("/state/j", "must not cover /state or be inside it", "or be inside any of them except /tmp"),
            ("/tmp", "must not cover /tmp", "must not cover"),
            ("/a/../state", "must not have '.' or '..' components", "must not have '.' or '..' components"),
            ("relative", "allowed: an absolute path", "mountPath in body should match"),
        )
    ),
]
"""Path, value, message of the offline rules, message of the API server, as in `manifests.FAULTS`."""
