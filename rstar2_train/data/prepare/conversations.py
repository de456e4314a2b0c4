"""Converts the datasets of the cold start to the demonstrations that the SFT stage reads (paper §4.1).

Each conversation becomes `{messages: [{role, content}, ...], tools?}` with the roles system, user, assistant and tool.
Calls are text in the format of `tools/schema.py`; tools stay signatures, which the SFT stage writes as the prompts of
its job do. It trains on assistant messages only. `call_syntax.py` parses the call notation of each dataset;
`layouts.py` lists the layouts. Pure.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from typing import Any

from rstar2_train.data.demonstration_calls import read_tools
from rstar2_train.data.demonstrations import (
    ROW_FIELDS,
    Message,
    calls_as_text,
    check_order,
    empty_fields,
    read_level,
    read_messages,
    texts_of,
)
from rstar2_train.data.prepare.call_syntax import (
    CallSyntaxError,
    SourceCall,
    parse_bracket_calls,
    parse_glaive_call,
    parse_objects,
    tool_signature,
)
from rstar2_train.data.prepare.records import Convert, DatasetLayout, RemovedRow, Row
from rstar2_train.data.readers import LONGEST_TEXT, DataError, check_written, first_text, text_field
from rstar2_train.tools.schema import TOOL_NAME, TOOLS, call_text
from rstar2_train.utils.text import short_repr

_GLAIVE_TURN = re.compile(r"(?:^|\n)\s*(USER|ASSISTANT|FUNCTION RESPONSE):")
_GLAIVE_CALL = "<functioncall>"
_END = "<|endoftext|>"
_NEMOTRON_SWITCHES = ("detailed thinking off", "detailed thinking on")
"""System prompts of Nemotron that switch its reasoning; other models have no such switch."""
_NO_SPACE = re.compile(r"\S")
_BLOCK = re.compile(
    r"^(?P<indent>[ \t]*)(?P<marks>(?P<mark>[`~])(?P=mark){2,}+)[ \t]*(?P<label>[^`\n]*)\n"
    r"(?P<code>.*?)^[ \t]*(?P=marks)(?P=mark)*[ \t\r]*$",
    re.DOTALL | re.MULTILINE,
)
"""A block of code in Markdown: its end has at least as many marks as its start, and no other text."""
_PYTHON = re.compile(r"\{?\.?py(?:thon)?[\d.]*(?![\w.+#-])", re.IGNORECASE)


def _by_rule(convert: Convert) -> Convert:
    """Return a conversion that removes a row for its CallSyntaxError."""

    def converted(row: dict[str, Any], where: str) -> Row | RemovedRow:
        try:
            return convert(row, where)
        except CallSyntaxError as error:
            return RemovedRow(error.rule, str(error))

    return converted


@_by_rule
def _toolace(row: dict[str, Any], where: str) -> Row | RemovedRow:
    """Convert a row whose `system` has the signatures as a JSON array, and whose calls are `[name(argument=value),
    ...]`.

    The rest of `system` explains that call notation. It is dropped, because this project uses another notation.
    """
    tools = [tool_signature(tool) for tool in parse_objects(first_text(row, where, "system"))]
    messages: list[Message] = []
    calls: list[SourceCall] = []
    for role, content in _turns(row, where, {"user": "user", "assistant": "assistant", "tool": "tool"}):
        if role == "assistant" and content.startswith("[") and content.endswith("]"):
            calls = parse_bracket_calls(content)
            messages.append(_call_message("", calls, tools))
        elif role == "tool":
            messages += [{"role": "tool", "content": result} for result in _split_results(content, len(calls))]
        else:
            messages.append({"role": role, "content": content})
    return _conversation(messages, tools=tools)


@_by_rule
def _apigen_mt(row: dict[str, Any], where: str) -> Row | RemovedRow:
    """Convert a row whose `tools` is a JSON array of signatures. A call is a separate turn with a JSON object."""
    roles = {"human": "user", "gpt": "assistant", "function_call": "call", "observation": "tool"}
    tools = [tool_signature(tool) for tool in parse_objects(first_text(row, where, "tools"))]
    messages: list[Message] = []
    for role, content in _turns(row, where, roles):
        if role == "call":
            calls = [SourceCall.from_object(value) for value in parse_objects(content, alone=True)]
            messages.append(_call_message("", calls, tools))
        else:
            messages.append({"role": role, "content": content})
    return _conversation(messages, tools=tools, system=text_field(row, "system", where, default=""))


@_by_rule
def _glaive(row: dict[str, Any], where: str) -> Row | RemovedRow:
    """Convert a row whose `chat` is one text with `USER:`, `ASSISTANT:` and `FUNCTION RESPONSE:`. `system` contains the
    signatures.
    """
    system, chat = first_text(row, where, "system"), first_text(row, where, "chat")
    before_turns, *parts = _GLAIVE_TURN.split(chat)
    if before_turns.strip():
        return RemovedRow("not-a-conversation", f"text before the first turn: {short_repr(before_turns.strip())}")
    messages: list[Message] = []
    tools = [tool_signature(tool) for tool in parse_objects(system)]
    for speaker, text in zip(parts[::2], parts[1::2], strict=True):
        role = {"USER": "user", "ASSISTANT": "assistant"}.get(speaker, "tool")
        content = _stripped(text.replace(_END, ""), role)
        before, marker, after = content.partition(_GLAIVE_CALL)
        if role == "assistant" and marker:
            messages.append(_call_message(before.strip(), [parse_glaive_call(after)], tools))
        else:
            messages.append({"role": role, "content": content})
    return _conversation(messages, tools=tools)


@_by_rule
def _magicoder(row: dict[str, Any], where: str) -> Row | RemovedRow:
    """Convert the first Python program of the solution to a call of the Python tool (paper §4.1: "reformatted").

    The program is not run, so the conversation ends with the call.
    """
    problem, solution = (
        first_text(row, where, "problem", "instruction"),
        first_text(row, where, "solution", "response"),
    )
    block = next((block for block in _BLOCK.finditer(solution) if _PYTHON.match(block["label"])), None)
    if block is None:
        return RemovedRow("no-python", text_field(row, "lang", where, default="no Python code block"))
    # The columns of the block are no columns of the program.
    code = re.sub(rf"(?m)^[ \t]{{0,{len(block['indent'])}}}", "", block["code"])
    try:
        ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return RemovedRow("no-python", f"the program does not parse: {error}")
    tools = [TOOLS[TOOL_NAME]]
    call = SourceCall(TOOL_NAME, {"code": code.strip("\n"), "input": ""})
    before = _stripped(solution[: block.start()], "assistant")
    messages = [{"role": "user", "content": problem}, _call_message(before, [call], tools)]
    return _conversation(messages, tools=tools)


@_by_rule
def _messages(row: dict[str, Any], where: str) -> Row | RemovedRow:
    """Convert a row that already has `messages`: Tulu 3's mixture, or the output of `rstar2 data prepare`."""
    if not isinstance(row.get("messages"), list):
        raise DataError(f"{where}: no messages")
    tools, level = read_tools(row, where), read_level(row, where)
    result = _conversation(_read(row, where, "messages", tools), tools=tools)
    return result | {"level": level} if level and not isinstance(result, RemovedRow) else result


@_by_rule
def _nemotron(row: dict[str, Any], where: str) -> Row | RemovedRow:
    """Convert a row whose `input` is the conversation so far or the user's text, and `output` the reply."""
    output = first_text(row, where, "output")
    if row.get("reasoning") == "on" or "<think>" in output:
        return RemovedRow("reasoning", "reasoning: on")
    history = row.get("input")
    if not isinstance(history, list):
        history = [{"role": "user", "content": first_text(row, where, "input")}]
    others = {name: value for name, value in row.items() if name not in ("system_prompt", "output")}
    system = text_field(row, "system_prompt", where, default="")
    messages = _read(others | {"input": history}, where, "input") if history else []
    reply: Message = {"role": "assistant", "content": _stripped(output, "assistant")}
    return _conversation([*messages, reply], system="" if system.strip() in _NEMOTRON_SWITCHES else system)


def _turns(row: dict[str, Any], where: str, roles: dict[str, str]) -> list[tuple[str, str]]:
    """Return role and text of each turn of `conversations`, a list of `{from, value}`. `roles`: `from` -> role."""
    turns = row.get("conversations")
    if not isinstance(turns, list):
        raise DataError(f"{where}: no conversations")
    pairs = []
    for index, turn in enumerate(turns):
        field = f"{where}: conversations[{index}]"
        speaker = turn.get("from") if isinstance(turn, dict) else turn
        if not isinstance(turn, dict) or not isinstance(speaker, str) or speaker not in roles:
            raise DataError(f"{field}: from is {short_repr(speaker)}; allowed in this layout: {', '.join(roles)}")
        others = [name for name, value in turn.items() if name not in ("from", "value") and value is not None]
        if others:
            raise DataError(f"{field}: {others[0]} would be lost: remove it, or write the row as messages")
        pairs.append((roles[speaker], _stripped(text_field(turn, "value", field, default=""), roles[speaker])))
    return pairs


def _read(row: dict[str, Any], where: str, name: str, tools: Sequence[dict[str, Any]] = ()) -> list[Message]:
    """Return the messages of a field, with their calls as text. `tools`: those that the row declares.

    Raises DataError for a field that would be lost, CallSyntaxError for an undeclared tool.
    """
    messages = []
    for index, message in enumerate(read_messages(row, where, name=name)):
        if message.get("reasoning_content", "").strip():
            raise DataError(
                f"{where}: {name}[{index}].reasoning_content has no form that every model reads: write it in the "
                "content as the model does, or name the file in sft.data as it is"
            )
        content, calls = calls_as_text(message)
        written = [SourceCall(*call) for call in calls]
        declared = tools or [{"function": {"name": call.name}} for call in written]
        converted = _call_message(content, written, declared) if written else {"content": content}
        kept = empty_fields(message) | {key: 0 for key in ("weight",) if key in message}
        messages.append({"role": message["role"], **converted, **kept})
    return messages


def _call_message(before: str, calls: Sequence[SourceCall], tools: Sequence[dict[str, Any]]) -> Message:
    """Return the assistant message with `before` and the calls. Raises CallSyntaxError for an undeclared tool."""
    declared = {tool["function"]["name"] for tool in tools}
    for call in calls:
        if call.name not in declared:
            raise CallSyntaxError(f"{call.name!r} is called but not declared", rule="undeclared-tool")
        _check_written(call.name, "the name of a call")
        for place, text in texts_of(call.arguments, f"the call of {call.name!r}"):
            _check_written(text, place)
    parts = [before, *(call_text(call.name, call.arguments) for call in calls)]
    return {"role": "assistant", "content": "\n".join(part for part in parts if part)}


def _stripped(text: str, role: str) -> str:
    """Return a text without white space at its ends, where the rest of a LaTeX command may be. Raises CallSyntaxError.

    The output of a tool may have any character.
    """
    if role != "tool":
        _check_written(text, f"a message of role {role}")
    return text.strip()


def _check_written(text: str, place: str) -> None:
    try:
        check_written(text, place)
    except DataError as error:
        raise CallSyntaxError(str(error), rule="not-text") from error


def _next(text: str, at: int) -> int:
    """Return the position of the next character, from `at`, that is not white space; the length if there is none."""
    match = _NO_SPACE.search(text, at)
    return match.start() if match else len(text)


def _split_results(content: str, calls: int) -> list[str]:
    """Return one text per call if `content` is a JSON array of as many results, else `content` as one text.

    The texts are parts of `content`: numbers and repeated keys stay as they are written.
    """
    decoder, results = json.JSONDecoder(), list[str]()
    at = _next(content, 0)
    mark = content[at : at + 1]
    try:
        while mark == ("," if results else "[") and len(results) < calls:
            start = _next(content, at + 1)
            _, end = decoder.raw_decode(content, start)
            results.append(content[start:end])
            at = _next(content, end)
            mark = content[at : at + 1]
    except (ValueError, RecursionError):
        return [content]
    is_whole = mark == "]" and not content[at + 1 :].strip()
    return results if is_whole and len(results) == calls else [content]


def _conversation(
    messages: Sequence[Message], *, tools: Sequence[dict[str, Any]] = (), system: str = ""
) -> Row | RemovedRow:
    """Return the row of a conversation up to its last assistant message, or its removal.

    `system`: the system message, if a dataset has it apart. Those in `messages` stay unchanged. Consecutive assistant
    messages are merged, because a chat template would put text between them that no policy samples. Raises
    CallSyntaxError for the rest of a LaTeX command.
    """
    turns: list[Message] = []
    for place, text in texts_of(list(tools), "tools"):
        _check_written(text, place)
    own_system = _stripped(system, "system")
    opening: list[Message] = [{"role": "system", "content": own_system}] if own_system else []
    for message in messages:
        if message["role"] != "tool":
            _check_written(message["content"], f"a message of role {message['role']}")
        if message["role"] == "system" and not turns:
            opening.append(message)
        elif turns and turns[-1]["role"] == message["role"] == "assistant":
            if turns[-1].get("weight") != message.get("weight"):
                return RemovedRow("not-a-conversation", "consecutive assistant messages have different weights")
            parts = (turns[-1]["content"], message["content"])
            turns[-1] |= message | {"content": "\n".join(part for part in parts if part)}
        else:
            turns.append(message)
    while turns and turns[-1]["role"] != "assistant":
        turns.pop()
    roles = [message["role"] for message in turns]
    if not turns or roles[0] != "user":
        return RemovedRow("not-a-conversation", f"roles: {', '.join(roles[:4]) or 'no assistant message'}")
    if any(not message["content"].strip() for message in turns if message["role"] != "tool"):
        return RemovedRow("not-a-conversation", "empty message")
    converted = [*opening, *turns]
    try:
        check_order(converted, "messages")
    except DataError as error:
        return RemovedRow("not-a-conversation", str(error))
    if (longest := max(len(message["content"]) for message in converted)) > LONGEST_TEXT:
        return RemovedRow("not-text", f"a message has {longest:,} characters; the limit is {LONGEST_TEXT:,}")
    return {"messages": converted} | ({"tools": list(tools)} if tools else {})


_OWN_COLUMNS = ("messages", "level", "tools", *ROW_FIELDS)
DEMONSTRATIONS = (
    DatasetLayout("toolace", "Team-ACE/ToolACE", "conversations", ("system", "conversations"), _toolace),
    DatasetLayout(
        "apigen-mt", "Salesforce/APIGen-MT-5k", "conversations", ("system", "tools", "conversations"), _apigen_mt
    ),
    DatasetLayout("glaive", "glaiveai/glaive-function-calling-v2", "conversations", ("system", "chat"), _glaive),
    DatasetLayout(
        "magicoder", "ise-uiuc/Magicoder-OSS-Instruct-75K, ise-uiuc/Magicoder-Evol-Instruct-110K", "conversations",
        ("lang", "problem", "solution", "instruction", "response"), _magicoder,
    ),
    DatasetLayout("tulu3", "allenai/tulu-3-sft-mixture", "conversations", _OWN_COLUMNS, _messages),
    DatasetLayout(
        "nemotron", "nvidia/Llama-Nemotron-Post-Training-Dataset", "conversations",
        ("input", "output", "reasoning", "system_prompt"), _nemotron,
    ),
    DatasetLayout(
        "conversations", "your own data: {messages: [{role, content}], level?, tools?}", "conversations",
        _OWN_COLUMNS, _messages,
    ),
)  # fmt: skip
"""The layouts of conversations."""
