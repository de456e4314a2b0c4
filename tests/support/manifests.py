"""A valid manifest, and manifests with one fault each, for the offline rules and for a real API server.

`FAULTS` has for each fault the message of `rstar2 validate` and the message of the API server's schema or CEL rule;
None if only the offline rules detect it.
"""

from __future__ import annotations

from typing import get_args

from rstar2_train.api.job import FailingRole
from rstar2_train.api.roles import Role
from tests.support.good_manifest import GOOD, Fault, evaluate, in_bucket
from tests.support.patch_faults import AFFINITY, CACHE, PATCH_FAULTS, SITE, patch, two_patches
from tests.support.pod_faults import POD_FAULTS
from tests.support.service_faults import SERVICE_FAULTS
from tests.support.stage_faults import STAGE_FAULTS

DISTILLED = {
    "name": "distilled",
    "type": "GRPO",
    "grpo": {
        "data": "/data/p.jsonl",
        "steps": 2,
        "objective": {"type": "Distillation", "teacher": {"source": "pvc://m/t"}},
        "referenceKl": {"weight": 0},
    },
}
"""A stage that removes the KL term of its job."""
DISTILLED_FROM_BASE = {
    "objective": {"type": "Distillation", "teacher": {"source": "pvc://models/base"}, "rewardWeight": 1}
}
"""Settings of a stage whose reward moves it away from its teacher."""
FINE: list[tuple[str, object]] = [
    ("spec.grpo.importanceCorrection", {"maxSequenceGap": 2, "sequenceGapAction": "Drop"}),
    ("spec.accelerator", {"vendor": "NVIDIA", "resource": "nvidia.com/gpu"}),
    ("spec.accelerator", {"vendor": "AMD", "resource": "amd.com/xcd", "rdma": {"resource": "rdma/hca", "count": 8}}),
    ("spec.accelerator", {"vendor": "AMD", "claimTemplates": {"trainer": "eight-gpus", "rollout": "one-gpu"}}),
    ("spec.accelerator", {"vendor": "AMD", "claimTemplates": {"trainer": "a", "rollout": "b", "teacher": "b"}}),
    ("spec.trainer", {"lora": {}, "offload": True, "sharding": "PerHost"}),
    ("spec.managedBy", "example.org/canary"),
    ("spec.judge", {"limits": {"timeoutSeconds": 600, "memory": "1Ti", "output": 256}}),
    ("spec.executor", {"cpu": "500m", "isolation": "None"}),
    ("spec.secretRefs", {"hubToken": {"name": "hub", "key": "token"}, "ca": {"name": "site", "key": "tls.crt"}}),
    ("spec.secretRefs", {"ca": {"kind": "ConfigMap", "name": "trust", "key": "trust-bundle.pem"}}),
    ("spec.tracking.mlflow.secretRef", {"name": "login", "usernameKey": "user", "passwordKey": "password"}),
    ("spec.secretRefs", {"hubToken": {"name": "hub"}, "proxy": {"name": "proxy"}, "ca": {"name": "site"}}),
    (
        "spec.failurePolicy",
        {"rules": [{"onReasons": ["RanksLost"], "action": "RestartStage", "countsTowardsMax": False}]},
    ),
    (
        "spec.failurePolicy",
        {
            "windowSeconds": 86400,
            "rules": [
                {"roles": ["rollout"], "onReasons": ["OOMKilled"], "action": "FailJob"},
                {"onPodConditions": ["DisruptionTarget"], "action": "RestartStage"},
            ],
        },
    ),
    (
        "spec.failurePolicy",
        {"rules": [{"roles": list(get_args(FailingRole)), "onReasons": ["OOMKilled"], "action": "FailJob"}]},
    ),
    ("spec.runtimePatches", [{"manager": "m", "roles": list(get_args(Role)), "labels": {"team": "a"}}]),
    ("spec.stages.0.trainer", {"replicas": 2}),
    ("spec.storage", {"claimName": "a.b-c"}),
    ("spec.model", {"source": "s3://team-models/qwen3/base"}),
    ("spec.validation", {"data": "gs://team.data/held=out/v1.jsonl"}),
    ("spec.storage", {"size": "2Ti", "storageClassName": "fast.ssd"}),
    ("spec", in_bucket(size="100Gi", endpointUrl="https://s3.example.org:9000", addressing="VirtualHost")),
    ("spec", in_bucket(endpointUrl="http://[fd00::7]:9000")),
    ("spec.redis", {"storage": 1073741824, "resources": {"requests": {"cpu": "0.5"}}}),
    ("spec.rollout", {"engineArgs": {"dtype": "float32", "enforce-eager": True, "gpu-memory-utilization": 0.9}}),
    ("spec.grpo", {"steps": 3, "keepPerPrompt": 20, "resample": {"mode": "Rank", "minPerClass": 10}}),
    (
        "spec.runtimePatches",
        patch(
            env=[{"name": "HF_HOME", "value": "/cache/hf"}, {"name": "NCCL_MIN_NCHANNELS", "value": "32"}],
            volumes=[CACHE, {"name": "scratch", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}],
            volumeMounts=[{"name": "cache", "mountPath": "/tmp/cache", "readOnly": True}],
            nodeSelector={"pool": "gpu"},
            tolerations=[{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
            affinity=AFFINITY,
            imagePullSecrets=[{"name": "registry.example.org"}],
            resources={"limits": {"memory": "64Gi"}},
        ),
    ),
    (
        "spec.runtimePatches",
        [
            {
                "manager": "m",
                "roles": ["executor"],
                "nodeSelector": {"gvisor": "yes"},
                "tolerations": [{"operator": "Exists"}],
                "labels": {"mesh": "off"},
                "annotations": {"mesh.example.org/inject": "disabled"},
                "imagePullSecrets": [{"name": "registry"}],
                "schedulerName": "gang",
                "schedulingGates": [{"name": "site/gate"}],
                "topologySpreadConstraints": [
                    {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
                ],
            }
        ],
    ),
    ("spec.runtimePatches", patch(**SITE)),
    ("spec.runtimePatches", two_patches({"nodeSelector": {"a": "1"}}, {"nodeSelector": {"a": "1", "b": "2"}})),
    ("spec.trainer", {"resources": {"limits": {"amd.com/gpu": "8"}}}),
    (
        "spec.runtimePatches",
        patch(
            volumes=[CACHE],
            volumeMounts=[{"name": "cache", "mountPath": "/c", "subPath": "..a/.b/c..d"}],
            nodeSelector={"topology.kubernetes.io/zone": "", "a": "B_c.d"},
            tolerations=[{"operator": "Exists"}],
            resources={"requests": {"memory": "1Gi", "hugepages-2Mi": 0}, "limits": {"memory": 1073741824}},
        ),
    ),
    ("spec.tools", [{"name": "execute_python_code_with_standard_io"}, {"name": "f", "source": "pvc://a/f.py"}]),
    (
        "spec.mcpServers",
        [{"name": "s", "url": "http://tools:8000/mcp", "secretRef": {"name": "tools", "key": "token"}}],
    ),
    (
        "spec.environments",
        [{"name": "e", "image": "games:1", "command": ["serve", "{port}"], "maxConcurrentEpisodes": 8}],
    ),
    ("spec.environments", [{"name": "e", "url": "http://games:8000", "toolErrors": ["EXECUTION_ERROR"]}]),
    ("spec.agent", {"command": ["python", "agent.py"], "timeoutSeconds": 3600, "image": "agents:1", "replicas": 2}),
    ("spec.rewards", [{"name": "a", "type": "Program", "source": "pvc://a/c.py"}, {"name": "b", "type": "Numeric"}]),
    ("spec.grpo.referenceKl", {"weight": 0.001}),
    ("spec", {**GOOD["spec"], "grpo": {"referenceKl": {"weight": 0.1}}, "stages": [DISTILLED]}),
    ("spec", {**GOOD["spec"], "grpo": DISTILLED_FROM_BASE, "stages": GOOD["spec"]["stages"][1:2]}),
    ("spec", {**GOOD["spec"], "teacher": {"replicas": 2, "resources": {"limits": {"memory": "8Gi"}}}}),
    ("spec.stages.1.grpo.referenceKl", {"weight": 0.1, "estimator": "K1", "model": "Source", "source": "pvc://m/b"}),
    *(
        ("spec.grpo.objective", objective)
        for objective in (
            {"type": "GRPO", "aggregation": "SequenceMean", "truncated": "Mask"},
            {"type": "DAPO", "clipHigh": 0.3, "overlongBufferRatio": 0.1, "overlongPenalty": 0.5},
            {"type": "DAPO", "overlongPenalty": 0.5},
            {"type": "RLOO", "overlongPenalty": 0.5, "overlongBufferRatio": 0.5},
            {"type": "GSPO"},
            {"type": "Distillation", "teacher": {"source": "pvc://m/t"}},
            {"type": "Distillation", "teacher": {"source": "pvc://models/base"}},
            {"type": "Distillation", "teacher": {"endpoint": "http://teacher.site:8000"}},
            {"type": "Distillation", "teacher": {"endpoint": "https://teacher", "model": "owner/big"}},
            {
                "type": "Distillation",
                "teacher": {"source": "hf://a/b"},
                "teacherWeight": 0.5,
                "rewardWeight": 1,
                "overlongBufferRatio": 0.2,
            },
            {"type": "Custom", "source": "pvc://a/objective.py", "parameters": {"tau": 2.0}},
        )
    ),
    ("spec.trainer", {"image": "registry:5000/a/b_c:1.0@sha256:" + 64 * "0"}),
    ("spec.trainer.lora", {}),
    ("spec.stages.1.trainer", {"lora": {"rank": 512, "alpha": 1, "targetModules": ["Mlp", "q_proj"]}}),
    ("spec.trainer.lora", {"rank": 8, "start": "Continue"}),
]
"""Changes with which GOOD stays valid: path, value."""

LOCAL: list[tuple[str, object]] = [
    ("spec.validation.data", "held-out.jsonl"),
    ("spec.stages.0", evaluate("problems.jsonl")),
    ("spec.model", {"source": "./base"}),
    ("spec.mcpServers", [{"name": "s", "command": ["serve"]}]),
    ("spec.environments", [{"name": "e", "command": ["serve"]}]),
    ("spec.agent", {"command": ["python", "agent.py"]}),
]
"""Changes with which GOOD is valid on one machine, but not in a cluster: path, value."""

FAULTS: list[Fault] = [*STAGE_FAULTS, *POD_FAULTS, *SERVICE_FAULTS, *PATCH_FAULTS]

CHANGES: list[tuple[str, object, object, str | None]] = [
    ("spec.model.source", "pvc://models/base", "pvc://models/other", "checkpoints come from this model"),
    ("spec.seed", 0, 1, "a resumed stage must draw the same numbers"),
    ("spec.redis", {"storage": "2Gi"}, {"storage": "4Gi"}, "the volume exists"),
    ("spec.redis", {}, {"storage": "1Gi", "resources": {"limits": {"memory": "2Gi"}}}, None),
    ("spec.storage", {"claimName": "a"}, {"claimName": "b"}, "it has the job's checkpoints"),
    ("spec.storage", {}, {"claimName": "b"}, "it has the job's checkpoints"),
    ("spec.storage", {"size": "1Gi"}, {"size": "900Mi"}, "may only grow"),
    ("spec.storage", {"size": "1Gi"}, {"size": "1Gi", "storageClassName": "x"}, "it has the job's checkpoints"),
    ("spec.storage", {"size": "1Gi"}, {"size": "2Gi", "reclaimPolicy": "Delete"}, None),
    ("spec.stages.0.name", "sft", "sft-again", None),
    (
        "spec.stages.0",
        {"name": "sft", "type": "SFT", "sft": {"data": "d"}},
        {"name": "sft", "type": "Filter", "filter": {"data": "d"}},
        "is immutable; give the stage another name",
    ),
    (
        "spec.accelerator",
        {"vendor": "AMD", "resource": "amd.com/gpu"},
        {"vendor": "AMD", "resource": "amd.com/xcd"},
        "running pods and checkpoints depend on it",
    ),
    ("spec.managedBy", "example.org/a", "example.org/b", "another controller has no pods of the job"),
    ("spec.suspend", False, True, None),
]
"""Path, value before, value after, message of the API server (None: it accepts the change)."""
