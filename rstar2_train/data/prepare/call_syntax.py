"""Reads tools' signatures and calls in the ways in which the public datasets write them down.

Used by conversations.py alone. Text of unknown origin: values are read as literals, nothing is evaluated. Pure.
"""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass
from typing import Any

_DECODER = json.JSONDecoder()
_BRACKET_CALL = re.compile(r"\s*([^()\[\]{}'\"=]+?)\s*\((.*)\)\s*", re.DOTALL)
_CONSTANTS = {"true": True, "false": False, "null": None}
_TYPES = {
    "dict": "object", "float": "number", "int": "integer", "str": "string", "list": "array", "tuple": "array",
    "bool": "boolean", "any": "string",
}  # fmt: skip
"""Names of types that some datasets take from Python -> JSON Schema's."""
_OPENING, _CLOSING = "([{", ")]}"


class CallSyntaxError(ValueError):
    """A call or signature that cannot be read; `rule` is what the row is removed by."""

    def __init__(self, message: str, *, rule: str = "unreadable-call") -> None:
        super().__init__(message)
        self.rule = rule


@dataclass(frozen=True, slots=True)
class SourceCall:
    """A call of a tool."""

    name: str
    arguments: dict[str, Any]

    @classmethod
    def of(cls, value: dict[str, Any]) -> SourceCall:
        """From `{name, arguments}`, whose arguments may be JSON in a text. Raises Unreadable."""
        name, arguments = value.get("name"), value.get("arguments", {})
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments or "{}")
            except ValueError as error:
                raise CallSyntaxError(f"arguments of {name!r}: {error}") from error
        if not isinstance(name, str) or not name or not isinstance(arguments, dict):
            raise CallSyntaxError(f"not a call: {json.dumps(value, ensure_ascii=False)[:60]}")
        return cls(name, arguments)


def json_objects(text: str) -> list[dict[str, Any]]:
    """The JSON objects in a text, in order: one after the other, or in an array. Raises Unreadable for a broken one.

    What stands between them is passed over. Signatures begin with `{"`; a brace in a sentence does not.
    """
    found: list[dict[str, Any]] = []
    end = 0
    for match in re.finditer(r'\{\s*"', text):
        if match.start() < end:  # inside the object before
            continue
        try:
            value, end = _DECODER.raw_decode(text, match.start())
        except (json.JSONDecodeError, RecursionError) as error:
            raise CallSyntaxError(f"not JSON: {text[match.start() : match.start() + 40]!r}: {error}") from error
        found.append(value)
    return found


def signature(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool's signature as OpenAI and Hugging Face templates have it: `{type: function, function: {...}}`."""
    inner = tool.get("function", tool)
    if not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
        raise CallSyntaxError(f"a signature without a name: {json.dumps(tool, ensure_ascii=False)[:60]}")
    function = {
        "name": inner["name"],
        "description": inner.get("description") or "",
        "parameters": _schema(inner.get("parameters") or {"type": "object", "properties": {}}),
    }
    return {"type": "function", "function": function}


def bracket_calls(text: str) -> list[SourceCall]:
    """The calls in `[name(argument=value, ...), ...]`. Names may hold spaces and dots, values are Python or JSON."""
    calls = []
    for item in _split(text.strip()[1:-1]):
        match = _BRACKET_CALL.fullmatch(item)
        if match is None:
            raise CallSyntaxError(f"not a call: {item[:60]!r}")
        name, inside = match.groups()
        arguments = {}
        for argument in _split(inside):
            key, equals, value = argument.partition("=")
            if not equals:
                raise CallSyntaxError(f"an argument of {name!r} without a name: {argument[:60]!r}")
            arguments[key.strip()] = _literal(value.strip())
        calls.append(SourceCall(name, arguments))
    if not calls:
        raise CallSyntaxError("no call between the brackets")
    return calls


def glaive_call(text: str) -> SourceCall:
    """The call in `{"name": "f", "arguments": '{"a": 1}'}`: JSON, but for the quotes around the arguments."""
    match = re.match(r"""\s*\{\s*"name"\s*:\s*"([^"]+)"\s*,\s*"arguments"\s*:\s*'(.*)'\s*\}""", text, re.DOTALL)
    if match is None:
        objects = json_objects(text)
        if not objects:
            raise CallSyntaxError(f"not a call: {text[:60]!r}")
        return SourceCall.of(objects[0])
    name, arguments = match.groups()
    return SourceCall.of({"name": name, "arguments": arguments.replace("\\'", "'")})


def _split(text: str) -> list[str]:
    """The parts between the commas that stand in no bracket and no quotes. Raises Unreadable for an open one."""
    parts, start, depth, quote, index = [], 0, 0, "", 0
    while index < len(text):
        character = text[index]
        if quote:
            if character == "\\":
                index += 1
            elif character == quote:
                quote = ""
        elif character in "'\"":
            quote = character
        elif character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:index])
            start = index + 1
        index += 1
    if quote or depth:
        raise CallSyntaxError(f"quotes or brackets do not match: {text[:60]!r}")
    return [part for part in (*parts, text[start:]) if part.strip()]


def _literal(text: str) -> Any:
    """A value written in Python or JSON."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        value = ast.literal_eval(text)
        json.dumps(value)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise CallSyntaxError(f"not a value: {text[:60]!r}") from error
    return value


def _schema(value: Any) -> Any:
    """A JSON Schema with JSON Schema's own names of types."""
    if isinstance(value, dict):
        return {
            key: _TYPES.get(inner, inner) if key == "type" and isinstance(inner, str) else _schema(inner)
            for key, inner in value.items()
        }
    return [_schema(inner) for inner in value] if isinstance(value, list) else value
