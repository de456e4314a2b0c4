"""The conversion of BFCL's published rows: calls of functions in one turn, scored by the template `calls`. Pure.

The functions that a model sees are those of the benchmark's own package: a note on the language follows each
description, and arguments of Java and JavaScript are texts whose description names the type.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rstar2_train.data.prepare.records import Row

KINDS: Mapping[str, str] = {
    "simple_python": "simple",
    "simple_java": "simple",
    "simple_javascript": "simple",
    "multiple": "multiple",
    "parallel": "parallel",
    "parallel_multiple": "parallel",
    "irrelevance": "irrelevance",
    "live_simple": "simple",
    "live_multiple": "multiple",
    "live_parallel": "parallel",
    "live_parallel_multiple": "parallel",
    "live_irrelevance": "irrelevance",
    "live_relevance": "relevance",
}
"""Category -> `data.kind` of its rows."""
LANGUAGES: Mapping[str, str] = {"simple_java": "java", "simple_javascript": "javascript"}
"""Category -> `data.language` of its rows; absent: Python."""
_FILE = re.compile(r"BFCL_v\d+_(\w+)\.json")
_ANSWERS = "possible_answer"
"""Folder with the files of answers, next to the files of questions."""
_NOTES = {
    "python": " Note that the provided function is in Python 3 syntax.",
    "java": " Note that the provided function is in Java 8 SDK syntax.",
    "javascript": " Note that the provided function is in JavaScript syntax.",
}
_NAMES = {"java": "Java", "javascript": "JavaScript"}
_TYPES = {"dict": "object", "float": "number", "tuple": "array"}
"""Type of BFCL -> JSON schema; `any` has none, the others are equal."""


def has_rows(path: Path) -> bool:
    """Return whether a file has questions of a category in `KINDS`, by its name and folder."""
    name = _FILE.fullmatch(path.name)
    return name is not None and name[1] in KINDS and path.parent.name != _ANSWERS


def answers_file(path: Path) -> Path | None:
    """Return the file with the wanted calls for a file of questions; None if no call is compared."""
    name = _FILE.fullmatch(path.name)
    return path.parent / _ANSWERS / path.name if name and has_truth(name[1]) else None


def has_truth(category: str) -> bool:
    """Return whether the calls of a category are compared with wanted ones."""
    return KINDS.get(category) in ("simple", "multiple", "parallel")


def to_row(category: str, item: dict[str, Any], truth: list[dict[str, Any]] | None) -> Row:
    """Return an item `{id, question, function}` of a category as a row; `truth`: its wanted calls, None if no call is
    compared.

    Raises KeyError, TypeError, AttributeError or ValueError for an item of another form.
    """
    (messages,) = item["question"]
    language = LANGUAGES.get(category, "python")
    data = {"kind": KINDS[category], "functions": item["function"], "calls": truth}
    return {
        "id": item["id"],
        "problem": "\n\n".join(message["content"] for message in messages),
        "answer": ", ".join(name for call in truth or () for name in call) or "no call",
        "slice": category,
        "functions": [_declaration(function, language) for function in item["function"]],
        "data": data | ({"language": language} if category in LANGUAGES else {}),
    }


def _declaration(function: dict[str, Any], language: str) -> dict[str, Any]:
    """Return a function as the model sees it. Names have underscores for dots."""
    parameters = function["parameters"]
    if language in _NAMES:
        properties = {name: _as_text(schema, language) for name, schema in parameters["properties"].items()}
        parameters = parameters | {"properties": properties}
    return {
        "name": function["name"].replace(".", "_"),
        "description": function["description"] + _NOTES[language],
        "parameters": _to_schema(parameters),
    }


def _as_text(schema: dict[str, Any], language: str) -> dict[str, Any]:
    """Return the schema of an argument of Java or JavaScript: a text, with the type in the description."""
    own, name, kind = dict(schema), _NAMES[language], schema["type"]
    text = f"This is {name} {kind} type parameter in string representation."
    if kind == "any":
        text = f"This parameter can be of any type of {name} object in string representation."
    if kind in ("Array", "ArrayList", "array"):
        text += f" The list elements are of type {own.pop('items')['type']}; they are not in string representation."
    if language == "javascript" and kind == "dict" and "properties" in own:
        fields = json.dumps(own.pop("properties"))
        text += f" The dictionary entries have the following schema; they are not in string representation. {fields}"
    return own | {"type": "string", "description": f"{schema['description']} {text}"}


def _to_schema(schema: Any) -> Any:
    """Return a description of arguments as a JSON schema: the names of types differ."""
    if isinstance(schema, list):
        return [_to_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kind = schema.get("type")
    own = {
        key: value if key in ("enum", "default", "description") else _to_schema(value) for key, value in schema.items()
    }
    if isinstance(kind, str):
        own["type"] = _TYPES.get(kind, kind)
        if kind == "any":
            del own["type"]
    return own
