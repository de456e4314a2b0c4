"""The rules of rules.py that the API server can check itself, in CEL: `kubectl apply` refuses what breaks them.

Each rule stands at a path of the schema (`[]` goes into a list) and becomes an entry of x-kubernetes-validations there.
Beyond rules.py there are transition rules: what cannot change once the job exists. An object whose fields all have
defaults is always set when a rule looks at it, so only what has no default is asked for with has() or `.?`.
A test on a real API server holds each of them against its twin in rules.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rstar2_train.api.roles import (
    EXECUTORS_TAKE,
    RESERVED_FOLDERS,
    RESERVED_PREFIXES,
    RESERVED_VARIABLES,
    RuntimePatch,
)
from rstar2_train.api.rules import MEMBERS
from rstar2_train.api.stages import GRPOSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One entry of x-kubernetes-validations."""

    at: str
    """Path of the schema node: `spec.stages[]`; empty for the whole object."""
    rule: str
    """Must hold."""
    message: str
    """What is allowed, for a person."""
    said: str = ""
    """CEL expression of a message that names the culprit; `message` stands in when it fails."""
    field: str = ""
    """The field that is to blame, relative to `at`."""

    def entry(self) -> dict[str, Any]:
        """As the CRD has it."""
        parts = {"message": self.message, "messageExpression": self.said, "fieldPath": self.field}
        return {"rule": self.rule, **{name: value for name, value in parts.items() if value}}


def _effective(name: str) -> str:
    """Value of a number of GRPO stage `s`: its own, else spec.grpo's, else the default; seen from `spec`."""
    field = GRPOSettings.model_fields[name]
    return f"s.grpo.?{field.alias}.orValue(self.grpo.?{field.alias}.orValue({field.default}))"


def _default(name: str) -> str:
    return f"{GRPOSettings.model_fields[name].alias} (default {GRPOSettings.model_fields[name].default})"


def _each_grpo(holds: str, message: str) -> Rule:
    """A rule about every GRPO stage `s`, seen from `spec`.

    Its message cannot name the stage: the API server refuses messages whose length it cannot estimate.
    """
    return Rule(at="spec", rule=f"self.stages.all(s, !has(s.grpo) || {holds})", message=message, field=".stages")


def _member(kind: str, member: str) -> Rule:
    message = f"{member} is required when type is {kind}, and only allowed then"
    said = f"'stage ' + self.name + ' is of type ' + self.type + ': {message}'"
    return Rule(
        at="spec.stages[]", rule=f"(self.type == '{kind}') == has(self.{member})", message=message, said=said,
        field=f".{member}",
    )  # fmt: skip


def _fixed(at: str, field: str, message: str) -> Rule:
    """A field that cannot be set, changed or removed once the object exists."""
    same = f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})"
    return Rule(at=at, rule=same, message=message, field=f".{field}")


_STORAGE = "cannot change once the job exists: its checkpoints are there; make a job of another name"
_KEPT, _SAMPLED = _effective("keep_per_prompt"), _effective("rollouts_per_prompt")
_FOLDERS = ", ".join(f"'{folder}'" for folder in RESERVED_FOLDERS)
_NOT_FOR_EXECUTORS = [
    str(field.alias)
    for name, field in RuntimePatch.model_fields.items()
    if field.alias not in (*EXECUTORS_TAKE, "manager", "roles")
]

STAGES = (
    Rule(
        at="spec",
        rule="self.stages.all(s, self.stages.exists_one(t, t.name == s.name))",
        message="names of stages are unique",
        field=".stages",
    ),
    Rule(
        at="",
        rule="self.spec.stages.all(s, size(self.metadata.name) + size(s.name) <= 50)",
        message="job name and stage name together have at most 50 characters",
        field=".spec.stages",
    ),
    *(_member(kind, member) for kind, member in MEMBERS.items()),
    Rule(
        at="spec.stages[].evaluate",
        rule="self.benchmarks.all(b, self.benchmarks.exists_one(c, c.name == b.name))",
        message="names of benchmarks are unique in a stage",
        field=".benchmarks",
    ),
    _each_grpo(f"{_effective('steps')} >= 1", "grpo.steps is required in a GRPO stage: how many rollout steps it has"),
    _each_grpo(
        f"{_KEPT} <= {_SAMPLED}",
        f"in a GRPO stage {_default('keep_per_prompt')} is at most {_default('rollouts_per_prompt')}",
    ),
    _each_grpo(
        "2 * (has(s.grpo.resample) ? s.grpo.resample.minPerClass"
        f" : self.grpo.?resample.minPerClass.orValue(0)) <= {_KEPT}",
        f"in a GRPO stage resample.minPerClass is at most half of {_default('keep_per_prompt')}",
    ),
    _each_grpo(
        f"{_effective('updates_per_step')} <= {_effective('prompts_per_step')}",
        f"in a GRPO stage {_default('updates_per_step')} is at most {_default('prompts_per_step')}",
    ),
    _each_grpo(
        "has(s.grpo.data) || has(s.grpo.dataFrom) || has(self.grpo.data) || has(self.grpo.dataFrom)",
        "give data to a GRPO stage, or dataFrom with the name of an earlier Filter stage",
    ),
    # That it is an earlier one is left to rules.py: CEL of every served version has no index of a list's entries.
    _each_grpo(
        "!has(s.grpo.dataFrom) || self.stages.exists(t, t.type == 'Filter' && t.name == s.grpo.dataFrom)",
        "dataFrom of a GRPO stage must name an earlier Filter stage",
    ),
    Rule(
        at="spec",
        rule="!has(self.grpo.dataFrom) || self.stages.exists(t, t.type == 'Filter' && t.name == self.grpo.dataFrom)",
        message="dataFrom must name a Filter stage",
        field=".grpo.dataFrom",
    ),
    Rule(
        at="spec.stages[].grpo",
        rule="!(has(self.data) && has(self.dataFrom))",
        message="give data or dataFrom, not both",
        field=".data",
    ),
    Rule(
        at="spec.stages[].filter",
        rule="self.dropSolved <= self.samples",
        message="dropSolved is at most samples; else nothing is ever dropped",
        field=".dropSolved",
    ),
)

ROLES = (
    Rule(
        at="spec",
        rule="(self.accelerator.vendor == 'none') == (self.trainer.gpusPerReplica == 0)",
        message="gpusPerReplica is 0 when accelerator.vendor is none (CPU), and at least 1 otherwise",
        field=".trainer.gpusPerReplica",
    ),
    Rule(
        at="spec.accelerator",
        rule="self.?vendor.orValue('amd') != 'nvidia' || !has(self.resource) || self.resource != 'amd.com/gpu'",
        message="amd.com/gpu is AMD's; with vendor nvidia it is usually nvidia.com/gpu",
        field=".resource",
    ),
    Rule(
        at="spec.storage",
        rule="!(has(self.claimName) && has(self.size))",
        message="give claimName (an existing claim) or size (a new one), not both",
        field=".size",
    ),
)

PATCHES = (
    Rule(
        at="spec.runtimePatches[]",
        rule=f"!('executor' in self.roles) || !({' || '.join(f'has(self.{name})' for name in _NOT_FOR_EXECUTORS)})",
        message=f"executors take only {', '.join(EXECUTORS_TAKE)}; patch them apart",
    ),
    Rule(
        at="spec.runtimePatches[].env[]",
        rule=f"!(self.name in {list(RESERVED_VARIABLES)}) &&"
        f" !{list(RESERVED_PREFIXES)}.exists(p, self.name.startsWith(p))",
        message=f"{', '.join((*(f'{one}*' for one in RESERVED_PREFIXES), *RESERVED_VARIABLES))}"
        " are the operator's own variables",
        field=".name",
    ),
    Rule(
        at="spec.runtimePatches[].volumes[]",
        rule="[has(self.persistentVolumeClaim), has(self.configMap), has(self.secret), has(self.emptyDir)]"
        ".filter(b, b).size() == 1",
        message="a volume is exactly one of persistentVolumeClaim, configMap, secret, emptyDir",
    ),
    Rule(
        at="spec.runtimePatches[]",
        rule="!has(self.volumes) || self.volumes.all(v, self.volumes.exists_one(w, w.name == v.name))",
        message="names of volumes are unique in a patch",
        field=".volumes",
    ),
    Rule(
        at="spec.runtimePatches[]",
        rule="!has(self.volumeMounts) ||"
        " self.volumeMounts.all(m, has(self.volumes) && self.volumes.exists(v, v.name == m.name))",
        message="each volumeMount names a volume of the same patch",
        field=".volumeMounts",
    ),
    Rule(
        at="spec.runtimePatches[].volumeMounts[]",
        rule=r"!self.mountPath.matches('/[.][.]?(/|$)')",
        message="mountPath has no . or .. in it",
        field=".mountPath",
    ),
    Rule(
        at="spec.runtimePatches[].volumeMounts[]",
        rule=f"![{_FOLDERS}].exists(f, self.mountPath == f || f.startsWith(self.mountPath + '/') ||"
        " f != '/tmp' && self.mountPath.startsWith(f + '/'))",
        message=f"mountPath must not cover {', '.join(RESERVED_FOLDERS)}, nor lie in one of them but /tmp",
        field=".mountPath",
    ),
)

TRANSITIONS = (
    Rule(
        at="spec.model",
        rule="self.source == oldSelf.source",
        message="cannot change once the job exists: its checkpoints come from this model; make a job of another name",
        field=".source",
    ),
    Rule(
        at="spec.seed",
        rule="self == oldSelf",
        message="cannot change once the job exists: a resumed stage must draw the same; make a job of another name",
    ),
    Rule(
        at="spec",
        rule="self.stages.all(s, oldSelf.stages.all(o, o.name != s.name || o.type == s.type))",
        message="the type of a stage cannot change; give the stage another name",
        field=".stages",
    ),
    _fixed(
        "spec.redis", "storage", "cannot change once the job exists: its volume is made; make a job of another name"
    ),
    _fixed("spec.storage", "claimName", _STORAGE),
    _fixed("spec.storage", "storageClassName", _STORAGE),
    _fixed("spec.storage", "accessModes", _STORAGE),
    Rule(
        at="spec.storage",
        rule="has(self.size) == has(oldSelf.size) && (!has(self.size) ||"
        " quantity(string(self.size)).compareTo(quantity(string(oldSelf.size))) >= 0)",
        message="may only grow once the job exists: a claim cannot shrink",
        field=".size",
    ),
)

RULES: tuple[Rule, ...] = (*STAGES, *ROLES, *PATCHES, *TRANSITIONS)
