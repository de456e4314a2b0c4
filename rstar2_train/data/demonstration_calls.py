"""Reads the calls of demonstrations, their results, and the tools that a row declares.

Used by `demonstrations.py`. Every error names file, line, field and remedy.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from rstar2_train.data.json_values import json_decoder
from rstar2_train.data.readers import DataError, is_gap, json_value
from rstar2_train.tools.remote_schema import declared_signature
from rstar2_train.tools.sandbox_program import SourceError
from rstar2_train.utils.json_objects import RepeatedKeyError
from rstar2_train.utils.text import short_repr


def read_tools(row: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """Return the signatures of the tools that a row declares. Raises DataError."""
    if is_gap(row.get("tools")):
        return []
    tools = json_value(row["tools"], f"{where}: tools", exact=True)
    if not isinstance(tools, list):
        raise DataError(
            f"{where}: tools must be a list of {{type: function, function: {{...}}}}, got {short_repr(tools)}"
        )
    signatures = []
    for index, tool in enumerate(tools):
        field = f"{where}: tools[{index}]"
        tool = _set_fields(tool)
        function = _set_fields(tool.get("function", tool)) if isinstance(tool, dict) else None
        if not isinstance(function, dict):
            raise DataError(f"{field} must be an object {{type: function, function: {{...}}}}, got {short_repr(tool)}")
        is_wrapped = "function" in tool
        extra = {*function, *(set(tool) - {"type", "function"} if is_wrapped else ())}
        extra -= {"type", "name", "description", "parameters"}
        outside = sorted({"name", "description", "parameters"}.intersection(tool))
        if outside and is_wrapped:
            raise DataError(f"{field}.{outside[0]} is set outside of function: remove it, or move it into function")
        if (tool.get("type") or "function") != "function":
            raise DataError(f"{field}.type is {short_repr(tool['type'])}; only tools of type function are trained on")
        if extra:
            raise DataError(f"{field}: {min(extra)} is not trained on: remove it, or write it in the description")
        try:
            signatures.append(declared_signature({"parameters": {"type": "object", "properties": {}}, **function}))
        except SourceError as error:
            raise DataError(f"{field}: {error}") from error
    names = [signature["function"]["name"] for signature in signatures]
    if len(set(names)) < len(names):
        raise DataError(f"{where}: tools must have different names, got {', '.join(names)}")
    return signatures


def read_calls(calls: Any, field: str) -> list[dict[str, Any]]:
    """Return calls in the form of OpenAI, with arguments as an object. Raises DataError."""
    if not isinstance(calls, list):
        raise DataError(f"{field} must be a list of calls, got {short_repr(calls)}")
    read = [_call(call, f"{field}[{index}]") for index, call in enumerate(calls)]
    _check_indexes([call["index"] for call in calls if call.get("index") is not None], field)
    return read


def _check_indexes(indexes: Sequence[Any], field: str) -> None:
    """Raise DataError for indexes in another order than the calls: pieces of a stream were joined in a wrong order."""
    if any(type(index) is not int for index in indexes) or list(indexes) != sorted(indexes):
        raise DataError(f"{field} have the indexes {short_repr(indexes)}: sort the calls and results, or remove index")


def _call(call: Any, field: str) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise DataError(f"{field} must be an object {{function: {{name, arguments}}}}, got {short_repr(call)}")
    if function is not call and (doubled := sorted({"name", "arguments"}.intersection(_set_keys(call)))):
        raise DataError(f"{field}.{doubled[0]} is set outside of function too: remove one of them")
    given = {key: value for key, value in {**call, **function}.items() if value is not None}
    inner = {"name", "arguments"}
    unknown = [f"{field}.{name}" for name in sorted(_set_keys(call) - inner - {"id", "index", "type", "function"})]
    if function is not call:
        unknown += [f"{field}.function.{name}" for name in sorted(_set_keys(function) - inner)]
    if unknown:
        raise DataError(f"{unknown[0]} is not trained on: remove it")
    if given.get("type", "function") != "function":
        raise DataError(f"{field}.type is {short_repr(given['type'])}; only calls of type function can be trained on")
    name, arguments = given.get("name"), given.get("arguments", {})
    if not isinstance(name, str) or not name:
        raise DataError(f"{field}.function.name must be a non-empty text, got {short_repr(name)}")
    if isinstance(arguments, str):
        try:
            arguments = json_decoder().decode(arguments or "{}")
        except RepeatedKeyError as error:
            raise DataError(f"{field}.function.arguments: {error}; keep one") from None
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{field}.function.arguments is not valid JSON: {error}; correct or remove the row"
            ) from None
    if not isinstance(arguments, dict):
        raise DataError(f"{field}.function.arguments must be a JSON object, got {short_repr(arguments)}")
    arguments = json_value(arguments, f"{field}.function.arguments", exact=True)
    read: dict[str, Any] = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"id": given["id"], **read} if given.get("id") not in (None, "") else read


def match_results(messages: Sequence[dict[str, Any]], where: str) -> None:
    """Check that results follow calls in their order, as in a rollout, and remove the ids, which are then redundant.

    Raises DataError for another order or number, and for a name or id without a call.
    """
    for index, message in enumerate(messages):
        calls = message.get("tool_calls", ())
        _check_ids(calls, f"{where}[{index}].tool_calls")
        results = list(itertools.takewhile(lambda later: later["role"] == "tool", messages[index + 1 :]))
        if calls and messages[index + 1 :] and len(results) != len(calls):
            raise DataError(
                f"{where}[{index}].tool_calls has {len(calls)} calls, but {len(results)} messages of role tool follow; "
                "write one result per call"
            )
        for at, (call, result) in enumerate(zip(calls, results, strict=False), start=index + 1):
            for key, expected in (("tool_call_id", call.get("id")), ("name", call["function"]["name"])):
                given = result.pop(key, expected)
                if given != expected:
                    raise DataError(
                        f"{where}[{at}].{key} is {short_repr(given)}, but the call of this position has "
                        f"{short_repr(expected)}; write the results in the order of the calls"
                    )
    for index, message in enumerate(messages):
        if key := next((key for key in ("tool_call_id", "name") if message.get(key)), ""):
            raise DataError(f"{where}[{index}].{key} is not trained on: no tool_calls are before it; remove it")
        for call in message.get("tool_calls", ()):
            call.pop("id", None)


def _check_ids(calls: Sequence[Mapping[str, Any]], field: str) -> None:
    """Raise DataError for an id that two calls of a message have: it would not show whose result one is."""
    ids = [call["id"] for call in calls if "id" in call]
    for index, name in enumerate(ids):
        if name in ids[:index]:
            raise DataError(
                f"{field} has the id {short_repr(name)} twice; give each call an id of its own, and its result the "
                "same one"
            )


def _set_fields(value: Any) -> Any:
    """Return an object without its null fields; another value unchanged."""
    return {key: part for key, part in value.items() if part is not None} if isinstance(value, dict) else value


def _set_keys(row: Mapping[str, Any]) -> set[str]:
    return {key for key, value in row.items() if value is not None}
