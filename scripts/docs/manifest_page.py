"""Writes docs/manifest.md from the models in rstar2_train/api: one row per field. `make crds` runs it.

The rows come from the same schema as the CRD, so both have the same types, defaults and bounds.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rstar2_train.api.cel import RULES, TRANSITIONS
from rstar2_train.api.crd import COLUMNS, build_schema
from rstar2_train.api.stages import GRPOSettings
from scripts.docs.effects import LEGEND, effect

PAGE = Path(__file__).parents[2] / "docs" / "manifest.md"
Schema = Mapping[str, Any]

SECTIONS = (
    "spec.model", "spec.stages[]", "spec.stages[].sft", "spec.stages[].grpo", "spec.stages[].filter",
    "spec.stages[].evaluate", "spec.grpo", "spec.validation", "spec.checkpoint", "spec.trajectories", "spec.trainer",
    "spec.trainer.lora", "spec.rollout", "spec.teacher", "spec.agent", "spec.judge", "spec.executor", "spec.redis",
    "spec.accelerator", "spec.storage", "spec.tracking",
    "spec.failurePolicy", "spec.nodeLoss", "spec.stuck", "spec.secretRefs", "spec.runtimePatches[]",
    "spec.tools[]", "spec.mcpServers[]", "spec.environments[]", "spec.rewards[]",
)  # fmt: skip
"""Objects with a section of their own, in the order of the page; other objects are rows of the section around them."""
USUAL = (
    "spec.model.source", "spec.accelerator.vendor", "spec.trainer.replicas", "spec.trainer.gpusPerReplica",
    "spec.rollout.replicas", "spec.rollout.tensorParallel", "spec.executor.replicas", "spec.stages[].type",
    "spec.stages[].sft.data", "spec.grpo.data", "spec.grpo.steps", "spec.grpo.promptsPerStep",
    "spec.grpo.rolloutsPerPrompt", "spec.grpo.keepPerPrompt", "spec.grpo.maxResponseTokens", "spec.grpo.maxTurns",
    "spec.grpo.maxStaleness", "spec.validation.data", "spec.checkpoint.everySteps", "spec.storage.size",
)  # fmt: skip
"""The twenty fields that most manifests set, in the order of the page's first table."""
SAME_AS = {"spec.stages[].grpo": "spec.grpo"}
"""Section -> section with the same fields, which are not repeated."""
NBSP = "\N{NO-BREAK SPACE}"
_DEFAULT = re.compile(r" Default: \S+\.$")
"""The default in the CRD's description of a field of spec.grpo; the page has a column for it."""
HEAD = """\
# Manifest reference

<!-- Generated from rstar2_train/api by `make crds`; do not edit. -->

Every field of an `AgenticRLJob` (`rstar2.dev/v1alpha1`, short name `arl`). Only `spec.model.source` and `spec.stages`
are required. An unset field has the default of its row; the defaults of training and sampling are the paper's.

- `rstar2 validate FILE` lists all errors of a manifest in one run: the field, its value, and the allowed values.
- `kubectl explain arl.spec.grpo` shows the same descriptions in a terminal.
- Complete manifests: [examples](../examples).

Numbers that are learning rates, probabilities or temperatures are decimals. Amounts of CPU, memory and storage are
Kubernetes quantities, such as `500m` or `16Gi`. `[]` in a path stands for each entry of a list.

## The fields that most jobs set

| Field | Description | Default |
|---|---|---|
USUAL
The fields of `spec.grpo` are defaults for all GRPO stages; a stage overrides them in `spec.stages[].grpo`.

## When a change takes effect

You may edit a job at any time, with `kubectl edit`, `apply` or `scale`. The column *Change*, or the line *Change* above
a table, shows when the new value is used. [Changing a running job](kubernetes.md#changing-a-running-job) has the cost.

| Change | Meaning |
|---|---|
"""


@dataclass(frozen=True, slots=True)
class FieldRow:
    """One field of the manifest."""

    path: str
    kind: str
    """Type and bounds."""
    default: str
    description: str


def render() -> str:
    """The text of docs/manifest.md. Pure."""
    root = build_schema()["properties"]
    parts = [
        HEAD.replace("USUAL\n", _usual(root))
        + "".join(f"| {value} | {meaning} |\n" for value, meaning in LEGEND.items())
    ]
    parts.append(_section("spec", root["spec"], "## spec"))
    for path in SECTIONS:
        heading = f"{'###' if path.count('.') > 1 else '##'} {path}"
        if path in SAME_AS:
            other = SAME_AS[path]
            text = (
                f"The fields of [{other}](#{anchor(other)}), each optional. A value here overrides that of `{other}`. "
                "A member object, such as `objective` or `advanceWhen`, overrides as a whole: its unset fields have "
                "their defaults."
            )
            parts.append(f"{heading}\n\n{text}\n")
        else:
            parts.append(_section(path, _node(root, path), heading))
    parts.append(_rules())
    parts.append(_status(root["status"]))
    return "\n".join(parts)


def _usual(root: Schema) -> str:
    lines = []
    for path in USUAL:
        section = max((name for name in ("spec", *SECTIONS) if path.startswith(f"{name}.")), key=len)
        (row,) = (row for row in rows(section, _node(root, section)) if row.path == path)
        name = f"[{_code(path)}](#{anchor(section)})"
        lines.append(f"| {name} | {_text(_DEFAULT.sub('', row.description))} | {row.default} |\n")
    return "".join(lines) + "\n"


def rows(path: str, node: Schema, *, inner_objects: bool = False) -> Iterator[FieldRow]:
    """The rows of an object's own section: its fields, and those of objects in it that have no section. Pure.

    `inner_objects`: whether an object directly in the section has a row with its own description too.
    """
    required = node.get("required", ())
    for name, child in node["properties"].items():
        here = f"{path}.{name}"
        inner = child.get("items", child)
        entry = f"{here}[]" if "items" in child else here
        if "properties" not in inner:
            yield FieldRow(here, _kind(child), _default(here, child, name in required), child.get("description", ""))
        elif entry not in SECTIONS:
            if "items" in child:
                yield FieldRow(here, _kind(child), _default(here, child, name in required), child["description"])
            elif inner_objects and child.get("description"):
                default = (
                    "required" if name in required else "unset" if child.get("default") is None else "see its fields"
                )
                yield FieldRow(here, "object", default, child["description"])
            yield from (_with_default_of(name, child, row) for row in rows(entry, inner))


def _with_default_of(name: str, child: Schema, row: FieldRow) -> FieldRow:
    """The row of a field of object `name`, with the object's own default of it: it applies if the object is unset."""
    default = child.get("default")
    own = default.get(row.path.rpartition(".")[2]) if isinstance(default, dict) else None
    if own is None or f"`{json.dumps(own)}`" == row.default:
        return row
    return replace(row, default=f"`{json.dumps(own)}`; if `{name}` is set: {row.default}")


def anchor(path: str) -> str:
    """Anchor of an object's section, as MkDocs and GitHub make it of the heading."""
    return path.replace("[]", "").replace(".", "").lower()


def _section(path: str, node: Schema, heading: str) -> str:
    below = [name for name in SECTIONS if name.removesuffix("[]").rpartition(".")[0] == path]
    lines = [heading, ""]
    if path != "spec":
        lines += [_text(node.get("description", "")), ""]
    if below:
        lines += [
            "Objects in it: " + ", ".join(f"[{name.rpartition('.')[2]}](#{anchor(name)})" for name in below) + ".",
            "",
        ]
    fields = list(rows(path, node, inner_objects=True))
    change = _one_change(path, fields)
    lines += [f"[Change](#when-a-change-takes-effect): {change}", ""] if change else []
    heads = ["Field", "Description", "Type and bounds", "Default", *(() if change else ["Change"])]
    lines += ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for row in fields:
        short = row.path.removeprefix(f"{path}.")
        cells = [_code(short), _text(_DEFAULT.sub("", row.description)), row.kind, row.default]
        cells += [] if change else [effect(row.path)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _one_change(path: str, fields: Sequence[FieldRow]) -> str | None:
    """When a change of a section's fields takes effect, if all of them but at most one agree."""
    ((usual, count), *_) = Counter(effect(row.path) for row in fields).most_common()
    if len(fields) - count > 1:
        return None
    others = (row.path for row in fields if effect(row.path) != usual)
    return f"{usual}." + "".join(f" Of {_code(other.removeprefix(f'{path}.'))}: {effect(other)}." for other in others)


def _rules() -> str:
    lines = ["## Rules between fields", ""]
    lines += ["`kubectl apply` and `rstar2 validate` reject a manifest that breaks one of these rules.", ""]
    lines += ["| At | Rule |", "|---|---|"]
    lines += [
        f"| `{(rule.at + rule.field).lstrip('.')}` | {_text(rule.message)} |"
        for rule in RULES
        if rule not in TRANSITIONS
    ]
    return "\n".join(lines) + "\n"


def _status(node: Schema) -> str:
    lines = [
        "## status",
        "",
        "Written by the operator.",
        "",
        "| Field | Description | Type |",
        "|---|---|---|",
    ]
    for row in rows("status", node):
        lines.append(f"| {_code(row.path.removeprefix('status.'))} | {_text(row.description)} | {row.kind} |")
    lines += ["", "Columns of `kubectl get arl` (those marked *wide* only with `-o wide`):", ""]
    lines += ["| Column | Field | Meaning |", "|---|---|---|"]
    for name, _, path, priority, text in COLUMNS:
        lines.append(f"| {name}{' (*wide*)' if priority else ''} | `{path.removeprefix('.')}` | {_text(text)} |")
    return "\n".join(lines) + "\n"


def _node(root: Schema, path: str) -> Schema:
    node: Schema = {"properties": root}
    for part in path.split("."):
        node = node["properties"][part.removesuffix("[]")]
        if part.endswith("[]"):
            description = node.get("description", "")
            node = {**node["items"], "description": node["items"].get("description", description)}
    return node


def _kind(node: Schema) -> str:
    if node.get("x-kubernetes-int-or-string"):
        return "quantity"
    if "enum" in node:
        values = node["enum"]
        return f"always `{values[0]}`" if len(values) == 1 else "one of " + ", ".join(f"`{value}`" for value in values)
    if "type" not in node:
        return "any value"
    name = str(node["type"])
    kind = {"boolean": "true or false", "number": "decimal", "array": "list", "object": "map"}.get(name, name)
    if kind == "list" and "properties" not in node["items"]:
        kind = f"list of {_kind(node['items'])}"
    if kind == "map" and "additionalProperties" in node:
        kind = f"map of {_kind(node['additionalProperties'])}"
    if node.get("format") == "date-time":
        kind = "time"
    return ", ".join([kind, *_bounds(node)])


def _bounds(node: Schema) -> Iterator[str]:
    if "minimum" in node:
        yield f"{'>' if node.get('exclusiveMinimum') else '≥'}{NBSP}{_number(node['minimum'])}"
    if "maximum" in node:
        yield f"{'<' if node.get('exclusiveMaximum') else '≤'}{NBSP}{_number(node['maximum'])}"
    if "maxLength" in node and node.get("type") == "string" and "format" not in node:
        yield f"≤{NBSP}{_number(node['maxLength'])} characters"
    if "minItems" in node:
        yield f"≥{NBSP}{node['minItems']} entries"
    if "maxItems" in node:
        yield f"≤{NBSP}{node['maxItems']} entries"
    if "maxProperties" in node:
        yield f"≤{NBSP}{node['maxProperties']} entries"


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) and value >= 10_000 else f"{value:g}"


def _default(path: str, node: Schema, required: bool) -> str:
    if required:
        return "required"
    value = node.get("default", _effective_default(path))
    if value is None or value in ("", [], {}):
        return "unset"
    if isinstance(value, list) and all(isinstance(entry, str) for entry in value):
        return ", ".join(f"`{entry}`" for entry in value)
    return f"`{json.dumps(value) if not isinstance(value, str) else value}`"


def _effective_default(path: str) -> Any:
    """Fields of spec.grpo have no default in the schema: a stage overrides only the fields that it sets."""
    fields = {str(field.alias): field.default for field in GRPOSettings.model_fields.values()}
    value = fields.get(path.removeprefix("spec.grpo.")) if path.startswith("spec.grpo.") else None
    return None if path == "spec.grpo.steps" else value if isinstance(value, int | float | str) else None


def _code(path: str) -> str:
    """A path in code font that may break after its dots: some are longer than a narrow window."""
    return f"`{path}`" if "." not in path else f"<code>{path.replace('.', '.<wbr>')}</code>"


def _text(text: str) -> str:
    """One line of a table: no bars; angle brackets as text; code as it is written for `kubectl explain`."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
    print(f"wrote {PAGE.name}", file=sys.stderr)
