"""A good manifest, and manifests with one fault each: the same for the offline rules and for a real API server.

`FAULTS` says of each fault what `rstar2 validate` answers and what the API server's schema or CEL answers; None where
only the offline rules can see it.
"""

from __future__ import annotations

import copy
from typing import Any

from tests.support.manifest_faults import AFFINITY, CACHE, PATCH_FAULTS, patch, two

GOOD: dict[str, Any] = {
    "apiVersion": "rstar2.dev/v1alpha1",
    "kind": "AgenticRLJob",
    "metadata": {"name": "a-job-with-a-name", "creationTimestamp": None},
    "spec": {
        "model": {"source": "pvc://models/base"},
        "validation": {"data": "held.jsonl"},
        "grpo": {"promptsPerStep": 8, "clipHigh": 0.3},
        "stages": [
            {"name": "sft", "type": "SFT", "sft": {"data": "d.jsonl"}},
            {"name": "rl", "type": "GRPO", "grpo": {"data": "p.jsonl", "steps": 3}},
            {"name": "hard", "type": "Filter", "filter": {"data": "p.jsonl"}},
            {"name": "rl-hard", "type": "GRPO", "grpo": {"dataFrom": "hard", "steps": 3}},
        ],
    },
}


def changed(path: str, value: object) -> dict[str, Any]:
    """GOOD with one value set at a dotted path (numbers index lists)."""
    data = copy.deepcopy(GOOD)
    *parents, last = [int(p) if p.isdigit() else p for p in path.split(".")]
    at: Any = data
    for key in parents:
        at = at.setdefault(key, {}) if isinstance(at, dict) else at[key]
    at[last] = value
    return data


FINE: list[tuple[str, object]] = [
    ("spec.accelerator", {"vendor": "nvidia"}),
    ("spec.storage", {"claimName": "a.b-c"}),
    ("spec.storage", {"size": "2Ti", "storageClassName": "fast.ssd"}),
    ("spec.redis", {"storage": 1073741824, "resources": {"requests": {"cpu": "0.5"}}}),
    ("spec.rollout", {"engineArgs": {"dtype": "float32", "enforce-eager": True, "gpu-memory-utilization": 0.9}}),
    ("spec.grpo", {"steps": 3, "keepPerPrompt": 20, "resample": {"mode": "rank", "minPerClass": 10}}),
    (
        "spec.runtimePatches",
        patch(
            env=[{"name": "HF_HOME", "value": "/cache/hf"}, {"name": "NCCL_MIN_NCHANNELS", "value": "32"}],
            volumes=[CACHE, {"name": "scratch", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}],
            volumeMounts=[{"name": "cache", "mountPath": "/tmp/cache", "readOnly": True}],
            nodeSelector={"pool": "gpu"},
            tolerations=[{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
            affinity=AFFINITY,
            imagePullSecrets=["registry.example.org"],
            resources={"limits": {"memory": "64Gi"}},
        ),
    ),
    ("spec.runtimePatches", [{"manager": "m", "roles": ["executor"], "nodeSelector": {"gvisor": "yes"}}]),
    ("spec.runtimePatches", two({"nodeSelector": {"a": "1"}}, {"nodeSelector": {"a": "1", "b": "2"}})),
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
    ("spec.trainer", {"image": "registry:5000/a/b_c:1.0@sha256:" + 64 * "0"}),
]
"""Changes that GOOD stays good with: path, value."""

FAULTS: list[tuple[str, object, str, str | None]] = [
    ("spec.model.source", "s3://bucket/model", "spec.model.source is 's3://bucket/model': allowed: pvc://CLAIM", None),
    ("spec.stages.0.sft.data", "pvc://", "spec.stages[0].sft.data is 'pvc://': after pvc:// comes the name", None),
    (
        "spec.stages.1.grpo.keepPerPrompt",
        64,
        "spec.stages[1].grpo.keepPerPrompt is 64: cannot keep more",
        "keepPerPrompt (default 16) is at most rolloutsPerPrompt (default 32)",
    ),
    (
        "spec.grpo.keepPerPrompt",
        64,
        "spec.grpo.keepPerPrompt (for stage rl) is 64: cannot keep more",
        "keepPerPrompt (default 16) is at most rolloutsPerPrompt (default 32)",
    ),
    (
        "spec.grpo.keepPerPromt",
        8,
        "spec.grpo.keepPerPromt: unknown field; did you mean 'keepPerPrompt'?",
        'unknown field "spec.grpo.keepPerPromt"',
    ),
    ("spec.grpo.clipLow", -1, "spec.grpo.clipLow is -1: should be greater than 0", "spec.grpo.clipLow in body should"),
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
        "spec.stages[1].evaluate.benchmarks[1].name is 'b': stands twice",
        "names of benchmarks are unique in a stage",
    ),
    ("spec.queueName", "team", "spec.queueName is 'team': Kueue is not supported yet", None),
    ("spec.secretRefs", {"ca": "site"}, "spec.secretRefs.ca is 'site': is not supported yet", None),
    ("spec.stages.1.type", "PPO", "allowed: 'SFT', 'GRPO', 'Filter' or 'Evaluate'", 'Unsupported value: "PPO"'),
    (
        "spec.stages.1.name",
        "sft",
        "stands twice; names are unique in a job",
        "names of stages are unique",
    ),
    (
        "spec.stages.1.sft",
        {"data": "x"},
        "spec.stages[1].sft: only allowed when type is SFT; this stage is GRPO",
        "stage rl is of type GRPO: sft is required when type is SFT, and only allowed then",
    ),
    (
        "spec.stages.1.grpo",
        None,
        "spec.stages[1].grpo: is required when type is GRPO",
        "stage rl is of type GRPO: grpo is required when type is GRPO, and only allowed then",
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
        "spec.stages[1].grpo.data: give data, or dataFrom",
        "give data to a GRPO stage, or dataFrom",
    ),
    (
        "spec.stages.3.grpo.dataFrom",
        "rl",
        "must name an earlier Filter stage (hard)",
        "dataFrom of a GRPO stage must name an earlier Filter stage",
    ),
    (
        "spec.stages.1.grpo",
        {"dataFrom": "hard", "steps": 1},
        "must name an earlier Filter stage (there is none)",
        None,
    ),
    (
        "spec.stages.3.grpo.data",
        "p.jsonl",
        "give data or dataFrom, not both",
        "spec.stages[3].grpo.data: Invalid value",
    ),
    ("spec.stages.2.filter.dropSolved", 9, "at most samples, which is 8", "dropSolved is at most samples"),
    (
        "spec.grpo.updatesPerStep",
        16,
        "at most promptsPerStep, which is 8",
        "updatesPerStep (default 1) is at most promptsPerStep (default 512)",
    ),
    (
        "spec.grpo.resample",
        {"minPerClass": 9},
        "at most half of keepPerPrompt",
        "at most half of keepPerPrompt (default 16)",
    ),
    (
        "spec.accelerator.vendor",
        "none",
        "spec.trainer.gpusPerReplica is 8: must be 0",
        "gpusPerReplica is 0 when accelerator.vendor is none (CPU), and at least 1 otherwise",
    ),
    (
        "spec.accelerator",
        {"vendor": "nvidia", "resource": "amd.com/gpu"},
        "spec.accelerator.resource is 'amd.com/gpu'",
        "amd.com/gpu is AMD's",
    ),
    ("spec.storage", {"claimName": "a", "size": "1Gi"}, "not both", "not both"),
    (
        "spec.storage.size",
        "big",
        "spec.storage.size is 'big': should be a whole number or an amount in quotes",
        "spec.storage.size in body should match",
    ),
    (
        "spec.trainer",
        {"resources": {"requests": {"cpu": 0.5}}},
        "spec.trainer.resources.requests.cpu is 0.5: should be a whole number or an amount in quotes",
        "spec.trainer.resources.requests.cpu",
    ),
    ("spec.rollout.engineArgs", {"host": "0.0.0.0"}, "is set by the builder", None),
    ("spec.rollout.engineArgs", {"dtype": "x" * 5000}, "at most 4096 characters", "may not be more than 4096"),
    ("metadata.name", "tiny.one", "lower-case letters, digits and '-'", "metadata.name in body should match"),
    (
        "spec.stages.0.name",
        "s" * 34,
        "job name and stage name together are at most 50 characters",
        "job name and stage name together have at most 50 characters",
    ),
    ("metadata.name", "n" * 41, "at most 40 characters", "may not be more than 40"),
    ("spec.failurePolicy.rules", [{"action": "FailJob", "onReason": ["Oops"]}], "allowed: 'Completed'", "Unsupported"),
    (
        "spec",
        {
            **GOOD["spec"],
            "redis": {"resources": {"limits": {"memory": "1Gi"}}},
            "runtimePatches": [{"manager": "m", "roles": ["redis"], "resources": {"requests": {"memory": "2Gi"}}}],
        },
        "spec.runtimePatches[0].resources.limits.memory is '1Gi': is less than the request, 2Gi",
        None,
    ),
    (
        "spec.trainer",
        {"resources": {"requests": {"example.org/nic": 1}, "limits": {"example.org/nic": 2}}},
        "limits.example.org/nic is 2: a device has one number, and 1 are requested",
        None,
    ),
    (
        "spec.trainer",
        {"resources": {"limits": {"gpu": 1}}},
        "spec.trainer.resources.limits: the name 'gpu' is not allowed; cpu, memory, ephemeral-storage",
        None,
    ),
    ("spec.storage.size", "0Gi", "spec.storage.size is '0Gi': must be more than nothing", None),
    ("spec.redis", {"storage": 0}, "spec.redis.storage is 0: must be more than nothing", None),
    (
        "spec.judge",
        {"image": " bad image"},
        "spec.judge.image is ' bad image': allowed: an image's name",
        "should match",
    ),
    (
        "spec.accelerator",
        {"resource": "not a resource"},
        "spec.accelerator.resource is 'not a resource': allowed: an extended resource",
        "spec.accelerator.resource in body should match",
    ),
    (
        "spec.rollout",
        {"tensorParallel": 2, "resources": {"limits": {"amd.com/gpu": 1}}},
        "spec.rollout.resources.limits.amd.com/gpu is 1: spec.rollout.tensorParallel says it, and that is 2",
        None,
    ),
    *PATCH_FAULTS,
]
"""Path, value, what the offline rules say, what the API server says (None: it cannot know)."""

CHANGES: list[tuple[str, object, object, str | None]] = [
    ("spec.model.source", "pvc://models/base", "pvc://models/other", "its checkpoints come from this model"),
    ("spec.seed", 0, 1, "a resumed stage must draw the same"),
    ("spec.redis", {"storage": "2Gi"}, {"storage": "4Gi"}, "its volume is made"),
    ("spec.redis", {}, {"storage": "1Gi", "resources": {"limits": {"memory": "2Gi"}}}, None),
    ("spec.storage", {"claimName": "a"}, {"claimName": "b"}, "its checkpoints are there"),
    ("spec.storage", {}, {"claimName": "b"}, "its checkpoints are there"),
    ("spec.storage", {"size": "1Gi"}, {"size": "900Mi"}, "may only grow"),
    ("spec.storage", {"size": "1Gi"}, {"size": "1Gi", "storageClassName": "x"}, "its checkpoints are there"),
    ("spec.storage", {"size": "1Gi"}, {"size": "2Gi", "reclaim": "Delete"}, None),
    ("spec.stages.0.name", "sft", "sft-again", None),
    (
        "spec.stages.0",
        {"name": "sft", "type": "SFT", "sft": {"data": "d"}},
        {"name": "sft", "type": "Filter", "filter": {"data": "d"}},
        "the type of a stage cannot change",
    ),
    ("spec.suspend", False, True, None),
]
"""Path, value at first, value then, why the API server refuses the change (None: it takes it)."""
