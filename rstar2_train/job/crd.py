"""Generates the CustomResourceDefinition from the job's models: `python -m rstar2_train.job.crd` writes crds/.

A structural schema allows less than JSON Schema does: no references, no types inside anyOf, no `const`, exclusive
bounds as booleans. `structural` rewrites pydantic's schema into that form; a test fails when crds/ is out of date.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

from rstar2_train.job.base import API_VERSION, KIND
from rstar2_train.job.spec import AgenticRLJob
from rstar2_train.job.stages import GRPOSettings

CRD_FILE = Path(__file__).parents[2] / "crds" / "rstar2.dev_agenticrljobs.yaml"
_KEPT = (
    *("type", "description", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "pattern"),
    *("minLength", "maxLength", "minItems", "maxItems", "maxProperties", "required", "default"),
)

COLUMNS = (
    ("Phase", "string", ".status.phase"),
    ("Stage", "string", ".status.stage"),
    ("Step", "integer", ".status.step"),
    ("Reward", "string", ".status.reward"),
    ("Progress", "string", ".status.progressPercentage"),
    ("Restarts", "integer", ".status.restarts"),
    ("Age", "date", ".metadata.creationTimestamp"),
)


def structural(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """`schema` (pydantic's JSON Schema) as a Kubernetes structural schema. Pure."""
    if "$ref" in schema:
        target = definitions[schema["$ref"].rsplit("/", 1)[1]]
        schema = target | {key: value for key, value in schema.items() if key != "$ref"}
    options = [option for option in schema.get("anyOf", []) if option.get("type") != "null"]
    if len(options) == 1:
        return structural(options[0] | {k: v for k, v in schema.items() if k not in ("anyOf", "default")}, definitions)
    out = {key: schema[key] for key in _KEPT if key in schema}
    if "description" in out:
        out["description"] = " ".join(out["description"].split())
    if len(options) > 1:  # a quantity, the only union of the API
        return {k: out[k] for k in ("description",) if k in out} | {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
        }
    if "const" in schema:
        out["enum"] = [schema["const"]]
    for bound in ("Minimum", "Maximum"):
        if f"exclusive{bound}" in out:
            out[bound.lower()] = out[f"exclusive{bound}"]
            out[f"exclusive{bound}"] = True
    if isinstance(out.get("default"), dict | list) or out.get("default", "") is None:
        out.pop("default")
    if "properties" in schema:
        out["properties"] = {name: structural(value, definitions) for name, value in schema["properties"].items()}
    elif out.get("type") == "object":
        values = schema.get("additionalProperties")
        if isinstance(values, dict) and values:
            out["additionalProperties"] = structural(values, definitions)
        else:
            out["x-kubernetes-preserve-unknown-fields"] = True
    if "items" in schema:
        out["items"] = structural(schema["items"], definitions)
    return out


def build_crd() -> dict[str, Any]:
    """The CustomResourceDefinition object. Pure."""
    schema = AgenticRLJob.model_json_schema(by_alias=True, mode="validation")
    _tell_grpo_defaults(schema["$defs"]["GRPO"]["properties"])
    root = structural(schema, schema["$defs"])
    spec = root["properties"]["spec"]
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
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [
                        {"name": name, "type": kind, "jsonPath": path} for name, kind, path in COLUMNS
                    ],
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "description": root["description"],
                            "required": ["spec"],
                            "properties": {
                                "apiVersion": {"type": "string"},
                                "kind": {"type": "string"},
                                "metadata": {"type": "object"},
                                "spec": spec,
                                "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                            },
                        }
                    },
                }
            ],
        },
    }


def _tell_grpo_defaults(fields: dict[str, Any]) -> None:
    """GRPO fields have no schema default (a stage's overlay must stay empty), so their descriptions say it."""
    for name, field in GRPOSettings.model_fields.items():
        if isinstance(field.default, int | float | str) and name != "steps":
            fields[str(field.alias)]["description"] += f" Default: {json.dumps(field.default)}."


def render_crd() -> str:
    """The text of the file in crds/."""
    head = "# Generated from rstar2_train/job by `make crds`; do not edit.\n"
    return head + yaml.safe_dump(build_crd(), sort_keys=False, width=110)


if __name__ == "__main__":
    CRD_FILE.parent.mkdir(exist_ok=True)
    CRD_FILE.write_text(render_crd(), encoding="utf-8")
    print(f"wrote {CRD_FILE.name} ({CRD_FILE.stat().st_size // 1024} KiB)", file=sys.stderr)
