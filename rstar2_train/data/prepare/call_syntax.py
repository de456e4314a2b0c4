"""Parses tool signatures and tool calls in the notations of the public datasets.

Used by `conversations.py` only. The text is untrusted: values are parsed as literals, and nothing is evaluated. Pure.
"""

from __future__ import annotations

import ast
import contextlib
import json
import re
from dataclasses import dataclass
from typing import Any

from rstar2_train.data.json_values import json_decoder
from rstar2_train.data.readers import json_value

_DECODER = json_decoder()
_BRACKET_CALL = re.compile(r"\s*([^()\[\]{}'\"=]+?)\s*\((.*)\)\s*", re.DOTALL)
_CONSTANTS = {"true": True, "false": False, "null": None}
_TYPES = {
    "dict": "object", "float": "number", "int": "integer", "str": "string", "list": "array", "tuple": "array",
    "bool": "boolean", "any": "string",
}  # fmt: skip
"""Python type name, as some datasets use it -> JSON Schema type name."""
_OPENING, _CLOSING = "([{", ")]}"


class CallSyntaxError(ValueError):
    """A call or signature cannot be parsed. `rule`: the rule that removes the row."""

    def __init__(self, message: str, *, rule: str = "unreadable-call") -> None:
        super().__init__(message)
        self.rule = rule


@dataclass(frozen=True, slots=True)
class SourceCall:
    """A tool call of a dataset."""

    name: str
    arguments: dict[str, Any]

    @classmethod
    def from_object(cls, value: dict[str, Any]) -> SourceCall:
        """Return the call of `{name, arguments}`. The arguments may be JSON text. Raises CallSyntaxError."""
        name, arguments = value.get("name"), value.get("arguments", {})
        if isinstance(arguments, str):
            try:
                arguments = _exact(arguments or "{}", f"arguments of {name!r}")
            except json.JSONDecodeError as error:
                raise CallSyntaxError(f"arguments of {name!r}: {error}") from error
        if others := sorted(set(value) - {"name", "arguments"}):
            raise CallSyntaxError(f"{others[0]} of the call of {name!r} would be lost")
        if not isinstance(name, str) or not name or not isinstance(arguments, dict):
            raise CallSyntaxError(f"not a call: {json.dumps(value, ensure_ascii=False)[:60]}")
        return cls(name, arguments)


def _exact(text: str, field: str) -> Any:
    """Return the value of JSON text. Raises JSONDecodeError, and CallSyntaxError for a value that would change."""
    try:
        return json_value(_DECODER.decode(text), field, exact=True)
    except json.JSONDecodeError:
        raise
    except (ValueError, RecursionError) as error:
        raise CallSyntaxError(f"{field}: {error}") from error


def parse_objects(text: str, *, alone: bool = False) -> list[dict[str, Any]]:
    """Return the JSON objects of a text in order, whether separate or in an array. Raises CallSyntaxError.

    Other text is skipped, or with `alone` an error. An object starts with `{"`, which a brace in a sentence does not.
    """
    objects: list[dict[str, Any]] = []
    end = 0
    for match in re.finditer(r'\{\s*"', text):
        if match.start() < end:  # inside the previous object
            continue
        if alone and text[end : match.start()].strip(" \t\r\n[,;"):
            raise CallSyntaxError(f"text next to a call would be lost: {text[end : match.start()][:40]!r}")
        try:
            value, end = _DECODER.raw_decode(text, match.start())
            objects.append(json_value(value, "a call", exact=True))
        except (ValueError, RecursionError) as error:
            raise CallSyntaxError(f"not JSON: {text[match.start() : match.start() + 40]!r}: {error}") from error
    if alone and text[end:].strip(" \t\r\n],;"):
        raise CallSyntaxError(f"text next to a call would be lost: {text[end:][:40]!r}")
    return objects


def tool_signature(tool: dict[str, Any]) -> dict[str, Any]:
    """Return a signature in the form of OpenAI and Hugging Face templates: `{type: function, function: {...}}`."""
    inner = tool.get("function", tool)
    if not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
        raise CallSyntaxError(f"signature without a name: {json.dumps(tool, ensure_ascii=False)[:60]}")
    function = {
        "name": inner["name"],
        "description": inner.get("description") or "",
        "parameters": _schema(inner.get("parameters") or {"type": "object", "properties": {}}),
    }
    return {"type": "function", "function": function}


def parse_bracket_calls(text: str) -> list[SourceCall]:
    """Return the calls of `[name(argument=value, ...), ...]`. Names may contain spaces and dots; values are Python or
    JSON literals. Raises CallSyntaxError.
    """
    calls = []
    for item in _split(text.strip()[1:-1]):
        match = _BRACKET_CALL.fullmatch(item)
        if match is None:
            raise CallSyntaxError(f"not a call: {item[:60]!r}")
        name, argument_list = match.groups()
        arguments = {}
        for argument in _split(argument_list):
            key, equals, value = argument.partition("=")
            if not equals:
                raise CallSyntaxError(f"argument of {name!r} without a name: {argument[:60]!r}")
            if key.strip() in arguments:
                raise CallSyntaxError(f"argument {key.strip()!r} of {name!r} is given twice")
            arguments[key.strip()] = _parse_literal(value.strip())
        calls.append(SourceCall(name, arguments))
    if not calls:
        raise CallSyntaxError("empty brackets, no call")
    return calls


def parse_glaive_call(text: str) -> SourceCall:
    """Return the call of `{"name": "f", "arguments": '{"a": 1}'}`: JSON except for the quotes around the arguments."""
    match = re.match(r"""\s*\{\s*"name"\s*:\s*"([^"]+)"\s*,\s*"arguments"\s*:\s*'(.*)'\s*\}""", text, re.DOTALL)
    if match is None:
        objects = parse_objects(text, alone=True)
        if len(objects) != 1:
            raise CallSyntaxError(f"not one call: {text[:60]!r}")
        return SourceCall.from_object(objects[0])
    if text[match.end() :].strip():
        raise CallSyntaxError(f"text after a call would be lost: {text[match.end() :][:40]!r}")
    name, arguments = match.groups()
    return SourceCall.from_object({"name": name, "arguments": arguments.replace("\\'", "'")})


def _split(text: str) -> list[str]:
    """Split at the commas outside brackets and quotes. Raises CallSyntaxError for an unclosed bracket or quote."""
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
        raise CallSyntaxError(f"unmatched quotes or brackets: {text[:60]!r}")
    return [part for part in (*parts, text[start:]) if part.strip()]


def _parse_literal(text: str) -> Any:
    """Return the value of a Python or JSON literal. Raises CallSyntaxError."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    with contextlib.suppress(json.JSONDecodeError):
        return _exact(text, "a value")
    try:
        value = ast.literal_eval(text)
        json.dumps(value, allow_nan=False)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise CallSyntaxError(f"not a literal: {text[:60]!r}") from error
    return value


def _schema(value: Any) -> Any:
    """Return the schema with JSON Schema's type names."""
    if isinstance(value, dict):
        return {
            key: _TYPES.get(inner, inner) if key == "type" and isinstance(inner, str) else _schema(inner)
            for key, inner in value.items()
        }
    return [_schema(inner) for inner in value] if isinstance(value, list) else value
