"""Source texts of Java and JavaScript for drawn arguments, in right forms and with faults."""

from __future__ import annotations

import json
import random
from typing import Any

_JAVA_SUFFIXES = {"long": "L", "float": "f"}


def draw_source(value: Any, schema: dict[str, Any], language: str, rng: random.Random) -> Any:
    """Return the source text of a value for an argument with BFCL's schema, one in ten with a fault."""
    form = rng.random()
    if form < 0.02:
        return value
    if form < 0.04:
        return json.dumps(value)
    inner = (schema.get("items") or {}).get("type", "")
    text = _java(value, schema["type"], inner, rng) if language == "java" else _javascript(value, schema["type"], rng)
    faults = (text[:-1], f"{text}x", f" {text}", f"{text}\n", f'"{text}"', text.replace(" ", "\n"))
    return rng.choice(faults) if form < 0.1 else text


def _java(value: Any, kind: str, inner: str, rng: random.Random) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        has_quotes = rng.random() < 0.5
        texts = [
            json.dumps(each) if has_quotes and isinstance(each, str) else _java(each, inner, "", rng) for each in value
        ]
        items, name = ", ".join(texts), "Object"
        if kind == "Array":
            return f"new {rng.choice(('int', 'String', name))}[]{rng.choice(('', ' '))}{{{items}}}"
        adds = " ".join(f"add({each});" for each in texts)
        lists = (f"new ArrayList<>(Arrays.asList({items}))", f"new ArrayList<{name}>() {{{{ {adds} }}}}")
        return rng.choice((*lists, f"Arrays.asList({items})"))
    if isinstance(value, dict):
        puts = (f'put("{key}", {_literal(each, rng)});' for key, each in value.items())
        return f"new HashMap<String, Object>() {{{{ {' '.join(puts)} }}}}" if value else "new HashMap<>()"
    suffix = _JAVA_SUFFIXES.get(kind, "") if isinstance(value, (int, float)) and rng.random() < 0.9 else ""
    return f"{value}{suffix}"


def _javascript(value: Any, kind: str, rng: random.Random) -> str:
    if isinstance(value, list):
        items = rng.choice((", ", ",", ",\n ")).join(_literal(each, rng) for each in value)
        return rng.choice((f"[{items}]", f"[{items}]", f"[ {items} ]", f"new Array({items})"))
    if isinstance(value, dict):
        quote = rng.choice(("", '"', "'"))
        fields = ", ".join(f"{quote}{key}{quote}: {_literal(each, rng)}" for key, each in value.items())
        return rng.choice(("{%s}", "{ %s }")) % fields
    if isinstance(value, str):
        return rng.choice((value, _literal(value, rng)))
    suffix = "n" if kind == "Bigint" else ""
    return f"{_literal(value, rng)}{suffix}"


def _literal(value: Any, rng: random.Random) -> str:
    """Return a JSON text, or a text in single quotes or without quotes."""
    if isinstance(value, str) and rng.random() < 0.5:
        return rng.choice((f"'{value}'", value))
    return json.dumps(value)
