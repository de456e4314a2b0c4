"""Reads demonstrations from data files: chat messages that the SFT stage trains on.

Each field of a message is used or refused, and never dropped. `tool_calls` and `reasoning_content` are written by the
chat template of the model (`rollout/chat_template.py`). Every error names file, line, field and remedy.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from rstar2_train.data.demonstration_calls import match_results, read_calls, read_tools
from rstar2_train.data.readers import (
    MEDIA_FIELDS,
    DataError,
    check_spelling,
    check_text,
    check_written,
    is_gap,
    is_whole,
    json_value,
    read_rows,
)
from rstar2_train.utils.spelling import spelled
from rstar2_train.utils.text import short_repr

NO_FIRST_LEVEL = "shortestFirstSteps is set, but no usable row has level 1: add levels to the rows, or remove it"
ROLES = ("system", "user", "assistant", "tool")
_OTHER_ROLES: Mapping[str, str] = {
    "developer": "system",
    "human": "user",
    **dict.fromkeys(("gpt", "model", "ai", "bot", "chatbot"), "assistant"),
    **dict.fromkeys(("function", "ipython", "observation", "tool_response", "tool_result"), "tool"),
    **{role: role for role in ROLES},
}
"""Role of another format, or a role in another spelling -> role."""
Message = dict[str, Any]
"""A message in the form that chat templates read: role, content, and of an assistant `tool_calls` (arguments as an
object), `reasoning_content` and `weight` if they are set; also any field with an empty value (`empty_fields`)."""

_FIELDS: Mapping[str, frozenset[str]] = {
    "system": frozenset(),
    "user": frozenset(),
    "assistant": frozenset({"tool_calls", "reasoning_content", "weight"}),
    "tool": frozenset({"tool_call_id", "name"}),
}
"""Role -> its fields, besides role and content."""
_EMPTY: tuple[Any, ...] = ("", [], {})
_EMPTY_OF: Mapping[str, Any] = {"tool_calls": [], "reasoning_content": "", "name": "", "tool_call_id": ""}
"""Field -> its empty value; another field may have any."""
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
_FALSE_FIELDS = (
    *("train", "training", "trainable", "label", "kto_tag", "desirable"),
    *("correct", "is_correct", "resolved", "is_resolved", "success", "passed", "valid", "is_valid", "accepted", "keep"),
)
"""Fields whose false marks a row that is not trained on, or that shows what to avoid; other values have no effect."""
_FALSE_TEXTS = ("false", "no", "0")
_SWITCHES = ("on", "off")
"""Values of a column `reasoning`, as Nemotron has it, that are no text."""
ROW_FIELDS: Mapping[str, str] = {
    "functions": "rename it to tools",
    "system": "write it as the first message, with role system",
    "system_prompt": "write it as the first message, with role system",
    "chat_template_kwargs": "set spec.model.chatTemplate to a template that needs no arguments",
    "enable_thinking": "set spec.model.chatTemplate to a template that needs no arguments",
    "system_message": "write it as the first message, with role system",
    "instructions": "write them as the first message, with role system",
    "thinking": "write it as reasoning_content of its message",
    "reasoning_content": "write it in its assistant message",
    "reasoning_effort": "set spec.model.chatTemplate to a template that needs no arguments",
    "tool_calls": "write them in their assistant message",
    "tool": "rename it to tools",
    "custom_tools": "rename it to tools",
    "available_tools": "rename it to tools",
    "loss_mask": _WEIGHTS,
    "train_mask": _WEIGHTS,
    "documents": "write them in the content of a message",
    "weight": "write weight: 0 for each message that is not trained, or remove the row",
    "sample_weight": "write weight: 0 for each message that is not trained, or remove the row",
    "chat_template": "set spec.model.chatTemplate, which is that of all rows",
    "system_instruction": "write it as the first message, with role system",
    "developer": "write it as the first message, with role system",
    "tool_definitions": "rename it to tools",
    "function_definitions": "rename it to tools",
    **dict.fromkeys(("loss_weight", "loss_weights", "message_weights", "turn_weights", "sample_weights"), _WEIGHTS),
    **dict.fromkeys(("mask", "assistant_mask", "assistant_masks", "response_mask", "completion_mask"), _WEIGHTS),
    **dict.fromkeys(("weights", "train_on_inputs", "loss_scale"), _WEIGHTS),
    **dict.fromkeys(
        (
            *("chosen", "rejected", "rejected_messages", "rejected_response"),
            *("preferred_output", "non_preferred_output"),
        ),
        "preferences are not trained on: write the conversation as messages",
    ),
    **dict.fromkeys(
        ("conversation", "conversations", "dialog", "dialogue"), "write the conversation once, in messages"
    ),
    **dict.fromkeys((*_FALSE_FIELDS, "reward"), "remove the row, because each row is trained on"),
    **dict.fromkeys(MEDIA_FIELDS, "models are trained on text only"),
}
"""Fields of a row that would change the conversation, or what is trained -> remedy."""
_ROW_NAMES = tuple(ROW_FIELDS)
REPEATED_FIELDS = (
    *("prompt", "completion", "response", "instruction", "input", "output"),
    *("question", "query", "context", "history"),
    *("reasoning", "thought", "thoughts", "rationale", "cot", "chain_of_thought"),
)
"""Fields of a row with a text that is also in a message."""
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


def all_held_out(held_out: int, rows: int) -> str:
    """Return the error of a stage whose held-out rows leave none to train on."""
    return f"heldOutRows is {held_out}, of {rows} usable rows: lower it, so that rows are left to train on"


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
    for given, field in spelled(row, _ROW_NAMES):
        if has_effect(field, row[given]):
            raise DataError(f"{where}: {given} is not trained on: {ROW_FIELDS[field]}")
    check_spelling(row, (name, "tools", "level"), where)
    messages = json_value(row.get(name), f"{where}: {name}", exact=True)
    if not isinstance(messages, list) or not messages:
        raise DataError(f"{where}: {name} must be a non-empty list of {{role, content}}, got {short_repr(messages)}")
    read = [read_message(message, f"{where}: {name}[{index}]") for index, message in enumerate(messages)]
    match_results(read, f"{where}: {name}")
    _check_repeated({key: value for key, value in row.items() if key != name}, read, where)
    return read


def _check_repeated(row: Mapping[str, Any], messages: Sequence[Message], where: str) -> None:
    """Raise DataError for a prompt or response of the row that is in no message."""
    for name, _ in spelled(row, REPEATED_FIELDS):
        text = row[name]
        in_message = isinstance(text, str) and any(text.strip() in message["content"] for message in messages)
        if has_effect(name, text) and not in_message:
            raise DataError(f"{where}: {name} is not trained on, and is in no message: write it in one, or remove it")


def read_message(message: Any, field: str) -> Message:
    """Return one message; a message of role tool still has its `tool_call_id` and `name`. Raises DataError."""
    if not isinstance(message, dict):
        raise DataError(f"{field} must be an object {{role, content}}, got {short_repr(message)}")
    role = message.get("role")
    if role not in ROLES:
        raise DataError(f"{field}.role is {short_repr(role)}; allowed: {', '.join(ROLES)}{_role_advice(message)}")
    empty = empty_fields(message)
    given = {key: value for key, value in message.items() if value is not None and key not in ("role", "content")}
    given = {key: value for key, value in given.items() if key not in empty}
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
        read["tool_calls"] = read_calls(given["tool_calls"], f"{field}.tool_calls")
    if "weight" in given:
        if isinstance(given["weight"], bool) or given["weight"] not in (0, 1):
            raise DataError(f"{field}.weight must be 0 or 1, got {short_repr(given['weight'])}")
        if given["weight"] == 0:
            read["weight"] = 0
    if role != "tool":  # whose fields no template reads: results are written as a user's text
        read |= empty
    return read | {key: given[key] for key in ("tool_call_id", "name") if key in given}


def _role_advice(message: Mapping[str, Any]) -> str:
    """Return what to write for a role of another format; empty if it is not known."""
    role = message.get("role")
    if role is None and "from" in message:
        return "; rename from to role, and value to content"
    known = _OTHER_ROLES.get(role.strip().lower()) if isinstance(role, str) else None
    return f"; write {known} for {role}" if known else ""


def empty_fields(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields with an empty text, list or object. Clients send them; only a chat template may read them.

    A reasoning of white space, which servers return for a turn without reasoning, is empty too.
    """
    return {
        key: value
        for key, value in message.items()
        if key not in ("role", "content", "weight") and _is_empty(key, value)
    }


def _is_empty(key: str, value: Any) -> bool:
    if key == "reasoning_content" and isinstance(value, str):
        return not value.strip()
    return value in _EMPTY and value == _EMPTY_OF.get(key, value)


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


def has_effect(field: str, value: Any) -> bool:
    """Return whether a field of a row with this value has an effect. A gap of pandas has none."""
    if isinstance(value, float) and math.isnan(value):
        return False
    if field in _FALSE_FIELDS:
        return value is False or (field != "label" and _is_false(value))  # 0 may be a class
    if field == "reasoning" and value in _SWITCHES:
        return False
    if field == "enable_thinking":
        return value is not None
    if field == "reward":
        return isinstance(value, (int, float)) and value <= 0
    return value not in (None, 1) if field == "weight" else bool(value)


def _is_false(value: Any) -> bool:
    is_number = isinstance(value, (int, float, Decimal))
    return value == 0 if is_number else isinstance(value, str) and value.strip().lower() in _FALSE_TEXTS


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
