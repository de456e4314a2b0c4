"""A ValidatingAdmissionPolicy with the rules of rules.py that the schema's own CEL cannot hold.

Rules in a schema have a cost limit, no variables and no access to other entries of a list, so the CRD lacks the rules
about contradictions between patches, keys of maps, amounts and tasks. A policy has them without a webhook, so that
`kubectl apply` rejects such a job. Where it is not installed, the operator reports InvalidSpec. `make crds` writes it
into the chart; tests/apiserver/test_admission_policy.py compares it with rules.py on a real API server.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rstar2_train.api.base import API_VERSION, COMPUTE, LABEL_KEY
from rstar2_train.api.cel import with_lora
from rstar2_train.api.engine_args import ALLOWED_ENGINE_ARGS, DTYPE, ENGINE_DTYPES, REFUSED
from rstar2_train.api.loader import dump_yaml
from rstar2_train.api.lora_layers import ATTENTION, LAYER, MLP
from rstar2_train.api.lora_rules import ONE_REPLICA
from rstar2_train.api.objective_rules import OWN_TEACHER, SHORT_CONTEXT
from rstar2_train.api.roles import (
    BUILTIN_TOOLS,
    GPU_RESOURCES,
    NOTEBOOK,
    REDIS_DATA,
    RESERVED_DOMAINS,
    RESERVED_LABELS,
)
from rstar2_train.api.rules import MEMORY_LIMITS
from rstar2_train.api.stages import GRPODefaults, GRPOSettings

TEMPLATE = Path(__file__).parents[2] / "helm" / "rstar2" / "templates" / "admission-policy.yaml"
NAME = '{{ .Release.Namespace }}-{{ include "rstar2.operator" . }}'
LABELS = '{{- include "rstar2.labels" (list . "operator") | nindent 4 }}'


@dataclass(frozen=True, slots=True)
class AdmissionRule:
    """A CEL expression over the job that must hold, and the message otherwise."""

    expression: str
    message: str


def _all(name: str) -> str:
    return f"object.spec.?{name}.orValue([])"


def _texts(values: Any) -> str:
    return "[" + ", ".join(f"'{value}'" for value in sorted(values)) + "]"


def _quantity(value: str) -> str:
    return f"quantity(string({value}))"


def _sum_of(stage: str, *names: str) -> str:
    """Return the sum of effective GRPO settings of a stage."""
    fields = [(GRPODefaults.model_fields[name].alias, GRPOSettings.model_fields[name].default) for name in names]
    return " + ".join(f"{stage}.grpo.?{name}.or(object.spec.?grpo.{name}).orValue({value})" for name, value in fields)


VARIABLES = {
    "patches": _all("runtimePatches"),
    "tools": _all("tools"),
    "servers": _all("mcpServers"),
    "environments": _all("environments"),
    "stages": "object.spec.stages.map(s, s.name)",
    "grpo": "object.spec.stages.filter(s, s.type == 'GRPO' && has(s.grpo))",
    "settings": "[object.spec.?grpo].filter(g, g.hasValue()).map(g, g.value()) + variables.grpo.map(s, s.grpo)",
    "objectives": "variables.settings.filter(g, has(g.objective)).map(g, g.objective)",
    "resources": "[object.spec.?trainer.resources, object.spec.?rollout.resources, object.spec.?teacher.resources,"
    " object.spec.?redis.resources].filter(r, r.hasValue()).map(r, r.value())"
    " + variables.environments.filter(e, has(e.resources)).map(e, e.resources)"
    " + variables.patches.filter(p, has(p.resources)).map(p, p.resources)",
    "sources": "[object.spec.model.source]"
    " + variables.tools.filter(t, has(t.source)).map(t, t.source)"
    f" + {_all('rewards')}.filter(r, has(r.source)).map(r, r.source)"
    " + (has(object.spec.validation) ? [object.spec.validation.data] : [])"
    " + object.spec.stages.filter(s, has(s.sft)).map(s, s.sft.data)"
    " + object.spec.stages.filter(s, has(s.filter)).map(s, s.filter.data)"
    " + variables.settings.filter(g, has(g.data)).map(g, g.data)"
    " + variables.settings.filter(g, has(g.referenceKl) && has(g.referenceKl.source)).map(g, g.referenceKl.source)"
    " + variables.objectives.filter(o, has(o.source)).map(o, o.source)"
    " + variables.objectives.filter(o, has(o.teacher) && has(o.teacher.source)).map(o, o.teacher.source)"
    " + (has(object.spec.model.chatTemplate) ? [object.spec.model.chatTemplate] : [])",
    "learning": "object.spec.stages.filter(s, s.type in ['SFT', 'GRPO'])",
    "learners": "variables.learning.map(s, s.name)",
    "benchmarks": "object.spec.stages.filter(s, has(s.evaluate)).map(s, s.evaluate.benchmarks)",
}
"""Name -> CEL expression; later ones may use earlier ones."""
_KEYS = "p.?{field}.orValue({{}}).all(k, {condition})"
_LORA = "{0}.?trainer.lora.or(object.spec.?trainer.lora)"
_MODULES = (
    f"{_texts(LAYER)}.filter(l, {_LORA}.?targetModules.orValue([]).exists(t, t in ['All', l] ||"
    f" t == 'Attention' && l in {_texts(ATTENTION)} || t == 'Mlp' && l in {_texts(MLP)}))"
)
_FORM = f"[{_LORA}.?rank.orValue(0), {_LORA}.?alpha.orValue(0), dyn({_MODULES})]"
_SAME_ROLE = (
    "variables.patches.all(p, variables.patches.all(q, p.manager == q.manager || !p.roles.exists(r, r in q.roles)"
)
_SAME_KEYS = "p.?{field}.orValue({{}}).all(k, !(k in q.?{field}.orValue({{}})) || p.{field}[k] == q.{field}[k])"
_DISTINCT = "p.?{field}.orValue([]).all(e, q.?{field}.orValue([]).all(f, e.{key} != f.{key}{same}))"
_EQUAL = "!has(p.{field}) || !has(q.{field}) || p.{field} == q.{field}"
_AMOUNTS = "p.?resources.{field}.orValue({{}}).all(k, !(k in q.?resources.{field}.orValue({{}})) ||"
_AMOUNTS += " string(p.resources.{field}[k]) == string(q.resources.{field}[k]))"


def _consistent(part: str, condition: str) -> AdmissionRule:
    message = f"two runtimePatches of one role set {part} differently: remove it from one of them"
    return AdmissionRule(f"{_SAME_ROLE} || ({condition})))", message)


def _keys(field: str, condition: str, message: str) -> AdmissionRule:
    expression = f"variables.patches.all(p, {_KEYS.format(field=field, condition=condition)})"
    return AdmissionRule(expression, f"runtimePatches[].{field}: {message}")


_RESERVED = f"!{_texts(RESERVED_DOMAINS)}.exists(d, k.startsWith(d + '/'))"
PATCHES = (
    *(
        _keys(
            field, f"k.matches('{LABEL_KEY}')", "each key must be a label key: an optional domain and '/', then a name"
        )
        for field in ("labels", "annotations", "nodeSelector")
    ),
    _keys("labels", f"{_RESERVED} && !(k in {_texts(RESERVED_LABELS)})", "a key is reserved for the operator"),
    _keys("annotations", _RESERVED, "a key is reserved for the operator"),
    *(_consistent(field, _SAME_KEYS.format(field=field)) for field in ("nodeSelector", "labels", "annotations")),
    AdmissionRule(
        "variables.patches.all(p, !('redis' in p.roles) || p.?volumeMounts.orValue([]).all(m,"
        f" m.mountPath != '{REDIS_DATA}' && !m.mountPath.startsWith('{REDIS_DATA}/')))",
        f"runtimePatches[].volumeMounts: must not cover {REDIS_DATA} of Redis or be inside it",
    ),
    _consistent("a variable", _DISTINCT.format(field="env", key="name", same=" || e == f")),
    _consistent("a mount", _DISTINCT.format(field="volumeMounts", key="mountPath", same="")),
    _consistent("a claim", _DISTINCT.format(field="resourceClaims", key="name", same="")),
    AdmissionRule(
        "variables.patches.all(p, p.?resourceClaims.orValue([]).all(c,"
        " p.resourceClaims.filter(d, d.name == c.name).size() == 1))",
        "runtimePatches[].resourceClaims: duplicate name",
    ),
    *(_consistent(field, _EQUAL.format(field=field)) for field in ("affinity", "schedulerName", "serviceAccountName")),
    *(_consistent(f"resources.{field}", _AMOUNTS.format(field=field)) for field in ("requests", "limits")),
    AdmissionRule(
        "variables.patches.all(p, ['requests', 'limits'].all(kind, !has(p.resources) || !(kind in p.resources) ||"
        f" p.resources[kind].all(k, !(k in {_texts(GPU_RESOURCES.values())}) &&"
        " k != object.spec.?accelerator.resource.orValue('') &&"
        " k != object.spec.?accelerator.rdma.resource.orValue(''))))",
        "runtimePatches[].resources: a patch cannot change the number of devices; use trainer.gpusPerReplica, "
        "rollout.tensorParallel and accelerator.rdma",
    ),
)


def _fits(base: str, patch: str, order: str) -> str:
    """Return that the amounts of a patch `p` of kind `patch` fit those of kind `base` of the resources `b`."""
    compared = f"{_quantity(f'b.{base}[k]')}.compareTo({_quantity(f'p.resources.{patch}[k]')})"
    return (
        f" p.resources.?{patch}.orValue({{}}).all(k, !(k in b.?{base}.orValue({{}})) ||"
        f" k in p.resources.?{base}.orValue({{}}) || {compared} {order} 0 && (!k.contains('/') || {compared} == 0))"
    )


_BOTH = "r.?requests.orValue({}).all(k, !(k in r.?limits.orValue({})) ||"
AMOUNTS = (
    *(
        AdmissionRule(
            f"variables.resources.all(r, r.?{kind}.orValue({{}}).all(k, k.matches('{COMPUTE}')))",
            f"resources.{kind}: each key must be cpu, memory, ephemeral-storage, hugepages-SIZE, or DOMAIN/NAME",
        )
        for kind in ("requests", "limits")
    ),
    AdmissionRule(
        f"variables.resources.all(r, {_BOTH} {_quantity('r.requests[k]')}.compareTo({_quantity('r.limits[k]')}) <= 0))",
        "resources.limits: a limit must not be less than its request",
    ),
    AdmissionRule(
        f"variables.resources.all(r, {_BOTH} !k.contains('/') ||"
        f" {_quantity('r.requests[k]')}.compareTo({_quantity('r.limits[k]')}) == 0))",
        "resources.limits: a number of devices must equal its request",
    ),
    *(
        AdmissionRule(
            f"variables.patches.all(p, !has(p.resources) || {bases}{_fits('requests', 'limits', '<=')} &&"
            f"{_fits('limits', 'requests', '>=')}))",
            "runtimePatches[].resources: a limit must not be less than the request of the role, and equal for devices",
        )
        for bases in (
            "['trainer', 'rollout', 'teacher', 'redis'].filter(r, r in p.roles && r in object.spec &&"
            " has(object.spec[r].resources)).map(r, object.spec[r].resources).all(b,",
            "!('environment' in p.roles) ||"
            " variables.environments.filter(e, has(e.resources)).map(e, e.resources).all(b,",
        )
    ),
    *(
        AdmissionRule(
            f"!has(object.spec.{role}.{field}) ||"
            f" {_quantity(f'object.spec.{role}.{field}')}.compareTo(quantity('0')) > 0",
            f"{role}.{field}: must be greater than 0",
        )
        for role, field in (("storage", "size"), ("redis", "storage"), ("executor", "cpu"))
    ),
    *(
        AdmissionRule(
            f"!has(object.spec.{role}) || !has(object.spec.{role}.resources) ||"
            f" ['requests', 'limits'].all(kind, !(kind in object.spec.{role}.resources) || object.spec.{role}"
            ".resources[kind].all(k, k != object.spec.?accelerator.resource.orValue('') || string(object.spec."
            f"{role}.resources[kind][k]) == string(object.spec.{role}.{count})))",
            f"{role}.resources: contradicts {role}.{count}; remove it there",
        )
        for role, count in (
            ("trainer", "gpusPerReplica"),
            ("rollout", "tensorParallel"),
            ("teacher", "tensorParallel"),
        )
    ),
)

_GAP = (
    "(s.grpo.?importanceCorrection.hasValue() ? s.grpo.?importanceCorrection : object.spec.?grpo.importanceCorrection)"
)
_PATHS = (
    "^pvc://[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?(/.*)?$",
    "^hf://[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+(@[A-Za-z0-9_.-]+)?$",
    "^hf://datasets/[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+(@[A-Za-z0-9_.-]+)?/.+$",
    "^(s3|gs|az)://[a-z0-9][a-z0-9._-]{1,61}[a-z0-9](/[A-Za-z0-9_.@+=,-]+)+/*$",
    "^generated://[a-z0-9-]+/.+$",
)
_IS_SOURCE = " || ".join(f"v.matches('{pattern}')" for pattern in _PATHS)
TASKS = (
    AdmissionRule(
        "variables.grpo.all(s, !has(s.grpo.dataFrom) ||"
        " variables.stages.indexOf(s.grpo.dataFrom) < variables.stages.indexOf(s.name))",
        "dataFrom of a GRPO stage must name an earlier Filter stage",
    ),
    AdmissionRule(
        f"variables.grpo.all(s, {_GAP}.sequenceGapAction.orValue('Mask') != 'Drop' ||"
        f" {_GAP}.maxSequenceGap.hasValue())",
        "importanceCorrection.sequenceGapAction: Drop has no effect without maxSequenceGap",
    ),
    *(
        AdmissionRule(
            path.format(f"v.startsWith('/') || (({_IS_SOURCE}) && !v.matches('(^|/)[.][.](/|$)'))"),
            f"{field} must be pvc://CLAIM/PATH, hf://OWNER/NAME[@REVISION], hf://datasets/OWNER/NAME[@REVISION]/FILE, "
            "s3://BUCKET/KEY (also gs://, az://), generated://NAME/FILE, without '..', or an absolute path inside the "
            "image: a relative path has no meaning in a cluster",
        )
        for field, path in (
            ("a source", "variables.sources.all(v, {})"),
            ("data of a benchmark", "variables.benchmarks.all(l, l.map(b, b.data).all(v, {}))"),
        )
    ),
    AdmissionRule(
        "variables.servers.all(s, size(s.?command.orValue([])) == 0)",
        "mcpServers: command is only for `rstar2 run`; run the server over HTTP in a Deployment of its own and set url",
    ),
    AdmissionRule(
        "variables.environments.all(e, has(e.url) || has(e.image))",
        "environments: image is required in a cluster, unless url is set",
    ),
    AdmissionRule(
        "!has(object.spec.agent) || has(object.spec.agent.image)",
        "agent: image is required in a cluster: that of the agent's program, with Python 3.8",
    ),
    *(
        rule
        for role in ("rollout", "teacher")
        for rule in (
            AdmissionRule(
                f"object.spec.?{role}.engineArgs.orValue({{}}).all(k,"
                f" k.replace('_', '-').matches('^-*({'|'.join(sorted(ALLOWED_ENGINE_ARGS))})$'))",
                f"{role}.engineArgs: an argument is set by the operator, or {REFUSED}",
            ),
            AdmissionRule(
                f"object.spec.?{role}.engineArgs.orValue({{}}).all(k, !k.matches('^-*dtype$') ||"
                f" object.spec.{role}.engineArgs[k] in {_texts(ENGINE_DTYPES)})",
                f"{role}.engineArgs: dtype {DTYPE}",
            ),
        )
    ),
    AdmissionRule(
        "object.spec.?teacher.engineArgs.orValue({}).all(k, !k.replace('_', '-').matches('^-*max-model-len$') ||"
        " type(object.spec.teacher.engineArgs[k]) != int || variables.grpo.all(s, !(has(s.grpo.objective) ?"
        " s.grpo.objective.?teacher.source.hasValue() : object.spec.?grpo.objective.teacher.source.hasValue()) ||"
        f" {_sum_of('s', 'max_prompt_tokens', 'max_response_tokens')} < object.spec.teacher.engineArgs[k]))",
        f"teacher.engineArgs: max-model-len {SHORT_CONTEXT}",
    ),
    AdmissionRule(
        "variables.learning.filter(s, s.name == variables.learners[0] && has(s.grpo)).map(s, has(s.grpo.objective) ?"
        " s.grpo.?objective : object.spec.?grpo.objective).all(o, o.?teacher.source.orValue('') !="
        " object.spec.model.source || double(o.?rewardWeight.orValue(0.0)) > 0.0)",
        f"objective: teacher.source {OWN_TEACHER}",
    ),
    AdmissionRule(
        f"variables.learning.all(s, {_LORA.format('s')}.?start.orValue('New') == 'New' || variables.learning.all(p,"
        " variables.learners.indexOf(p.name) != variables.learners.indexOf(s.name) - 1 ||"
        f" {_FORM.format('p')} == {_FORM.format('s')}))",
        "trainer.lora.start: Continue needs an adapter of the same rank, alpha and targetModules in the training stage "
        "before",
    ),
    AdmissionRule(
        f"!({with_lora(['GRPO'], 'object.spec')}) || object.spec.rollout.?engineArgs.orValue({{}}).all(k,"
        " !k.replace('_', '-').matches('^-*data-parallel-size$') || object.spec.rollout.engineArgs[k] == 1)",
        f"rollout.engineArgs: data-parallel-size {ONE_REPLICA}",
    ),
    AdmissionRule(
        f"variables.tools.all(t, t.name != '{NOTEBOOK}' && (has(t.server) || has(t.source) != (t.name in"
        f" {_texts(BUILTIN_TOOLS)})))",
        f"tools: a tool needs source or server unless it is {BUILTIN_TOOLS[0]}; {NOTEBOOK} is selected by rollout.tool",
    ),
    AdmissionRule(
        "variables.tools.all(t, !has(t.server) || (variables.servers.exists(s, s.name == t.server) && !has(t.source) &&"
        " !has(t.memory)))",
        "tools: server must name an entry of mcpServers, without source and memory",
    ),
    AdmissionRule(
        "variables.tools.all(t, !has(t.memory) ||"
        f" ({_quantity('t.memory')}.compareTo(quantity('{MEMORY_LIMITS[0]}')) >= 0"
        f" && {_quantity('t.memory')}.compareTo({_quantity('object.spec.judge.limits.memory')}) <= 0))",
        f"tools: memory must be between {MEMORY_LIMITS[0]} and judge.limits.memory",
    ),
    AdmissionRule(
        "variables.servers.all(s, has(s.url) == (size(s.?command.orValue([])) == 0) &&"
        " (!has(s.url) || s.url.matches('^https?://')) && (has(s.url) || !has(s.secretRef)))",
        "mcpServers: set either url (http:// or https://) or command; secretRef only with url",
    ),
    AdmissionRule(
        "variables.environments.all(e, has(e.url) ? e.url.matches('^https?://') && !has(e.image) &&"
        " size(e.?command.orValue([])) == 0 : has(e.image) || size(e.?command.orValue([])) > 0)",
        "environments: set image or command, or alone the url (http:// or https://) of a running server",
    ),
    AdmissionRule(
        "!has(object.spec.agent) || ['tools', 'mcpServers', 'environments', 'rewards'].all(f, !(f in object.spec) ||"
        " size(object.spec[f]) == 0)",
        "agent: must not be set together with tools, mcpServers, environments or rewards",
    ),
    AdmissionRule(
        f"{_all('rewards')}.all(r, (r.?type.orValue('Math') == 'Program') == has(r.source))",
        "rewards: source is required if type is Program, and only allowed then",
    ),
)
RULES: tuple[AdmissionRule, ...] = (*PATCHES, *AMOUNTS, *TASKS)


def build_policy(name: str) -> list[dict[str, Any]]:
    """Return the policy and its binding, for all namespaces. Pure.

    An unchanged spec is not checked again: jobs of earlier versions keep their finalizers and can be deleted.
    """
    group, version = API_VERSION.split("/")
    rule = {
        "apiGroups": [group],
        "apiVersions": [version],
        "operations": ["CREATE", "UPDATE"],
        "resources": ["agenticrljobs"],
    }
    kind = {"apiVersion": "admissionregistration.k8s.io/v1"}
    policy = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule]},
        "matchConditions": [
            {"name": "spec-changed", "expression": "oldObject == null || object.spec != oldObject.spec"},
            {"name": "not-deleted", "expression": "!has(object.metadata.deletionTimestamp)"},
        ],
        "variables": [{"name": name, "expression": expression} for name, expression in VARIABLES.items()],
        "validations": [{"expression": rule.expression, "message": rule.message} for rule in RULES],
    }
    binding = {"policyName": name, "validationActions": ["Deny"]}
    return [
        {**kind, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name}, "spec": policy},
        {**kind, "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": name}, "spec": binding},
    ]


def render_template() -> str:
    """Return the policy as a template of the Helm chart, with the switch admissionPolicy."""
    placeholder = "NAME-OF-THE-POLICY"
    text = dump_yaml(build_policy(placeholder))
    if "{{" in text:
        raise ValueError("the text of the policy is not a valid Helm template: adapt render_template")
    head = "{{- if .Values.admissionPolicy -}}\n# Generated from rstar2_train/api by `make crds`; do not edit.\n"
    text = text.replace(f"  name: {placeholder}\n", f"  name: {NAME}\n  labels: {LABELS}\n").replace(placeholder, NAME)
    return head + text + "{{- end }}\n"
