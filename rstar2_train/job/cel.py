"""The rules of rules.py that the API server can check itself, in CEL: `kubectl apply` refuses what breaks them.

Each rule stands at a path of the schema (`[]` goes into a list) and becomes an entry of x-kubernetes-validations there.
Beyond rules.py there are transition rules: what cannot change once the job exists. An object whose fields all have
defaults is always set when a rule looks at it, so only what has no default is asked for with has() or `.?`.
A test on a real API server holds each of them against its twin in rules.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rstar2_train.job.roles import EXECUTORS_TAKE, RESERVED_FOLDERS, RESERVED_VARIABLES, RuntimePatch
from rstar2_train.job.rules import MEMBERS
from rstar2_train.job.stages import GRPOSettings


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
    """Value of a GRPO setting of stage `s`: its own, else spec.grpo's, else the default; seen from `spec`."""
    field = GRPOSettings.model_fields[name]
    default = "''" if field.default is None else str(field.default)
    return f"s.grpo.?{field.alias}.orValue(self.grpo.?{field.alias}.orValue({default}))"


def _each_grpo(holds: str, message: str) -> Rule:
    """A rule about every GRPO stage `s`, seen from `spec`; its message names the first stage that breaks it."""
    fine = f"(!has(s.grpo) || {holds})"
    said = f"'stage ' + self.stages.filter(s, !{fine})[0].name + ': {message}'"
    return Rule(at="spec", rule=f"self.stages.all(s, {fine})", message=message, said=said, field=".stages")


def _member(kind: str, member: str) -> Rule:
    message = f"{member} is required when type is {kind}, and only allowed then"
    said = f"'stage ' + self.name + ' is of type ' + self.type + ': {message}'"
    return Rule(
        at="spec.stages[]", rule=f"(self.type == '{kind}') == has(self.{member})", message=message, said=said,
        field=f".{member}",
    )  # fmt: skip


def _fixed(at: str, field: str, message: str) -> Rule:
    """A field without default that cannot be set, changed or removed once the object exists."""
    return Rule(at=at, rule=f"self.?{field} == oldSelf.?{field}", message=message, field=f".{field}")


_STORAGE = "cannot change once the job exists: its checkpoints are there; make a job of another name"
_KEPT, _SAMPLED = _effective("keep_per_prompt"), _effective("rollouts_per_prompt")
_FROM, _DATA = _effective("data_from"), _effective("data")
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
        said="'the stage name ' + self.stages.filter(s, !self.stages.exists_one(t, t.name == s.name))[0].name"
        " + ' stands twice; names of stages are unique'",
        field=".stages",
    ),
    Rule(
        at="",
        rule="self.spec.stages.all(s, size(self.metadata.name) + size(s.name) <= 50)",
        message="job name and stage name together have at most 50 characters",
        field=".spec.stages",
    ),
    *(_member(kind, member) for kind, member in MEMBERS.items()),
    _each_grpo(f"{_effective('steps')} >= 1", "grpo.steps is required: how many rollout steps the stage has"),
    _each_grpo(f"{_KEPT} <= {_SAMPLED}", "keepPerPrompt is at most rolloutsPerPrompt"),
    _each_grpo(
        "2 * (has(s.grpo.resample) ? s.grpo.resample.minPerClass"
        f" : self.grpo.?resample.minPerClass.orValue(0)) <= {_KEPT}",
        "resample.minPerClass is at most half of keepPerPrompt",
    ),
    _each_grpo(
        f"{_effective('updates_per_step')} <= {_effective('prompts_per_step')}",
        "updatesPerStep is at most promptsPerStep: an update needs a group",
    ),
    _each_grpo(f"({_FROM} != '' || {_DATA} != '')", "give data, or dataFrom with the name of an earlier Filter stage"),
    _each_grpo("!(has(s.grpo.data) && has(s.grpo.dataFrom))", "give data or dataFrom, not both"),
    _each_grpo(
        f"({_FROM} == '' || self.stages.exists(t, t.type == 'Filter' && t.name == {_FROM}) &&"
        f" self.stages.map(t, t.name).indexOf({_FROM}) < self.stages.map(t, t.name).indexOf(s.name))",
        "dataFrom must name an earlier Filter stage",
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
        rule="self.vendor != 'nvidia' || !has(self.resource) || self.resource != 'amd.com/gpu'",
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
        rule=f"self.name != 'HOME' && !{list(RESERVED_VARIABLES)}.exists(p, self.name.startsWith(p))",
        message="RSTAR2_*, POD_* and HOME are the operator's own variables",
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
        rule="!self.mountPath.split('/').exists(p, p == '.' || p == '..')",
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
