"""CEL form of the rules in rules.py that the API server can check, so that `kubectl apply` rejects a faulty job.

Each rule belongs to a path of the schema (`[]` is an entry of a list) and becomes an entry of its
x-kubernetes-validations. In addition, transition rules make fields immutable. The API server applies defaults before it
evaluates rules, so rules test only fields without a default with has() or `.?`. tests/apiserver/test_crd.py compares
every rule with its twin in rules.py on a real API server.
"""

from __future__ import annotations

from collections.abc import Iterable

from rstar2_train.api import cel_objectives
from rstar2_train.api.cel_rule import Rule, each_grpo
from rstar2_train.api.job import ROLE_REASONS
from rstar2_train.api.lora_rules import TRANSPORT
from rstar2_train.api.pod_rules import ENV_SOURCES, VOLUME_KINDS
from rstar2_train.api.roles import (
    ACCELERATOR_CLAIM,
    EXECUTOR_PATCH_FIELDS,
    GPU_RESOURCES,
    RESERVED_FOLDERS,
    RESERVED_PREFIXES,
    RESERVED_VARIABLES,
    SANDBOX_ANNOTATIONS,
    RuntimePatch,
)
from rstar2_train.api.rules import JOB_AND_STAGE_LENGTH, MEMBERS, MEMORY_LIMITS, NEVER_MATCHES, OUTPUT_LIMITS
from rstar2_train.api.sources import IN_BUCKET, LOCAL_FOLDER, NO_COLLECTIVE
from rstar2_train.api.stages import GRPOSettings


def _effective(name: str) -> str:
    """Return CEL of a number of GRPO stage `s`, seen from `spec`: its own, else of spec.grpo, else the default."""
    field = GRPOSettings.model_fields[name]
    return f"s.grpo.?{field.alias}.orValue(self.grpo.?{field.alias}.orValue({field.default}))"


def _default(name: str) -> str:
    return f"{GRPOSettings.model_fields[name].alias} (default {GRPOSettings.model_fields[name].default})"


def _member(kind: str, member: str) -> Rule:
    message = f"{member} is required if type is {kind}, and only allowed then"
    return Rule(
        at="spec.stages[]",
        rule=f"(self.type == '{kind}') == has(self.{member})",
        message=message,
        message_expression=f"'stage ' + self.name + ' is of type ' + self.type + ': {message}'",
        field=f".{member}",
    )


def _immutable(at: str, field: str, message: str) -> Rule:
    """Return a field that cannot be set, changed or removed once the object exists."""
    same = f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})"
    return Rule(at=at, rule=same, message=message, field=f".{field}")


def with_lora(types: list[str], spec: str = "self") -> str:
    """Return the expression that a stage of one of the types trains an adapter. `spec`: expression of the spec."""
    return f"{spec}.stages.exists(s, s.type in {types} && (has({spec}.trainer.lora) || s.?trainer.?lora.hasValue()))"


def _exactly_one(fields: Iterable[str]) -> str:
    return f"[{', '.join(f'has(self.{field})' for field in fields)}].filter(b, b).size() == 1"


def _between(at: str, limits: tuple[str, str]) -> Rule:
    """Return a Quantity with a minimum and a maximum.

    The rule is on the field itself: the API server checks the default of the object around it before the field has one.
    """
    low, high = (f"quantity(string(self)).compareTo(quantity('{limit}'))" for limit in limits)
    return Rule(at=at, rule=f"{low} >= 0 && {high} <= 0", message=f"must be between {limits[0]} and {limits[1]}")


_OTHER_NAME = "create a job of another name instead"
_STORAGE = f"is immutable because it has the job's checkpoints; {_OTHER_NAME}"
_KEPT, _SAMPLED = _effective("keep_per_prompt"), _effective("rollouts_per_prompt")
_FOLDERS = ", ".join(f"'{folder}'" for folder in RESERVED_FOLDERS)
_NOT_FOR_EXECUTORS = [
    str(field.alias)
    for name, field in RuntimePatch.model_fields.items()
    if field.alias not in (*EXECUTOR_PATCH_FIELDS, "manager", "roles")
]

STAGES = (
    Rule(
        at="",
        rule=f"self.spec.stages.all(s, size(self.metadata.name) + size(s.name) <= {JOB_AND_STAGE_LENGTH})",
        message=f"job name and stage name together may have at most {JOB_AND_STAGE_LENGTH} characters",
        field=".spec.stages",
    ),
    *(_member(kind, member) for kind, member in MEMBERS.items()),
    each_grpo(f"{_effective('steps')} >= 1", "grpo.steps is required in a GRPO stage: the number of rollout steps"),
    each_grpo(
        f"{_KEPT} <= {_SAMPLED}",
        f"in a GRPO stage {_default('keep_per_prompt')} must be at most {_default('rollouts_per_prompt')}",
    ),
    each_grpo(
        "2 * (has(s.grpo.resample) ? s.grpo.resample.minPerClass"
        f" : self.grpo.?resample.minPerClass.orValue(0)) <= {_KEPT}",
        f"in a GRPO stage resample.minPerClass must be at most half of {_default('keep_per_prompt')}",
    ),
    each_grpo(
        f"{_effective('updates_per_step')} <= {_effective('prompts_per_step')}",
        f"in a GRPO stage {_default('updates_per_step')} must be at most {_default('prompts_per_step')}",
    ),
    each_grpo(
        "has(s.grpo.data) || has(s.grpo.dataFrom) || has(self.grpo.data) || has(self.grpo.dataFrom)",
        "a GRPO stage needs data, or dataFrom with the name of an earlier Filter stage",
    ),
    # rules.py checks that the Filter stage is an earlier one: CEL has no index of list entries in all served versions.
    each_grpo(
        "!has(s.grpo.dataFrom) || self.stages.exists(t, t.type == 'Filter' && t.name == s.grpo.dataFrom)",
        "dataFrom of a GRPO stage must name an earlier Filter stage",
    ),
    Rule(
        at="spec",
        rule="!has(self.grpo.dataFrom) || self.stages.exists(t, t.type == 'Filter' && t.name == self.grpo.dataFrom)",
        message="must name a Filter stage",
        field=".grpo.dataFrom",
    ),
    Rule(
        at="spec.stages[].grpo",
        rule="!(has(self.data) && has(self.dataFrom))",
        message="must not be set together with dataFrom",
        field=".data",
    ),
    Rule(
        at="spec.stages[].filter",
        rule="self.dropSolved <= self.samples",
        message="must be at most samples; otherwise no problem is dropped",
        field=".dropSolved",
    ),
)


LORA = (
    Rule(
        at="spec",
        rule=f"self.rollout.weightTransport in ['Auto', 'Folder'] || !({with_lora(['GRPO'])})",
        message=TRANSPORT,
        field=".rollout.weightTransport",
    ),
    Rule(
        at="spec.stages[]",
        rule="self.type in ['SFT', 'GRPO'] || !has(self.trainer) || !has(self.trainer.lora)",
        message="is only allowed if type is SFT or GRPO",
        field=".trainer.lora",
    ),
)

ROLES = (
    Rule(
        at="spec",
        rule="(self.accelerator.vendor == 'None') == (self.trainer.gpusPerReplica == 0)",
        message="must be 0 if accelerator.vendor is None (CPU), and at least 1 otherwise",
        field=".trainer.gpusPerReplica",
    ),
    Rule(
        at="spec.accelerator",
        rule="self.vendor == 'None' ? !has(self.resource) && !has(self.claimTemplates)"
        " : has(self.resource) != has(self.claimTemplates)",
        message="either resource or claimTemplates is required if vendor is "
        + ", or ".join(f"{vendor} (usually {resource})" for vendor, resource in GPU_RESOURCES.items())
        + "; neither may be set if vendor is None",
    ),
    Rule(
        at="spec.accelerator",
        rule=f"self.vendor != 'NVIDIA' || !has(self.resource) || self.resource != '{GPU_RESOURCES['AMD']}'",
        message=f"must be that of NVIDIA's device plugin if vendor is NVIDIA, usually {GPU_RESOURCES['NVIDIA']}",
        field=".resource",
    ),
    Rule(
        at="spec",
        rule="!has(self.accelerator.claimTemplates) || has(self.accelerator.claimTemplates.rollout) ||"
        " self.stages.all(s, s.type == 'SFT')",
        message="is required, because a stage needs engines",
        field=".accelerator.claimTemplates.rollout",
    ),
    Rule(
        at="spec",
        rule="!has(self.teacher) || !has(self.accelerator.claimTemplates) ||"
        " has(self.accelerator.claimTemplates.teacher)",
        message="is required, because spec.teacher needs devices",
        field=".accelerator.claimTemplates.teacher",
    ),
    Rule(
        at="spec.storage",
        rule="!(has(self.claimName) && has(self.size))",
        message="must not be set together with claimName: size is for the claim that the operator creates",
        field=".size",
    ),
    Rule(
        at="spec.storage",
        rule="!has(self.url) || !has(self.claimName) && !has(self.storageClassName)"
        " && self.accessModes == ['ReadWriteMany'] && self.reclaimPolicy == 'Retain'",
        message=f"{IN_BUCKET}: remove claimName, storageClassName, accessModes and reclaimPolicy",
        field=".url",
    ),
    Rule(at="spec.storage", rule="!has(self.url) || !self.url.startsWith('file:')", message=LOCAL_FOLDER, field=".url"),
    Rule(
        at="spec",
        rule="!has(self.storage.url) || self.rollout.weightTransport != 'Collective'",
        message=NO_COLLECTIVE,
        field=".rollout.weightTransport",
    ),
    _between("spec.judge.limits.memory", MEMORY_LIMITS),
    _between("spec.judge.limits.output", OUTPUT_LIMITS),
    Rule(
        at="spec.failurePolicy.rules[]",
        rule="size(self.?onExitCodes.orValue([])) + size(self.?onReasons.orValue([]))"
        " + size(self.?onPodConditions.orValue([])) > 0",
        message="must set onExitCodes, onReasons or onPodConditions: without them the rule matches nothing",
    ),
    Rule(
        at="spec.failurePolicy.rules[]",
        rule="'trainer' in self.roles || !has(self.onReasons)"
        f" || self.onReasons.all(reason, reason in {list(ROLE_REASONS)})",
        message=NEVER_MATCHES,
        field=".onReasons",
    ),
)

PATCHES = (
    Rule(
        at="spec.runtimePatches[]",
        rule=f"!('executor' in self.roles) || !({' || '.join(f'has(self.{name})' for name in _NOT_FOR_EXECUTORS)})",
        message=f"executors accept only {', '.join(EXECUTOR_PATCH_FIELDS)}; use a separate patch for them",
    ),
    Rule(
        at="spec.runtimePatches[]",
        rule="!('executor' in self.roles) || !has(self.annotations) || !self.annotations.exists(key,"
        f" {list(SANDBOX_ANNOTATIONS)}.exists(p, key.contains(p)))",
        message="annotations that container runtimes read could weaken the sandbox of executors",
    ),
    Rule(
        at="spec.runtimePatches[].env[]",
        rule=f"!(self.name in {list(RESERVED_VARIABLES)}) &&"
        f" !{list(RESERVED_PREFIXES)}.exists(p, self.name.startsWith(p))",
        message=f"{', '.join((*(f'{prefix}*' for prefix in RESERVED_PREFIXES), *RESERVED_VARIABLES))}"
        " are reserved for the operator",
        field=".name",
    ),
    Rule(
        at="spec.runtimePatches[].env[]",
        rule="!(has(self.value) && has(self.valueFrom))",
        message="must not be set together with value",
        field=".valueFrom",
    ),
    Rule(
        at="spec.runtimePatches[].env[].valueFrom",
        rule=_exactly_one(ENV_SOURCES.values()),
        message=f"must set exactly one of {', '.join(ENV_SOURCES.values())}",
    ),
    Rule(
        at="spec.runtimePatches[].envFrom[]",
        rule=_exactly_one(("secretRef", "configMapRef")),
        message="must set exactly one of secretRef, configMapRef",
    ),
    Rule(
        at="spec.runtimePatches[].resourceClaims[]",
        rule=_exactly_one(("resourceClaimName", "resourceClaimTemplateName")),
        message="must set exactly one of resourceClaimName, resourceClaimTemplateName",
    ),
    Rule(
        at="spec.runtimePatches[].resourceClaims[]",
        rule=f"self.name != '{ACCELERATOR_CLAIM}'",
        message="is reserved for spec.accelerator.claimTemplates",
        field=".name",
    ),
    Rule(
        at="spec.runtimePatches[].volumes[]",
        rule=_exactly_one(VOLUME_KINDS.values()),
        message=f"must set exactly one of {', '.join(VOLUME_KINDS.values())}",
    ),
    Rule(
        at="spec.runtimePatches[]",
        rule="!has(self.volumeMounts) ||"
        " self.volumeMounts.all(m, has(self.volumes) && self.volumes.exists(v, v.name == m.name))",
        message="each volumeMount must name a volume of the same patch",
        field=".volumeMounts",
    ),
    Rule(
        at="spec.runtimePatches[].volumeMounts[]",
        rule=r"!self.mountPath.matches('/[.][.]?(/|$)')",
        message="must not have '.' or '..' components",
        field=".mountPath",
    ),
    Rule(
        at="spec.runtimePatches[].volumeMounts[]",
        rule=f"![{_FOLDERS}].exists(f, self.mountPath == f || f.startsWith(self.mountPath + '/') ||"
        " f != '/tmp' && self.mountPath.startsWith(f + '/'))",
        message=f"must not cover {', '.join(RESERVED_FOLDERS)}, or be inside any of them except /tmp",
        field=".mountPath",
    ),
)

TRANSITIONS = (
    Rule(
        at="spec.model",
        rule="self.source == oldSelf.source",
        message=f"is immutable because the job's checkpoints come from this model; {_OTHER_NAME}",
        field=".source",
    ),
    Rule(
        at="spec.seed",
        rule="self == oldSelf",
        message=f"is immutable because a resumed stage must draw the same numbers; {_OTHER_NAME}",
    ),
    Rule(
        at="spec.accelerator",
        rule="self == oldSelf",
        message=f"is immutable because running pods and checkpoints depend on it; {_OTHER_NAME}",
    ),
    Rule(
        at="spec.stages[]",
        rule="self.type == oldSelf.type",
        message="is immutable; give the stage another name",
        field=".type",
    ),
    _immutable("spec", "managedBy", f"is immutable because another controller has no pods of the job; {_OTHER_NAME}"),
    _immutable("spec.redis", "storage", f"is immutable because the volume exists; {_OTHER_NAME}"),
    *(_immutable("spec.storage", field, _STORAGE) for field in ("url", "claimName", "storageClassName", "accessModes")),
    Rule(
        at="spec.storage",
        rule="has(self.size) == has(oldSelf.size) && (!has(self.size) ||"
        " quantity(string(self.size)).compareTo(quantity(string(oldSelf.size))) >= 0)",
        message="may only grow once the job exists: a claim cannot shrink",
        field=".size",
    ),
)

RULES: tuple[Rule, ...] = (*STAGES, *cel_objectives.RULES, *LORA, *ROLES, *PATCHES, *TRANSITIONS)
