"""A valid manifest, and manifests with one fault each, for the offline rules and for a real API server.

`FAULTS` has for each fault the message of `rstar2 validate` and the message of the API server's schema or CEL rule;
None if only the offline rules detect it.
"""

from __future__ import annotations

import copy
from typing import Any, get_args

from rstar2_train.api.job import FailingRole
from rstar2_train.api.roles import Role
from tests.support.manifest_faults import AFFINITY, CACHE, PATCH_FAULTS, SITE, patch, two_patches

GOOD: dict[str, Any] = {
    "apiVersion": "rstar2.dev/v1alpha1",
    "kind": "AgenticRLJob",
    "metadata": {"name": "a-job-with-a-name", "creationTimestamp": None},
    "spec": {
        "model": {"source": "pvc://models/base"},
        "trainer": {"resources": {"requests": {"cpu": 8, "memory": "64Gi"}}},
        "rollout": {"resources": {"requests": {"cpu": 2, "memory": "32Gi"}}},
        "validation": {"data": "/data/held.jsonl"},
        "grpo": {"promptsPerStep": 8, "updatesPerStep": 2, "objective": {"clipHigh": 0.3}},
        "stages": [
            {"name": "sft", "type": "SFT", "sft": {"data": "/data/d.jsonl"}},
            {"name": "rl", "type": "GRPO", "grpo": {"data": "/data/p.jsonl", "steps": 3}},
            {"name": "hard", "type": "Filter", "filter": {"data": "/data/p.jsonl"}},
            {"name": "rl-hard", "type": "GRPO", "grpo": {"dataFrom": "hard", "steps": 3}},
        ],
    },
}


def changed(path: str, value: object) -> dict[str, Any]:
    """Return GOOD with one value set at a dotted path (numbers index lists)."""
    data = copy.deepcopy(GOOD)
    *parents, last = [int(p) if p.isdigit() else p for p in path.split(".")]
    parent: Any = data
    for key in parents:
        parent = parent.setdefault(key, {}) if isinstance(parent, dict) else parent[key]
    parent[last] = value
    return data


def evaluate(data: str) -> dict[str, Any]:
    """Return an Evaluate stage with one benchmark."""
    return {"name": "e", "type": "Evaluate", "evaluate": {"benchmarks": [{"name": "b", "data": data}]}}


def in_bucket(**storage: Any) -> dict[str, Any]:
    """Return the spec of a job with a URL as its storage, which a cluster can run. `storage`: further fields."""
    return {**GOOD["spec"], "stages": GOOD["spec"]["stages"][:1], "storage": {"url": "s3://team/runs", **storage}}


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
FINE: list[tuple[str, object]] = [
    ("spec.grpo.importanceCorrection", {"maxSequenceGap": 2, "sequenceGapAction": "Drop"}),
    ("spec.accelerator", {"vendor": "NVIDIA", "resource": "nvidia.com/gpu"}),
    ("spec.accelerator", {"vendor": "AMD", "resource": "amd.com/xcd", "rdma": {"resource": "rdma/hca", "count": 8}}),
    ("spec.accelerator", {"vendor": "AMD", "claimTemplates": {"trainer": "eight-gpus", "rollout": "one-gpu"}}),
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

FAULTS: list[tuple[str, object, str, str | None]] = [
    ("spec.trainer.lora", {"rank": 12}, "spec.trainer.lora.rank is 12: allowed: 1, 8, 16, 32", "Unsupported value"),
    (
        "spec.trainer.lora",
        {"targetModules": ["lm_head"]},
        "allowed: 'All', 'Attention', 'Mlp', 'q_proj'",
        "Unsupported value",
    ),
    (
        "spec.trainer",
        {"lora": {}, "offload": True},
        "spec.trainer.offload is True: must be false with LoRA",
        "must be false",
    ),
    (
        "spec.stages.1.trainer",
        {"lora": {"start": "Continue"}},
        "spec.stages[1].trainer.lora.start is 'Continue': must be New: stage sft before it trains the whole model",
        None,
    ),
    (
        "spec",
        copy.deepcopy(GOOD["spec"])
        | {
            "trainer": {"lora": {"start": "Continue"}},
            "stages": [
                GOOD["spec"]["stages"][0],
                GOOD["spec"]["stages"][1] | {"trainer": {"lora": {"rank": 8, "targetModules": ["Mlp"]}}},
                *GOOD["spec"]["stages"][2:],
            ],
        },
        "spec.trainer.lora.start is 'Continue': must be New, or rank and targetModules those of stage rl",
        None,
    ),
    ("spec.trainer.lora", {"rank": True}, "spec.trainer.lora.rank is True: should be an integer", "lora.rank"),
    ("spec.stages.2.trainer", {"lora": {}}, "spec.stages[2].trainer.lora: is only allowed", "is only allowed if type"),
    (
        "spec",
        copy.deepcopy(GOOD["spec"]) | {"trainer": {"lora": {}}, "rollout": {"weightTransport": "Delta"}},
        "spec.rollout.weightTransport is 'Delta': must be Folder or Auto in a job with a GRPO stage with LoRA",
        "must be Folder or Auto",
    ),
    (
        "spec",
        copy.deepcopy(GOOD["spec"]) | {"trainer": {"lora": {}}, "rollout": {"engineArgs": {"max_loras": 4}}},
        "spec.rollout.engineArgs.max_loras: could change the model",
        None,
    ),
    (
        "spec",
        copy.deepcopy(GOOD["spec"]) | {"trainer": {"lora": {}}, "rollout": {"engineArgs": {"data-parallel-size": 2}}},
        "spec.rollout.engineArgs.data-parallel-size: must be 1 with LoRA",
        None,
    ),
    ("spec.tools", [{"name": "f"}], "spec.tools[0].source: is required: 'f' is not a built-in tool", None),
    ("spec.tools", [{"name": "jupyter_code"}], "is selected by spec.rollout.tool, as the only tool", None),
    (
        "spec.tools",
        [{"name": "execute_python_code_with_standard_io", "source": "pvc://a/f.py"}],
        "is the name of a built-in tool",
        None,
    ),
    ("spec.tools", [{"name": "f", "source": "ftp://a/f.py"}], "allowed: pvc://CLAIM/PATH", None),
    (
        "spec.tools",
        [{"name": "f", "source": "pvc://a/f.py", "memory": "2Gi"}],
        "must be between 32Mi and spec.judge.limits.memory, which is 512Mi",
        None,
    ),
    ("spec.tools", [{"name": "f", "server": "s"}], "must name an entry of spec.mcpServers; this job has none", None),
    ("spec.mcpServers", [{"name": "s"}], "spec.mcpServers[0].url: set either url or command", None),
    ("spec.mcpServers", [{"name": "s", "url": "tools:8000"}], "must start with http:// or https://", None),
    (
        "spec.mcpServers",
        [{"name": "s", "command": ["serve"], "secretRef": {"name": "tools", "key": "token"}}],
        "a server on stdio has no bearer token",
        None,
    ),
    ("spec.environments", [{"name": "e"}], "set command (or image in a cluster), or the url", None),
    ("spec.environments", [{"name": "e", "url": "games:8000"}], "must start with http:// or https://", None),
    ("spec.environments", [{"name": "e", "url": "http://g", "image": "g"}], "nothing is started then", None),
    ("spec.rewards", [{"name": "r", "type": "Program"}], "is required if type is Program", None),
    ("spec.rewards", [{"name": "r", "source": "pvc://a/c.py"}], "is only allowed if type is Program", None),
    (
        "spec.model.source",
        "ftp://bucket/model",
        "spec.model.source is 'ftp://bucket/model': allowed: pvc://CLAIM",
        None,
    ),
    (
        "spec.stages.0.sft.data",
        "pvc://",
        "spec.stages[0].sft.data is 'pvc://': must name a PersistentVolumeClaim",
        None,
    ),
    (
        "spec.stages.1.grpo.keepPerPrompt",
        64,
        "spec.stages[1].grpo.keepPerPrompt is 64: must be at most rolloutsPerPrompt, which is 32",
        "keepPerPrompt (default 16) must be at most rolloutsPerPrompt (default 32)",
    ),
    (
        "spec.grpo.keepPerPrompt",
        64,
        "spec.grpo.keepPerPrompt (for stage rl) is 64: must be at most rolloutsPerPrompt, which is 32",
        "keepPerPrompt (default 16) must be at most rolloutsPerPrompt (default 32)",
    ),
    (
        "spec.grpo.keepPerPromt",
        8,
        "spec.grpo.keepPerPromt: unknown field; did you mean 'keepPerPrompt'?",
        'unknown field "spec.grpo.keepPerPromt"',
    ),
    (
        "spec.grpo.objective.clipLow",
        -1,
        "spec.grpo.objective.clipLow is -1: should be greater than 0",
        "spec.grpo.objective.clipLow in body should",
    ),
    (
        "spec.grpo.objective",
        {"type": "RLOO", "clipHigh": 0.28},
        "spec.grpo.objective.clipHigh is 0.28: is only allowed if type is GRPO, DrGRPO, DAPO, GSPO or CISPO: the loss "
        "of the other types clips no probability ratio; the type of this objective is RLOO",
        "is only allowed if type is GRPO, DrGRPO, DAPO, GSPO or CISPO",
    ),
    (
        "spec.stages.1.grpo.objective",
        {"type": "GSPO", "aggregation": "TokenMean"},
        "spec.stages[1].grpo.objective.aggregation is 'TokenMean': is only allowed if type is GRPO",
        "is only allowed if type is GRPO: the mean is a part of the definition of every other type",
    ),
    (
        "spec.stages.1.grpo.objective",
        {"type": "MaxRL", "overlongBufferRatio": 0.2},
        "spec.stages[1].grpo.objective.overlongBufferRatio is 0.2: must be 0 if type is MaxRL",
        "must be 0 if type is MaxRL",
    ),
    (
        "spec.grpo.referenceKl",
        {"weight": 0.1, "model": "Source"},
        "spec.grpo.referenceKl.source: source is required if model is Source, and only allowed then",
        "source is required if model is Source, and only allowed then",
    ),
    (
        "spec.stages.1.grpo.referenceKl",
        {"weight": 0.1, "source": "pvc://m/b"},
        "spec.stages[1].grpo.referenceKl.source is 'pvc://m/b': source is required if model is Source",
        "source is required if model is Source, and only allowed then",
    ),
    (
        "spec.grpo.objective",
        {"type": "Custom"},
        "spec.grpo.objective.source: source is required if type is Custom",
        "source is required if type is Custom, and only allowed then",
    ),
    (
        "spec.stages.1.grpo.objective",
        {"type": "Distillation"},
        "spec.stages[1].grpo.objective.teacher: teacher is required if type is Distillation",
        "teacher is required if type is Distillation, and only allowed then",
    ),
    *(
        ("spec.grpo.objective", {"type": "Distillation", "teacher": teacher}, message, rule)
        for teacher, message, rule in (
            ({}, "spec.grpo.objective.teacher: set either source or endpoint", "set either source or endpoint"),
            (
                {"source": "pvc://m/t", "endpoint": "http://t:80"},
                "spec.grpo.objective.teacher: set either source or endpoint",
                "set either source or endpoint",
            ),
            (
                {"source": "pvc://m/t", "model": "big"},
                "spec.grpo.objective.teacher.model is 'big': is only allowed with endpoint",
                "model is only allowed with endpoint",
            ),
            (
                {"endpoint": "teacher:8000"},
                "spec.grpo.objective.teacher.endpoint is 'teacher:8000': allowed: http:// or https://",
                "should match",
            ),
            ({"endpoint": "http://u:p@t/v1"}, "without user, path and query", "should match"),
        )
    ),
    *(
        (
            "spec.grpo.objective",
            objective,
            "overlongPenalty is 0.5: has no effect unless overlongBufferRatio is above 0",
            "has no effect unless overlongBufferRatio is above 0",
        )
        for objective in (
            {"type": "GRPO", "overlongPenalty": 0.5},
            {"type": "MaxRL", "overlongPenalty": 0.5},
            {"type": "DAPO", "overlongPenalty": 0.5, "overlongBufferRatio": 0},
        )
    ),
    *(
        (path, value, "at least 1 character", "should be at least 1 chars long")
        for path, value in (
            ("spec.grpo.objective", {"type": "Custom", "source": ""}),
            ("spec.grpo.objective", {"type": "Distillation", "teacher": {"source": ""}}),
            ("spec.grpo.objective", {"type": "Distillation", "teacher": {"endpoint": "http://t", "model": ""}}),
            ("spec.grpo.referenceKl", {"model": "Source", "source": ""}),
        )
    ),
    (
        "spec.stages.1.grpo",
        {
            "data": "/data/p.jsonl",
            "steps": 2,
            "temperature": 0.8,
            "objective": {"type": "Distillation", "teacher": {"endpoint": "http://t:80"}},
        },
        "spec.stages[1].grpo.temperature is 0.8: must be 1 with a teacher behind an endpoint",
        "temperature must be 1 with a teacher behind an endpoint",
    ),
    (
        "spec.grpo",
        {"temperature": 1.2, "objective": {"type": "Distillation", "teacher": {"endpoint": "http://t:80"}}},
        "spec.grpo.temperature (for stage rl) is 1.2: must be 1 with a teacher behind an endpoint",
        "temperature must be 1 with a teacher behind an endpoint",
    ),
    (
        "spec.grpo.objective",
        {"type": "CISPO", "teacher": {"source": "pvc://m/t"}},
        "spec.grpo.objective.teacher is ",
        "is only allowed if type is Distillation",
    ),
    (
        "spec.grpo.objective",
        {"type": "Distillation", "teacher": {"source": "pvc://m/t"}, "overlongBufferRatio": 0.2},
        "spec.grpo.objective.overlongBufferRatio is 0.2: must be 0 if type is Distillation and rewardWeight is 0",
        "must be 0 if type is Distillation and rewardWeight is 0",
    ),
    (
        "spec.stages.1.grpo",
        {
            "data": "/data/p.jsonl",
            "steps": 2,
            "objective": {"type": "Distillation", "teacher": {"source": "pvc://m/t"}},
            "referenceKl": {"weight": 0.1},
        },
        "spec.stages[1].grpo.referenceKl: must not be set if the objective's type is Distillation",
        "must not be set if the objective's type is Distillation",
    ),
    (
        "spec.grpo.referenceKl",
        {"weight": -0.1},
        "spec.grpo.referenceKl.weight is -0.1: should be greater than or equal to 0",
        "should be greater than or equal to 0",
    ),
    (
        "spec.grpo.objective",
        {"type": "SAPO", "parameters": {"tau": 1.0}},
        "spec.grpo.objective.parameters is {'tau': 1.0}: is only allowed if type is Custom",
        "is only allowed if type is Custom",
    ),
    (
        "spec.grpo.objective.type",
        "PPO",
        "spec.grpo.objective.type is 'PPO': allowed: 'GRPO', 'DrGRPO', 'DAPO'",
        'spec.grpo.objective.type: Unsupported value: "PPO"',
    ),
    (
        "spec.grpo.learningRate",
        "fast",
        "spec.grpo.learningRate is 'fast': should be a valid number",
        'spec.grpo.learningRate in body must be of type number: "string"',
    ),
    (
        "spec.stages.1.grpo.steps",
        True,
        "spec.stages[1].grpo.steps is True: should be a valid integer",
        'spec.stages[1].grpo.steps in body must be of type integer: "boolean"',
    ),
    (
        "spec.seed",
        "7",
        "spec.seed is '7': should be a valid integer",
        'spec.seed in body must be of type integer: "string"',
    ),
    (
        "spec.stages.1",
        {"name": "e", "type": "Evaluate", "evaluate": {"benchmarks": [{"name": "b", "data": "/p"}] * 2}},
        "spec.stages[1].evaluate.benchmarks[1].name is 'b': duplicate",
        'spec.stages[1].evaluate.benchmarks[1]: Duplicate value: {"name":"b"}',
    ),
    ("spec.stages.1.type", "PPO", "allowed: 'SFT', 'GRPO', 'Filter' or 'Evaluate'", 'Unsupported value: "PPO"'),
    (
        "spec.stages.1.name",
        "sft",
        "spec.stages[1].name is 'sft': duplicate; each name may occur only once in spec.stages",
        'spec.stages[1]: Duplicate value: {"name":"sft"}',
    ),
    (
        "spec.stages.1.sft",
        {"data": "x"},
        "spec.stages[1].sft: is only allowed if type is SFT; the type of this stage is GRPO",
        "stage rl is of type GRPO: sft is required if type is SFT, and only allowed then",
    ),
    (
        "spec.stages.1.grpo",
        None,
        "spec.stages[1].grpo: is required if type is GRPO",
        "stage rl is of type GRPO: grpo is required if type is GRPO, and only allowed then",
    ),
    (
        "spec.stages.1.grpo.steps",
        None,
        "spec.stages[1].grpo.steps: is required",
        "grpo.steps is required in a GRPO stage",
    ),
    (
        "spec.stages.1.grpo.data",
        None,
        "spec.stages[1].grpo.data: is required, unless dataFrom",
        "a GRPO stage needs data, or dataFrom",
    ),
    (
        "spec.stages.3.grpo.dataFrom",
        "rl",
        "must name an earlier Filter stage; this job has hard",
        "dataFrom of a GRPO stage must name an earlier Filter stage",
    ),
    (
        "spec.stages.1.grpo",
        {"dataFrom": "hard", "steps": 1},
        "must name an earlier Filter stage; this job has none",
        None,
    ),
    (
        "spec.stages.3.grpo.data",
        "/data/p.jsonl",
        "must not be set together with dataFrom",
        "spec.stages[3].grpo.data: Invalid value",
    ),
    ("spec.stages.2.filter.dropSolved", 9, "must be at most samples, which is 8", "must be at most samples"),
    (
        "spec.grpo.updatesPerStep",
        16,
        "at most promptsPerStep, which is 8",
        "updatesPerStep (default 1) must be at most promptsPerStep (default 512)",
    ),
    (
        "spec.grpo.resample",
        {"minPerClass": 9},
        "at most half of keepPerPrompt",
        "at most half of keepPerPrompt (default 16)",
    ),
    (
        "spec.grpo.importanceCorrection",
        {"sequenceGapAction": "Drop"},
        "spec.grpo.importanceCorrection.sequenceGapAction (for stage rl) is 'Drop': has no effect without",
        None,
    ),
    (
        "spec.stages.1.grpo.importanceCorrection",
        {"sequenceGapAction": "Drop"},
        "spec.stages[1].grpo.importanceCorrection.sequenceGapAction is 'Drop': has no effect without maxSequenceGap",
        None,
    ),
    (
        "spec.accelerator.vendor",
        "None",
        "spec.trainer.gpusPerReplica is 8: must be 0",
        "must be 0 if accelerator.vendor is None (CPU), and at least 1 otherwise",
    ),
    (
        "spec.accelerator",
        {"vendor": "NVIDIA", "resource": "amd.com/gpu"},
        "spec.accelerator.resource is 'amd.com/gpu'",
        "must be that of NVIDIA's device plugin",
    ),
    (
        "spec.storage.endpointUrl",
        "https://user:secret@s3.example.org",
        "http:// or https://, a host and optionally a port, without user, path and query",
        "spec.storage.endpointUrl in body should match",
    ),
    (
        "spec.storage.url",
        "s3://bucket/../x",
        "spec.storage.url is 's3://bucket/../x': allowed: s3://BUCKET/PREFIX",
        "url",
    ),
    ("spec.storage.url", "s3://b", "allowed: s3://BUCKET/PREFIX", "spec.storage.url in body should match"),
    ("spec.storage", {"url": "s3://team/runs", "claimName": "a"}, "together with url", "remove claimName"),
    ("spec.storage", {"url": "s3://b-c/r", "storageClassName": "a"}, "together with url", "remove claimName"),
    ("spec.storage", {"url": "file:///runs", "claimName": "a"}, "together with url", "is only for `rstar2 run`"),
    ("spec.storage", {"url": "s3://team/runs", "reclaimPolicy": "Delete"}, "together with url", "remove claimName"),
    ("spec.storage", {"url": "s3://b-c/r", "accessModes": ["ReadWriteOnce"]}, "together with url", "remove claimName"),
    (
        "spec",
        {**in_bucket(claimName="a"), "rollout": {"weightTransport": "Collective"}},
        "together with url",
        "must not be Collective",
    ),
    ("spec.validation.data", "s3://bucket/../x", "must be s3://BUCKET/KEY", None),
    ("spec.storage", {"claimName": "a", "size": "1Gi"}, "together with claimName", "together with claimName"),
    (
        "spec.storage.size",
        "big",
        "spec.storage.size is 'big': should be an integer or a quantity in quotes",
        "spec.storage.size in body should match",
    ),
    (
        "spec.trainer",
        {"resources": {"requests": {"cpu": 0.5}}},
        "spec.trainer.resources.requests.cpu is 0.5: should be an integer or a quantity in quotes",
        "spec.trainer.resources.requests.cpu",
    ),
    ("spec.rollout.engineArgs", {"host": "0.0.0.0"}, "is set by the operator", None),
    *(
        ("spec.rollout.engineArgs", {name: value}, f"spec.rollout.engineArgs.{name}: could change the model", None)
        for name, value in {
            "hf-overrides": {"head_dtype": "bfloat16"},
            "--load_format": "dummy",
            "tokenizer": "other",
            "generation-config": "auto",
            "override-generation-config": {"top_k": 5},
            "logits-processors": ["a.b"],
            "quantization": "fp8",
            "kv_cache_dtype": "fp8",
            "disable-sliding-window": True,
            "config-format": "mistral",
            "hf-config-path": "other",
            "revision": "main",
            "runner": "pooling",
            "speculative-config": {},
            "quant": "fp8",
            "nonsense": 1,
        }.items()
    ),
    ("spec.rollout.engineArgs", {"dtype": "auto"}, "dtype is 'auto': must be float32, bfloat16 or float16", None),
    ("spec.rollout.engineArgs", {"dtype": "x" * 5000}, "at most 4096 characters", "may not be more than 4096"),
    ("metadata.name", "tiny.one", "lower-case letters, digits and '-'", "metadata.name in body should match"),
    (
        "spec.stages.0.name",
        "s" * 34,
        "job name and stage name together may have at most 50 characters",
        "job name and stage name together may have at most 50 characters",
    ),
    ("metadata.name", "n" * 41, "at most 40 characters", "may not be more than 40"),
    ("spec.failurePolicy.rules", [{"action": "FailJob", "onReasons": ["Oops"]}], "allowed: 'Completed'", "Unsupported"),
    (
        "spec",
        {
            **GOOD["spec"],
            "redis": {"resources": {"limits": {"memory": "1Gi"}}},
            "runtimePatches": [{"manager": "m", "roles": ["redis"], "resources": {"requests": {"memory": "2Gi"}}}],
        },
        "spec.runtimePatches[0].resources.limits.memory is '1Gi': must not be less than the request, which is 2Gi",
        None,
    ),
    (
        "spec.trainer",
        {"resources": {"requests": {"example.org/nic": 1}, "limits": {"example.org/nic": 2}}},
        "limits.example.org/nic is 2: must equal the request for devices, which is 1",
        None,
    ),
    (
        "spec.trainer",
        {"resources": {"limits": {"gpu": 1}}},
        "spec.trainer.resources.limits: key 'gpu' is not allowed; allowed: cpu, memory, ephemeral-storage",
        None,
    ),
    (
        "spec.accelerator",
        {"vendor": "AMD"},
        "spec.accelerator.resource: is required if vendor is AMD: the device plugin's resource, usually amd.com/gpu",
        "either resource or claimTemplates is required if vendor is AMD (usually amd.com/gpu), or NVIDIA",
    ),
    (
        "spec.accelerator",
        {"vendor": "AMD", "resource": "amd.com/gpu", "claimTemplates": {"trainer": "a", "rollout": "b"}},
        "spec.accelerator.claimTemplates: must not be set together with resource",
        "either resource or claimTemplates is required if vendor is AMD",
    ),
    (
        "spec.accelerator",
        {"vendor": "AMD", "claimTemplates": {"trainer": "a"}},
        "spec.accelerator.claimTemplates.rollout: is required, because a stage needs engines",
        "is required, because a stage needs engines",
    ),
    (
        "spec.managedBy",
        "canary",
        "spec.managedBy is 'canary': allowed: a domain",
        "spec.managedBy in body should match",
    ),
    ("spec.trainer.activationCheckpointing", True, "allowed: 'Auto', 'Always' or 'Never'", "activationCheckpointing"),
    (
        "spec.mcpServers",
        [{"name": "s", "url": "http://tools:8000/mcp", "secretRef": {"name": "tools"}}],
        "spec.mcpServers[0].secretRef.key: is required",
        "secretRef.key: Required value",
    ),
    (
        "spec",
        {
            **GOOD["spec"],
            "accelerator": {"vendor": "None", "resource": "amd.com/gpu"},
            "trainer": {"gpusPerReplica": 0},
        },
        "spec.accelerator.resource is 'amd.com/gpu': must not be set if vendor is None",
        "neither may be set if vendor is None",
    ),
    *(
        (
            "spec.judge.limits",
            {field: value},
            f"spec.judge.limits.{field} is {value!r}: must be between",
            f'spec.judge.limits.{field}: Invalid value: "": must be between',
        )
        for field, value in (("memory", "1Mi"), ("memory", "2Ti"), ("output", 0), ("output", "9Mi"))
    ),
    (
        "spec.judge.limits.timeoutSeconds",
        0.5,
        "spec.judge.limits.timeoutSeconds is 0.5: should be a valid integer",
        "spec.judge.limits.timeoutSeconds in body must be of type integer",
    ),
    ("spec.executor.cpu", "0", "spec.executor.cpu is '0': must be greater than 0", None),
    (
        "spec.secretRefs.hubToken",
        "hub",
        "spec.secretRefs.hubToken is 'hub': should be an object with the fields name, key",
        "spec.secretRefs.hubToken in body must be of type object",
    ),
    (
        "spec.failurePolicy.rules",
        [{"action": "FailJob"}],
        "spec.failurePolicy.rules[0]: must set onExitCodes, onReasons or onPodConditions",
        'spec.failurePolicy.rules[0]: Invalid value: "object": must set onExitCodes, onReasons or onPodConditions',
    ),
    *(
        (
            "spec.failurePolicy.rules",
            [{"action": "FailJob", "roles": [role], "onReasons": ["OOMKilled", reason]}],
            f"spec.failurePolicy.rules[0].onReasons is '{reason}': never matches: pods of the roles have only",
            "never matches: pods of the roles have only",
        )
        for role, reason in (("rollout", "PodLost"), ("redis", "RanksLost"))
    ),
    (
        "spec.failurePolicy.rules",
        [{"action": "FailJob", "onExitCodes": [1, 1]}],
        "spec.failurePolicy.rules[0].onExitCodes[1] is 1: duplicate; may occur only once",
        "spec.failurePolicy.rules[0].onExitCodes[1]: Duplicate value: 1",
    ),
    ("spec.storage.size", "0Gi", "spec.storage.size is '0Gi': must be greater than 0", None),
    ("spec.redis", {"storage": 0}, "spec.redis.storage is 0: must be greater than 0", None),
    (
        "spec.judge",
        {"image": " bad image"},
        "spec.judge.image is ' bad image': allowed: an image name",
        "should match",
    ),
    (
        "spec.accelerator",
        {"vendor": "AMD", "resource": "not a resource"},
        "spec.accelerator.resource is 'not a resource': allowed: an extended resource",
        "spec.accelerator.resource in body should match",
    ),
    (
        "spec.rollout",
        {"tensorParallel": 2, "resources": {"limits": {"amd.com/gpu": 1}}},
        "spec.rollout.resources.limits.amd.com/gpu is 1: contradicts spec.rollout.tensorParallel, which is 2",
        None,
    ),
    *PATCH_FAULTS,
    ("spec.trainer", {"gpusPerReplica": 0}, "must be at least 1 if spec.accelerator.vendor is AMD", "at least 1"),
    ("spec.stages.1.grpo.objective", {"type": "Custom", "source": "ftp://a"}, "allowed: pvc://CLAIM/PATH", None),
    ("spec.grpo.objective", {"type": "Distillation", "teacher": {"source": "hf://x"}}, "allowed: a model", None),
    (
        "spec.grpo.referenceKl",
        {"weight": 0.1, "model": "Source", "source": "pvc://"},
        "must name a PersistentVolumeClaim",
        None,
    ),
    ("spec.stages.0", evaluate("s3://bucket/../x"), "must be s3://BUCKET/KEY", None),
    (
        "spec.tools",
        [{"name": "f", "server": "s", "source": "pvc://a/f.py"}],
        "must not be set together with server",
        None,
    ),
    (
        "spec.runtimePatches",
        patch(resourceClaims=[{"name": "a", "resourceClaimName": name} for name in ("x", "y")]),
        "resourceClaims[1].name is 'a': duplicate",
        None,
    ),
    (
        "spec",
        {
            **GOOD["spec"],
            "agent": {"command": ["a"], "image": "a:1"},
            "tools": [{"name": "f", "source": "pvc://a/f.py"}],
        },
        "spec.tools: must not be set together with agent",
        None,
    ),
    (
        "spec",
        {
            **GOOD["spec"],
            "environments": [{"name": "e", "image": "e:1", "resources": {"requests": {"memory": "2Gi"}}}],
            "runtimePatches": [{"manager": "m", "roles": ["environment"], "resources": {"limits": {"memory": "1Gi"}}}],
        },
        "must not be less than the request, which is 2Gi",
        None,
    ),
    (
        "spec",
        {
            **GOOD["spec"],
            "redis": {"resources": {"limits": {"site/fpga": 2}}},
            "runtimePatches": [{"manager": "m", "roles": ["redis"], "resources": {"requests": {"site/fpga": 1}}}],
        },
        "must equal the request for devices",
        None,
    ),
]
"""Path, value, message of the offline rules, message of the API server (None: it accepts the value)."""

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
