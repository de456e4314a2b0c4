"""The fields of the manifest and the values of the chart that the pages name exist."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from rstar2_train.api.crd import build_schema
from scripts.docs.repository import PAGES, ROOT
from tests.support.page_blocks import blocks

TEXTS = {
    str(path.relative_to(ROOT)): path.read_text("utf-8")
    for path in [*sorted((ROOT / "docs").glob("*.md")), *(ROOT / name for name in PAGES)]
    if path.name not in ("CHANGELOG.md", "api-changes.md")  # which have the names of the past
}
SPEC: dict[str, Any] = build_schema()["properties"]["spec"]
STATUS: dict[str, Any] = build_schema()["properties"]["status"]
VALUES: dict[str, Any] = yaml.safe_load((ROOT / "helm" / "rstar2" / "values.yaml").read_text("utf-8"))


def unknown_fields(value: Any, node: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield the paths of the fields of a value that its schema does not have."""
    if isinstance(value, list):
        for item in value:
            yield from unknown_fields(item, node.get("items", {}), f"{path}[]")
    elif isinstance(value, dict) and "properties" in node:
        for name, inner in value.items():
            if name in node["properties"]:
                yield from unknown_fields(inner, node["properties"][name], f"{path}.{name}")
            else:
                yield f"{path}.{name}"


def paths(node: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield the paths of all fields below a schema, without the marks of lists."""
    inner = node.get("items", node)
    for name, child in inner.get("properties", {}).items():
        yield f"{path}.{name}"
        yield from paths(child, f"{path}.{name}")


def field_defaults(node: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    """Yield (path, default) of all fields below a schema that have one."""
    inner = node.get("items", node)
    for name, child in inner.get("properties", {}).items():
        if "default" in child:
            yield f"{path}.{name}", child["default"]
        yield from field_defaults(child, f"{path}.{name}")


def values(chart: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, default) of all values of the chart."""
    for name, value in chart.items():
        yield f"{path}{name}", value
        if isinstance(value, dict):
            yield from values(value, f"{path}{name}.")


FIELDS = {*paths(SPEC, "spec"), *paths(STATUS, "status")}
DEFAULTS = dict(values(VALUES))


def test_snippets_have_existing_fields() -> None:
    """YAML blocks that show a part of a manifest: its spec, or some fields of its spec."""
    manifests, faults = 0, []
    for page, text in TEXTS.items():
        for block in blocks(text, "yaml"):
            for part in yaml.safe_load_all(block):
                if not isinstance(part, dict) or part.get("kind", "AgenticRLJob") != "AgenticRLJob":
                    continue
                spec = part.get("spec", part if set(part) <= set(SPEC["properties"]) else {})
                manifests += bool(spec)
                faults += [f"{page}: {path}" for path in unknown_fields(spec, SPEC, "spec")]
    assert manifests > 25
    assert faults == []


def test_sentences_name_existing_fields() -> None:
    """Words in code font that start with `spec.` or `status.`."""
    named = {
        (page, name.replace("[]", "").rstrip("."))
        for page, text in TEXTS.items()
        for name in re.findall(r"`((?:spec|status)\.[\w.\[\]]+)`", text)
    }
    assert len(named) > 100
    assert {(page, name) for page, name in named if name not in FIELDS} == set()


def test_sentences_have_the_defaults_of_fields() -> None:
    """Numbers in brackets behind a field, such as `keepLast` (3) or `maxRestarts` (default 6)."""
    defaults = dict(field_defaults(SPEC, "spec"))
    stated = {
        (page, name, int(number.replace(",", "")))
        for page, text in TEXTS.items()
        for name, number in re.findall(r"`(\w[\w.]*)`\]?(?:\(\S+\))? \((?:default:? )?([\d,]+)(?=[),])", text)
    }
    fields = {name: {path for path in defaults if f".{path}".endswith(f".{name}")} for _, name, _ in stated}
    known = {(page, name, number) for page, name, number in stated if fields[name]}
    assert len(known) > 5
    faults = {row for row in known if row[2] not in {defaults[path] for path in fields[row[1]]}}
    assert faults == set()


def test_pages_name_existing_values_of_the_chart() -> None:
    """In code font and after `--set`, for the objects of the chart's values that a manifest does not have."""
    objects = "|".join(name for name, value in VALUES.items() if isinstance(value, dict))
    pattern = rf"(?:`|--set[ =]'?)((?:{objects})\.[\w.]+)(?=[`=:])"
    named = {(page, name) for page, text in TEXTS.items() for name in re.findall(pattern, text) if name != "mlflow.db"}
    assert len(named) > 40
    assert {(page, name) for page, name in named if not _is_value(name)} == set()


def _is_value(name: str) -> bool:
    """Return whether the chart has a value, or an object without fixed fields that it is in."""
    parents = [name[: match.start()] for match in re.finditer(r"\.", name)]
    return name in DEFAULTS or any(DEFAULTS.get(parent) == {} for parent in parents)


def test_installation_page_has_the_defaults_of_the_chart() -> None:
    """The rows whose default is a literal."""
    page = TEXTS["docs/installation.md"].partition("\n## Values of the chart\n")[2].partition("\n### ")[0]
    rows = re.findall(r"^\| (`[^|]+`) \| ([^|;]+) \|", page, flags=re.MULTILINE)
    stated = {name: text for names, text in rows for name in re.findall(r"`([\w.]+)`", names) if name in DEFAULTS}
    literals = {name: text for name, text in stated.items() if text not in ("not published", "off")}
    assert len(literals) > 10
    assert {name: text for name, text in literals.items() if text not in _texts(DEFAULTS[name])} == {}


def _texts(value: Any) -> tuple[str, ...]:
    """Return the texts by which the page may state a default."""
    if isinstance(value, bool):
        return (str(value).lower(),)
    if not value or (isinstance(value, dict) and not any(value.values())):
        return ("none", "all")
    return (", ".join(map(str, value)) if isinstance(value, list) else str(value),)
