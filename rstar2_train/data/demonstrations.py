"""Reads demonstrations from data files: chat messages that the SFT stage trains on.

Each field of a message is used or refused, and never dropped. `tool_calls` and `reasoning_content` are written by the
chat template of the model (`rollout/chat_template.py`). Every error names file, line, field and remedy.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from rstar2_train.data.json_values import json_decoder
from rstar2_train.data.readers import (
    DataError,
    check_text,
    check_written,
    is_gap,
    is_whole,
    json_value,
    read_rows,
    short_repr,
)
from rstar2_train.tools.remote_schema import declared_signature
from rstar2_train.tools.sandbox_program import SourceError
from rstar2_train.utils.json_objects import RepeatedKeyError

ROLES = ("system", "user", "assistant", "tool")
Message = dict[str, Any]
"""A message in the form that chat templates read: role, content, and of an assistant `tool_calls` (arguments as an
object), `reasoning_content` and `weight` if they are set."""

_FIELDS: Mapping[str, frozenset[str]] = {
    "system": frozenset(),
    "user": frozenset(),
    "assistant": frozenset({"tool_calls", "reasoning_content", "weight"}),
    "tool": frozenset({"tool_call_id", "name"}),
}
"""Role -> its fields, besides role and content."""
_REMEDIES: Mapping[str, str] = {
    "function_call": "write the call as tool_calls, and its result as a message of role tool",
    "name": "write the name in the content",
    "reasoning": "rename it to reasoning_content",
    "thinking": "rename it to reasoning_content",
    "tool_calls": "only assistant messages have calls",
    "reasoning_content": "only assistant messages have reasoning",
    "weight": "only assistant messages are trained",
    "train": "write weight: 0 for a message that is not trained",
    "training": "write weight: 0 for a message that is not trained",
    "loss": "write weight: 0 for a message that is not trained",
}
_WEIGHTS = "write weight: 0 for each message that is not trained"
_OTHER = "remove it, or write it in the content"
ROW_FIELDS: Mapping[str, str] = {
    "functions": "rename it to tools",
    "system": "write it as the first message, with role system",
    "system_prompt": "write it as the first message, with role system",
    "chat_template_kwargs": "set spec.model.chatTemplate to a template that needs no arguments",
    "enable_thinking": "set spec.model.chatTemplate to a template that needs no arguments",
    "system_message": "write it as the first message, with role system",
    "instructions": "write them as the first message, with role system",
    "thinking": "write it as reasoning_content of its message",
    "reasoning_effort": "set spec.model.chatTemplate to a template that needs no arguments",
    "tool_calls": "write them in their assistant message",
    "custom_tools": "rename it to tools",
    "available_tools": "rename it to tools",
    "loss_mask": _WEIGHTS,
    "train_mask": _WEIGHTS,
    "chosen": "preferences are not trained on: write the conversation as messages",
    "rejected": "preferences are not trained on: write the conversation as messages",
    "rejected_messages": "preferences are not trained on: write the conversation as messages",
    "documents": "write them in the content of a message",
    "weight": "write weight: 0 for each message that is not trained, or remove the row",
    "sample_weight": "write weight: 0 for each message that is not trained, or remove the row",
    "chat_template": "set spec.model.chatTemplate, which is that of all rows",
    "system_instruction": "write it as the first message, with role system",
    "developer": "write it as the first message, with role system",
    "tool_definitions": "rename it to tools",
    "function_definitions": "rename it to tools",
    **dict.fromkeys(("mask", "assistant_masks", "weights", "train_on_inputs"), _WEIGHTS),
    **dict.fromkeys(("image", "images", "video", "videos", "audio", "audios"), "models are trained on text only"),
}
"""Fields of a row that would change the conversation, or what is trained -> remedy."""
_REASONING_TAGS = ("<think>", "</think>")
LARGEST_LEVEL = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A conversation to train on: the loss covers its assistant messages, except those of weight 0."""

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()
    """Signatures of the tools that the row declares. The chat format writes them, in the form of the model's calls."""
    level: int = 0
    """Difficulty, from 1; 0: the row has no level. See `SFTStage.shortest_first_steps`."""
    where: str = ""
    """File and line of the row."""


def read_demonstrations(path: Path) -> Iterator[Demonstration]:
    """Yield the demonstrations of a file with rows `{messages: [{role, content}], level?, tools?}`, in file order.

    Raises DataError, which names file, line and field, for a row that cannot be trained on as it is.
    """
    for line, row in read_rows(path):
        yield read_demonstration(row, f"{path}:{line}")


def read_demonstration(row: Mapping[str, Any], where: str) -> Demonstration:
    """Return the demonstration of a row. `where`: file and line, for the message. Raises DataError."""
    messages, tools = read_messages(row, where), read_tools(row, where)
    check_order(messages, f"{where}: messages")
    _check_texts_and_names(messages, {tool["function"]["name"] for tool in tools}, f"{where}: messages")
    check_text("\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools), f"{where}: tools")
    for place, text in texts_of(tools, f"{where}: tools"):
        check_written(text, place)
    return Demonstration(tuple(messages), tuple(tools), level=read_level(row, where), where=where)


def read_messages(row: Mapping[str, Any], where: str, *, name: str = "messages") -> list[Message]:
    """Return the messages of the field `name`. Raises DataError for a field of a message or row that is not trained."""
    for field, remedy in ROW_FIELDS.items():
        if _has_effect(row, field):
            raise DataError(f"{where}: {field} is not trained on: {remedy}")
    messages = json_value(row.get(name), f"{where}: {name}", exact=True)
    if not isinstance(messages, list) or not messages:
        raise DataError(f"{where}: {name} must be a non-empty list of {{role, content}}, got {short_repr(messages)}")
    read = [read_message(message, f"{where}: {name}[{index}]") for index, message in enumerate(messages)]
    _match_results(read, f"{where}: {name}")
    return read


def read_message(message: Any, field: str) -> Message:
    """Return one message; a message of role tool still has its `tool_call_id` and `name`. Raises DataError."""
    if not isinstance(message, dict):
        raise DataError(f"{field} must be an object {{role, content}}, got {short_repr(message)}")
    role = message.get("role")
    if role not in ROLES:
        advice = "; write system for developer" if role == "developer" else ""
        raise DataError(f"{field}.role is {short_repr(role)}; allowed: {', '.join(ROLES)}{advice}")
    given = {key: value for key, value in message.items() if value is not None and key not in ("role", "content")}
    if given.get("tool_calls") == []:
        del given["tool_calls"]
    if role != "assistant" and given.get("weight") == 0:  # only assistant messages are trained
        del given["weight"]
    for key in given:
        if key not in _FIELDS[role]:
            raise DataError(f"{field}.{key} is not trained on: {_REMEDIES.get(key, _OTHER)}")
    read: Message = {"role": role, "content": _content(message, field, needed=role != "assistant")}
    if reasoning := _text(given.get("reasoning_content", ""), f"{field}.reasoning_content"):
        for name, text in (("reasoning_content", reasoning), ("content", read["content"])):
            if tag := next((tag for tag in _REASONING_TAGS if tag in text), ""):
                raise DataError(
                    f"{field}.{name} contains {tag}, but the chat template writes the tags of reasoning_content: "
                    "write the reasoning once, without tags"
                )
        read["reasoning_content"] = reasoning
    if "tool_calls" in given:
        read["tool_calls"] = _calls(given["tool_calls"], f"{field}.tool_calls")
    if "weight" in given:
        if isinstance(given["weight"], bool) or given["weight"] not in (0, 1):
            raise DataError(f"{field}.weight must be 0 or 1, got {short_repr(given['weight'])}")
        if given["weight"] == 0:
            read["weight"] = 0
    return read | {key: given[key] for key in ("tool_call_id", "name") if key in given}


def calls_as_text(message: Message) -> tuple[str, list[tuple[str, dict[str, Any]]]]:
    """Return the content of a message, and name and arguments of each of its calls."""
    functions = [call["function"] for call in message.get("tool_calls", ())]
    return message["content"], [(function["name"], function["arguments"]) for function in functions]


def read_level(row: Mapping[str, Any], where: str) -> int:
    """Return the level of a row; 0: it has none. A column of integers with gaps may hold them as floats."""
    level: Any = row.get("level")
    if is_gap(level):
        return 0
    is_number = isinstance(level, (int, float, Decimal)) and not isinstance(level, bool)
    if not is_number or not is_whole(level) or not 0 <= level <= LARGEST_LEVEL:
        raise DataError(f"{where}: level must be a whole number from 1 (easiest), got {short_repr(level)}")
    return int(level)


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


def check_order(messages: Sequence[Message], where: str) -> None:
    """Raise DataError for messages in an order that no rollout has, and for an empty assistant message."""
    previous, has_user = "", False
    for index, message in enumerate(messages):
        role, field = message["role"], f"{where}[{index}]"
        if role == "assistant":
            if previous == "assistant":
                raise DataError(f"{field}: the message before it is also an assistant message: join the two")
            if not has_user:
                raise DataError(f"{field}: an assistant message needs a user message before it; add one")
            # An environment's first observation follows an empty turn.
            is_opening = index + 1 < len(messages) and messages[index + 1]["role"] == "tool"
            if not (message["content"].strip() or message.get("tool_calls") or is_opening):
                raise DataError(f"{field}.content is empty: the model would learn to reply nothing; remove the row")
        if role == "tool" and previous not in ("assistant", "tool"):
            raise DataError(f"{field}: a tool message must follow an assistant message or another tool message")
        previous, has_user = role, has_user or role == "user"
    trained = [message for message in messages if message["role"] == "assistant" and "weight" not in message]
    if not trained:
        roles = {message["role"] for message in messages}
        fault = "only assistant messages of weight 0" if "assistant" in roles else "no assistant message"
        raise DataError(f"{where} has {fault}; SFT trains on assistant messages only")


def _content(message: Mapping[str, Any], field: str, *, needed: bool) -> str:
    content = message.get("content")
    if content is None and not needed:
        return ""
    if isinstance(content, list):
        parts = [part for part in content if part is not None]
        part = parts[0] if len(parts) == 1 and isinstance(parts[0], dict) else {}
        given = {key: value for key, value in part.items() if value is not None}
        if set(given) != {"type", "text"} or given["type"] != "text":
            raise DataError(
                f"{field}.content must be a text, or a list of one part {{type: text, text}}, got "
                f"{short_repr(content)}; join several texts, other kinds of parts cannot be trained on"
            )
        content = given["text"]
    return _text(content, f"{field}.content")


def _text(value: Any, field: str) -> str:
    if not isinstance(value, str):
        raise DataError(f"{field} must be a text, got {short_repr(value)}")
    return value


def _calls(calls: Any, field: str) -> list[dict[str, Any]]:
    """Return calls in the form of OpenAI, with arguments as an object. Raises DataError."""
    if not isinstance(calls, list):
        raise DataError(f"{field} must be a list of calls, got {short_repr(calls)}")
    return [_call(call, f"{field}[{index}]") for index, call in enumerate(calls)]


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


def _has_effect(row: Mapping[str, Any], field: str) -> bool:
    """Return whether a field of a row has an effect. A gap of pandas has none."""
    value = row.get(field)
    if isinstance(value, float) and math.isnan(value):
        return False
    if field == "enable_thinking":
        return value is not None
    return value not in (None, 1) if field == "weight" else bool(value)


def _set_fields(value: Any) -> Any:
    """Return an object without its null fields; another value unchanged."""
    return {key: part for key, part in value.items() if part is not None} if isinstance(value, dict) else value


def _set_keys(row: Mapping[str, Any]) -> set[str]:
    return {key for key, value in row.items() if value is not None}


def _check_texts_and_names(messages: Sequence[Message], tools: set[str], where: str) -> None:
    """Raise DataError for a text that tokenizers reject, and for a call that the row's tools do not declare."""
    for index, message in enumerate(messages):
        field = f"{where}[{index}]"
        for name in ("content", "reasoning_content"):
            text = check_text(message.get(name, ""), f"{field}.{name}")
            if message["role"] != "tool":  # the output of a program may have any character
                check_written(text, f"{field}.{name}")
        for call in message.get("tool_calls", ()):
            check_text(json.dumps(call, ensure_ascii=False), f"{field}.tool_calls")
            check_written(call["function"]["name"], f"{field}.tool_calls: a name")
            for place, text in texts_of(call["function"]["arguments"], f"{field}.tool_calls"):
                check_written(text, place)
            if tools and call["function"]["name"] not in tools:
                raise DataError(
                    f"{field}.tool_calls calls {call['function']['name']!r}, but the tools of the row are "
                    f"{', '.join(sorted(tools))}; declare it"
                )


def texts_of(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """Yield each text in a JSON value, keys included, with its place."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, dict):
        for key, part in value.items():
            yield f"{place}: a key", key
            yield from texts_of(part, f"{place}: {key}")
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from texts_of(part, f"{place}[{index}]")


def _check_ids(calls: Sequence[Mapping[str, Any]], field: str) -> None:
    """Raise DataError for an id that two calls of a message have: it would not show whose result one is."""
    ids = [call["id"] for call in calls if "id" in call]
    for index, name in enumerate(ids):
        if name in ids[:index]:
            raise DataError(
                f"{field} has the id {short_repr(name)} twice; give each call an id of its own, and its result the "
                "same one"
            )


def _match_results(messages: Sequence[Message], where: str) -> None:
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
        if key := next((key for key in ("tool_call_id", "name") if key in message), ""):
            raise DataError(f"{where}[{index}].{key} is not trained on: no tool_calls are before it; remove it")
        for call in message.get("tool_calls", ()):
            call.pop("id", None)
