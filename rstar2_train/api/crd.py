"""Generator of the CustomResourceDefinition from the job's models: `make crds` writes crds/ and the chart's copy.

A structural schema allows less than JSON Schema: no references, no types inside anyOf, no `const`, exclusive bounds as
booleans. `structural` rewrites pydantic's schema into that form; `attach` adds the CEL rules of cel.py. One test fails
if crds/ is stale, another if a real API server rejects the CRD.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from rstar2_train.api import admission
from rstar2_train.api.base import API_VERSION, KIND, ApiModel, JobName
from rstar2_train.api.cel import RULES
from rstar2_train.api.job import AgenticRLJob, JobSpec
from rstar2_train.api.loader import dump_yaml
from rstar2_train.api.objectives import ObjectiveSpec, types_with
from rstar2_train.api.stages import GRPOSettings
from rstar2_train.api.status import JobStatus

Schema = dict[str, Any]

ROOT = Path(__file__).parents[2]
CRD_FILE = ROOT / "crds" / "rstar2.dev_agenticrljobs.yaml"
TEMPLATE = ROOT / "helm" / "rstar2" / "templates" / "crd.yaml"
_KEPT = (
    *("type", "description", "format", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "pattern"),
    *("minLength", "maxLength", "minItems", "maxItems", "maxProperties", "required", "default"),
    *("x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-map-type"),
    *("x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"),
)


def _ready(role: str) -> str:
    return f'.status.roles[?(@.name=="{role}")].ready'


_REASON = '.status.conditions[?(@.type=="Ready")].reason'
COLUMNS = (
    ("Phase", "string", ".status.phase", 0, "Phase of the job."),
    ("Stage", "string", ".status.stage", 0, "Current stage."),
    ("Step", "integer", ".status.step", 0, "Steps done of the current stage."),
    ("Reward", "string", ".status.reward", 0, "Mean reward of the last step."),
    ("Progress", "integer", ".status.progressPercentage", 0, "Share of the curriculum that is done, in percent."),
    ("Restarts", "integer", ".status.restarts", 0, "Restarts of stages so far."),
    ("Trainer", "integer", _ready("trainer"), 1, "Trainer pods that are ready."),
    ("Rollout", "integer", _ready("rollout"), 1, "Engines that are ready."),
    ("Judge", "integer", _ready("judge"), 1, "Judge pods that are ready."),
    ("Reason", "string", _REASON, 1, "Reason of the condition Ready."),
    ("Age", "date", ".metadata.creationTimestamp", 0, "Time since the creation of the job."),
)
"""Name, type, path, priority (1: only with -o wide), description."""


def structural(schema: Schema, definitions: Mapping[str, Schema]) -> Schema:
    """Return `schema` (pydantic's JSON Schema) as a Kubernetes structural schema. Pure."""
    if "$ref" in schema:
        target = definitions[schema["$ref"].rsplit("/", 1)[1]]
        schema = target | {key: value for key, value in schema.items() if key != "$ref"}
    options = [option for option in schema.get("anyOf", []) if option.get("type") != "null"]
    if len(options) == 1:
        return structural(options[0] | {k: v for k, v in schema.items() if k not in ("anyOf", "default")}, definitions)
    out = {key: schema[key] for key in _KEPT if key in schema}
    if "description" in out:
        out["description"] = " ".join(out["description"].split())
    if options:  # a Quantity
        out["anyOf"] = options
    if "const" in schema:
        out["enum"] = [schema["const"]]
    for bound in ("Minimum", "Maximum"):
        if f"exclusive{bound}" in out:
            out[bound.lower()] = out[f"exclusive{bound}"]
            out[f"exclusive{bound}"] = True
    if out.get("x-kubernetes-preserve-unknown-fields"):  # the model alone checks the content
        return out
    if "properties" in schema:
        out["properties"] = {name: structural(value, definitions) for name, value in schema["properties"].items()}
    elif out.get("type") == "object":
        out["additionalProperties"] = structural(schema["additionalProperties"], definitions)
    if "items" in schema:
        out["items"] = structural(schema["items"], definitions)
    if "default" in out:
        _reduce_default(out)
    return out


def _reduce_default(node: Schema) -> None:
    """Drop an empty default; of an object's default keep the values that differ from its fields' own defaults.

    The API server fills in the rest, so CEL rules can read fields that the manifest does not set.
    """
    default = node.pop("default")
    if isinstance(default, dict) and "properties" in node:
        node["default"] = _overrides(default, node["properties"])
    elif default not in (None, "", [], {}):
        node["default"] = default


def _overrides(default: Schema, fields: Mapping[str, Schema]) -> Schema:
    overrides = {}
    for name, value in default.items():
        if isinstance(value, dict) and "properties" in fields[name]:
            value = _overrides(value, fields[name]["properties"])
        if value not in (None, "", [], {}, fields[name].get("default")):
            overrides[name] = value
    return overrides


def attach(root: Schema) -> None:
    """Add every CEL rule at its path in the schema of the whole object, in place."""
    for rule in RULES:
        node = root
        for part in filter(None, rule.at.split(".")):
            node = node["properties"][part.removesuffix("[]")]
            if part.endswith("[]"):
                node = node["items"]
        node.setdefault("x-kubernetes-validations", []).append(rule.entry())


def _schema_of(model: type[ApiModel]) -> Schema:
    schema = model.model_json_schema(by_alias=True, mode="validation")
    definitions = schema.get("$defs", {})
    if "GRPODefaults" in definitions:
        _describe_grpo_defaults(definitions["GRPODefaults"]["properties"])
        _describe_objective_defaults(definitions["ObjectiveSpec"]["properties"])
    return structural(schema, definitions)


def _describe_grpo_defaults(fields: Schema) -> None:
    """Add the defaults of GRPO fields to their descriptions: a schema default would fill the overlay of a stage."""
    for name, field in GRPOSettings.model_fields.items():
        if isinstance(field.default, int | float | str) and name != "steps":
            fields[str(field.alias)]["description"] += f" Default: {json.dumps(field.default)}."


def _describe_objective_defaults(fields: Schema) -> None:
    """Add the types that have a field, and their defaults, to its description: a default depends on the type."""
    for name, field in ObjectiveSpec.model_fields.items():
        if types := types_with(name):
            own = {kind: "" if value in (None, "") else f": {json.dumps(value)}" for kind, value in types.items()}
            prefix = "Types and their defaults:" if any(own.values()) else "Only for"
            defaults = (f"{kind}{default}" for kind, default in own.items())
            fields[str(field.alias)]["description"] += f" {prefix} {', '.join(defaults)}."


def build_schema() -> Schema:
    """Return the openAPIV3Schema of the whole object. Pure."""
    root = {
        "type": "object",
        "description": AgenticRLJob.__doc__,
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            # A CRD may constrain only the name in metadata.
            "metadata": {"type": "object", "properties": {"name": structural(TypeAdapter(JobName).json_schema(), {})}},
            "spec": _schema_of(JobSpec),
            "status": _schema_of(JobStatus),
        },
    }
    attach(root)
    return root


def build_crd() -> dict[str, Any]:
    """Return the CustomResourceDefinition object. Pure."""
    group, version = API_VERSION.split("/")
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"agenticrljobs.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": "agenticrljobs",
                "singular": "agenticrljob",
                "shortNames": ["arl"],
                "categories": ["all", "ml"],
            },
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.rollout.replicas",
                            "statusReplicasPath": ".status.rolloutReplicas",
                            "labelSelectorPath": ".status.rolloutSelector",
                        },
                    },
                    "additionalPrinterColumns": [
                        {"name": name, "type": kind, "jsonPath": path, "description": text}
                        | ({"priority": priority} if priority else {})
                        for name, kind, path, priority, text in COLUMNS
                    ],
                    "schema": {"openAPIV3Schema": build_schema()},
                }
            ],
        },
    }


def render_crd() -> str:
    """Return the text of the file in crds/."""
    head = "# Generated from rstar2_train/api by `make crds`; do not edit.\n"
    return head + dump_yaml([build_crd()], block=False)


def render_template() -> str:
    """Return the CRD as a template of the Helm chart, with the switches crds.install and crds.keep.

    The chart does not use Helm's own folder for CRDs, because Helm never upgrades files of that folder.
    """
    text, name = render_crd(), build_crd()["metadata"]["name"]
    metadata = f"metadata: {{name: {name}}}\n"
    if "{{" in text or metadata not in text:
        raise ValueError("the text of the CRD is not a valid Helm template: adapt render_template")
    text = text.replace(metadata, f"metadata:\n  name: {name}\n{_KEEP}")
    return "{{- if .Values.crds.install -}}\n" + text + "{{- end }}\n"


_KEEP = """\
  {{- if .Values.crds.keep }}
  annotations:
    helm.sh/resource-policy: keep
  {{- end }}
"""


if __name__ == "__main__":
    for path, text in (
        (CRD_FILE, render_crd()),
        (TEMPLATE, render_template()),
        (admission.TEMPLATE, admission.render_template()),
    ):
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path.name} ({path.stat().st_size // 1024} KiB)", file=sys.stderr)
