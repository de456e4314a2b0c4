"""Faults of accelerators, pods, limits and the failure policy, as a part of manifests.py."""

from __future__ import annotations

import copy

from tests.support.good_manifest import GOOD, Fault
from tests.support.patch_faults import patch

POD_FAULTS: list[Fault] = [
    ("spec.trainer.lora", {"rank": 12}, "spec.trainer.lora.rank is 12: allowed: 1, 8, 16, 32", "Unsupported value"),
    (
        "spec.trainer.lora",
        {"targetModules": ["lm_head"]},
        "allowed: 'All', 'Attention', 'Mlp', 'q_proj'",
        "Unsupported value",
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
        "spec.trainer",
        {"resources": {"requests": {"cpu": 0.5}}},
        "spec.trainer.resources.requests.cpu is 0.5: should be an integer or a quantity in quotes",
        "spec.trainer.resources.requests.cpu",
    ),
    ("spec.rollout.engineArgs", {"host": "0.0.0.0"}, "is set by the operator", None),
    *(
        ("spec.teacher", {"engineArgs": {name: value}}, f"spec.teacher.engineArgs.{name}{message}", None)
        for name, value, message in (
            ("served_model_name", "big", ": is set by the operator"),
            ("quantization", "fp8", ": could change the model"),
            ("kv-cache-dtype", "fp8", ": could change the model"),
            ("dtype", "auto", " is 'auto': must be float32"),
        )
    ),
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
        "spec",
        {
            **GOOD["spec"],
            "accelerator": {"vendor": "AMD", "claimTemplates": {"trainer": "a", "rollout": "b"}},
            "teacher": {},
        },
        "spec.accelerator.claimTemplates.teacher: is required, because spec.teacher needs devices",
        "is required, because spec.teacher needs devices",
    ),
    (
        "spec.teacher",
        {"tensorParallel": 2, "resources": {"limits": {"amd.com/gpu": 1}}},
        "spec.teacher.resources.limits.amd.com/gpu is 1: contradicts spec.teacher.tensorParallel, which is 2",
        None,
    ),
    (
        "spec.teacher",
        {"resources": {"requests": {"memory": "2Gi"}, "limits": {"memory": "1Gi"}}},
        "spec.teacher.resources.limits.memory is '1Gi': must not be less than the request, which is 2Gi",
        None,
    ),
    ("spec.teacher", {"replicas": 0}, "greater than or equal to 1", "should be greater than or equal to 1"),
    (
        "spec.managedBy",
        "canary",
        "spec.managedBy is 'canary': allowed: a domain",
        "spec.managedBy in body should match",
    ),
    ("spec.trainer.activationCheckpointing", True, "allowed: 'Auto', 'Always' or 'Never'", "activationCheckpointing"),
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
    ("spec.redis", {"storage": 0}, "spec.redis.storage is 0: must be greater than 0", None),
    (
        "spec.judge",
        {"image": " bad image"},
        "spec.judge.image is ' bad image': allowed: an image: HOST:PORT",
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
    ("spec.trainer", {"gpusPerReplica": 0}, "must be at least 1 if spec.accelerator.vendor is AMD", "at least 1"),
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
