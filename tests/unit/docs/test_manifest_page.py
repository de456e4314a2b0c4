"""docs/manifest.md: up to date, complete, and true about when a change takes effect."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from rstar2_operator.builders.agent import agent
from rstar2_operator.builders.environment import environment
from rstar2_operator.builders.judge import executor, judge
from rstar2_operator.builders.objects import build_context
from rstar2_operator.builders.redis import redis
from rstar2_operator.builders.rollout import rollout
from rstar2_operator.builders.teacher import teacher
from rstar2_operator.settings import OperatorSettings
from rstar2_train.api.cel import TRANSITIONS
from rstar2_train.api.crd import build_schema
from rstar2_train.api.job import AgenticRLJob
from scripts.docs import manifest_page
from scripts.docs.effects import EFFECTS, FETCH, LEGEND, LOCAL, NEVER, NOW, effect

ROOT = Path(__file__).parents[3]
ROLES = {
    **{"rollout": rollout, "judge": judge, "executor": executor, "redis": redis},
    **{"environment": environment, "agent": agent},
    "teacher": lambda built: teacher(built, built.job.stage("rl-8k")),
}
AGENT = {"spec.agent": {"command": ["agent"], "image": "agents:1"}}
"""Change of the example for the fields of an agent, which excludes other fields."""
TEACHER = {"spec.grpo.objective": {"type": "Distillation", "teacher": {"source": "/m"}}, "spec.teacher.replicas": 1}
"""Change of the example by which it has all roles."""
SPEC = build_schema()["properties"]["spec"]
EXAMPLE = yaml.safe_load((ROOT / "examples" / "qwen3-14b.yaml").read_text("utf-8"))


def leaves(node: Mapping[str, Any], path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(path, schema) of every field below an object that holds a value."""
    for name, child in node["properties"].items():
        inner = child.get("items", child)
        here = f"{path}.{name}" + ("[]" if "items" in child and "properties" in inner else "")
        if "properties" in inner:
            yield from leaves(inner, here)
        else:
            yield here, child


FIELDS = dict(leaves(SPEC, "spec"))


def test_manifest_page_is_up_to_date() -> None:
    """`make crds` writes the page again."""
    assert manifest_page.PAGE.read_text("utf-8") == manifest_page.render()


def test_manifest_page_has_each_field() -> None:
    """Every field of the schema has one row; spec.stages[].grpo refers to spec.grpo."""
    rows = []
    for section in ("spec", *(name for name in manifest_page.SECTIONS if name not in manifest_page.SAME_AS)):
        node = SPEC if section == "spec" else manifest_page._node({"spec": SPEC}, section)
        rows += [row.path for row in manifest_page.rows(section, node)]
    assert len(rows) == len(set(rows))
    assert {path for path in FIELDS if not path.startswith("spec.stages[].grpo.")} <= set(rows)


def test_effects_explain_each_field_and_value() -> None:
    """Each field has a pattern, each pattern has a field, and the legend has every value."""
    used = {next(pattern for pattern, _ in EFFECTS if fnmatchcase(path, pattern)) for path in FIELDS}
    assert used == {pattern for pattern, _ in EFFECTS}
    plain = {value for _, value in EFFECTS if not value.startswith(f"{NOW}, replaces ")}
    assert plain == set(LEGEND) - {"immediately, replaces PODS"}


def test_effects_immutable_fields_have_transition_rules() -> None:
    """The page calls immutable exactly what the API server does not let change."""
    fixed = {f"{rule.at}{rule.field}" for rule in TRANSITIONS} - {"spec.storage.size"}
    below = {path for path in FIELDS if any(path == at or path.startswith(f"{at}.") for at in fixed)}
    assert {path for path in FIELDS if effect(path) == NEVER} == below


def test_effects_replaced_pods_match_the_builders() -> None:
    """A change of a field changes the pod templates of the roles that the page names, and of no other role."""
    before, wrong = {False: templates({}), True: templates(AGENT)}, {}
    for path in FIELDS:
        value, effect_of = other_value(path), effect(path)
        if "[]" in path or effect_of in (NEVER, FETCH, LOCAL) or value is None:
            continue
        of_agent = path.startswith("spec.agent.")
        after = templates((AGENT if of_agent else {}) | {path: value})
        replaced = {role for role in ROLES if before[of_agent][role] != after[role]}
        if replaced != set(effect_of.partition("replaces ")[2].partition(";")[0].split(", ")) - {""}:
            wrong[path] = replaced
    assert not wrong


def templates(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Role -> pod templates of a job with some fields changed."""
    manifest: dict[str, Any] = copy.deepcopy(EXAMPLE)
    for stage in manifest["spec"]["stages"]:  # they inherit the length of spec.grpo
        stage.get("grpo", {}).pop("maxResponseTokens", None)
    for path, value in (TEACHER | dict(changes)).items():
        *folders, last = path.split(".")
        node = manifest
        for folder in folders:
            node = node.setdefault(folder, {})
        if folders[-1] in ("secretRef", "hubToken", "ca") or folders[-2:] == ["secretRefs", "teacher"]:
            node["name"] = "login"
        node[last] = copy.deepcopy(value)
    built = build_context(AgenticRLJob.model_validate(manifest), OperatorSettings())
    return {role: [body.get("spec", {}).get("template") for body in build(built)] for role, build in ROLES.items()}


def other_value(path: str) -> Any:
    """A value of the field that differs from the example's; None when the test cannot make one."""
    node, value = FIELDS[path], manifest_value(path)
    if "enum" in node:
        return next((entry for entry in node["enum"] if entry != value), None)
    if node.get("x-kubernetes-int-or-string"):
        return "7Mi" if path == "spec.judge.limits.output" else "77Gi"
    match node.get("type"):
        case "boolean":
            return not value
        case "integer" if path.endswith("Tokens"):  # longer than those of each stage
            return node["maximum"]
        case "integer":
            return int(node.get("minimum", 0)) + (7 if value != int(node.get("minimum", 0)) + 7 else 8)
        case "number":
            return 0.125
        case "string" if path.endswith("resource"):
            return "example.org/device"
        case "string" if path.endswith("endpoint"):
            return "http://other"
        case "string":
            return "other" if "pattern" in node else "/other"
        case "object":
            return {"cpu": "7"} if ".resources." in path else {"max_num_seqs": 7}
    return None


def manifest_value(path: str) -> Any:
    """The example's value of a field, or its default."""
    node: Any = EXAMPLE
    for part in path.split("."):
        node = node.get(part) if isinstance(node, dict) else None
    return FIELDS[path].get("default") if node is None else node
