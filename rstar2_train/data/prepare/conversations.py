"""The datasets of the cold start, turned into the one form that the SFT stage reads (paper §4.1).

Beside layouts.py. Each conversation becomes `{messages: [{role, content}, ...]}` with roles system, user, assistant and
tool. Tools and calls stand in the text, in the words of tools/schema.py, because that is what a model writes and is
shown; the SFT stage puts its loss on what stands in assistant messages, and on nothing else. How a dataset writes its
calls down: call_syntax.py. Pure.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from typing import Any

from rstar2_train.data.prepare.call_syntax import (
    CallSyntaxError,
    SourceCall,
    bracket_calls,
    glaive_call,
    json_objects,
    signature,
)
from rstar2_train.data.prepare.records import DatasetLayout, RemovedRow, Row
from rstar2_train.data.readers import DataError, present_text, text_field
from rstar2_train.tools.schema import TOOL_NAME, TOOLS, call_text, tools_section

Message = dict[str, Any]
_GLAIVE_TURN = re.compile(r"(?:^|\n)\s*(USER|ASSISTANT|FUNCTION RESPONSE):")
_GLAIVE_CALL = "<functioncall>"
_END = "<|endoftext|>"
_PYTHON_BLOCK = re.compile(r"```(?:python|py)[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)


def _toolace(row: dict[str, Any], where: str) -> Row | RemovedRow:
    """`system` holds the signatures as a JSON array among instructions; calls are `[name(argument=value), ...]`.

    The rest of `system` explains that form of a call, which is not ours; it is left out.
    """
    system = present_text(row, where, "system")
    messages: list[Message] = []
    calls: list[SourceCall] = []
    try:
        tools = [signature(tool) for tool in json_objects(system)]
        for role, content in _turns(row, where, {"user": "user", "assistant": "assistant", "tool": "tool"}):
            if role == "assistant" and content.startswith("[") and content.endswith("]"):
                calls = bracket_calls(content)
                messages.append(_calling("", calls, tools))
            elif role == "tool":
                messages += [{"role": "tool", "content": result} for result in _results(content, len(calls))]
            else:
                messages.append({"role": role, "content": content})
    except CallSyntaxError as error:
        return RemovedRow(error.rule, str(error))
    return _conversation(messages, tools=tools)


def _apigen_mt(row: dict[str, Any], where: str) -> Row | RemovedRow:
    """`tools` is a JSON array of signatures; a call is a turn of its own, a JSON object."""
    roles = {"human": "user", "gpt": "assistant", "function_call": "call", "observation": "tool"}
    messages: list[Message] = []
    try:
        tools = [signature(tool) for tool in json_objects(present_text(row, where, "tools"))]
        for role, content in _turns(row, where, roles):
            if role == "call":
                messages.append(_calling("", [SourceCall.of(call) for call in json_objects(content)], tools))
            else:
                messages.append({"role": role, "content": content})
    except CallSyntaxError as error:
        return RemovedRow(error.rule, str(error))
    return _conversation(messages, tools=tools, system=text_field(row, "system", where, default=""))


def _glaive(row: dict[str, Any], where: str) -> Row | RemovedRow:
    """`chat` is one text with `USER:`, `ASSISTANT:` and `FUNCTION RESPONSE:`, `system` a sentence and signatures."""
    system, chat = present_text(row, where, "system"), present_text(row, where, "chat")
    _, *parts = _GLAIVE_TURN.split(chat)
    messages: list[Message] = []
    try:
        tools = [signature(tool) for tool in json_objects(system)]
        for speaker, spoken in zip(parts[::2], parts[1::2], strict=True):
            content = spoken.replace(_END, "").strip()
            before, called, after = content.partition(_GLAIVE_CALL)
            if speaker == "ASSISTANT" and called:
                messages.append(_calling(before.strip(), [glaive_call(after)], tools))
            else:
                role = {"USER": "user", "ASSISTANT": "assistant"}.get(speaker, "tool")
                messages.append({"role": role, "content": content})
    except CallSyntaxError as error:
        return RemovedRow(error.rule, str(error))
    return _conversation(messages, tools=tools)


def _magicoder(row: dict[str, Any], where: str) -> Row | RemovedRow:
    """The first Python program of the solution becomes a call of the Python tool (paper §4.1: "reformatted").

    Nothing is run, so that no output follows, and the conversation ends with the call.
    """
    problem, solution = (
        present_text(row, where, "problem", "instruction"),
        present_text(row, where, "solution", "response"),
    )
    block = _PYTHON_BLOCK.search(solution)
    if block is None:
        return RemovedRow("no-python", text_field(row, "lang", where, default="no block of Python"))
    try:
        ast.parse(block.group(1))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return RemovedRow("no-python", f"the program does not parse: {error}")
    tools = [TOOLS[TOOL_NAME]]
    call = SourceCall(TOOL_NAME, {"code": block.group(1).strip("\n"), "input": ""})
    said = [{"role": "user", "content": problem}, _calling(solution[: block.start()].strip(), [call], tools)]
    return _conversation(said, tools=tools)


def _messages(row: dict[str, Any], where: str) -> Row | RemovedRow:
    """Rows that have the form already: Tulu 3's mixture, and what this command has written."""
    given = row.get("messages")
    if not isinstance(given, list):
        raise DataError(f"{where}: no messages")
    return _conversation(_checked(given, f"{where}: messages"))


def _nemotron(row: dict[str, Any], where: str) -> Row | RemovedRow:
    """`input` is the conversation so far (or the user's text alone), `output` what the assistant says to it."""
    output = present_text(row, where, "output")
    if row.get("reasoning") == "on" or "<think>" in output:
        return RemovedRow("reasoning", "reasoning: on")
    given = row.get("input")
    if not isinstance(given, list):
        given = [{"role": "user", "content": present_text(row, where, "input")}]
    said = _checked(given, f"{where}: input")
    return _conversation([*said, {"role": "assistant", "content": output.strip()}])


def _turns(row: dict[str, Any], where: str, roles: dict[str, str]) -> list[tuple[str, str]]:
    """Role and text of each turn of `conversations`, rows `{from, value}`."""
    turns = row.get("conversations")
    if not isinstance(turns, list):
        raise DataError(f"{where}: no conversations")
    found = []
    for index, turn in enumerate(turns):
        at = f"{where}: conversations[{index}]"
        if not isinstance(turn, dict) or turn.get("from") not in roles:
            speaker = turn.get("from") if isinstance(turn, dict) else turn
            raise DataError(f"{at}: from is {speaker!r}; this layout has {', '.join(roles)}")
        found.append((roles[turn["from"]], text_field(turn, "value", at, default="").strip()))
    return found


def _checked(messages: Sequence[Any], where: str) -> list[Message]:
    """Role and content of each message; other fields are dropped. Empty ones stay, for `_conversation` to judge."""
    checked = []
    for index, message in enumerate(messages):
        at = f"{where}[{index}]"
        if not isinstance(message, dict):
            raise DataError(f"{at}: must be an object {{role, content}}")
        role = text_field(message, "role", at)
        if role not in ("system", "user", "assistant", "tool"):
            raise DataError(f"{at}: role is {role!r}; allowed: system, user, assistant, tool")
        checked.append({"role": role, "content": text_field(message, "content", at, default="")})
    return checked


def _calling(before: str, calls: Sequence[SourceCall], tools: Sequence[dict[str, Any]]) -> Message:
    """The assistant turn that makes these calls. Raises Unreadable for a tool that is not declared."""
    declared = {tool["function"]["name"] for tool in tools}
    for call in calls:
        if call.name not in declared:
            raise CallSyntaxError(f"{call.name!r} is called", rule="undeclared-tool")
    parts = [before, *(call_text(call.name, call.arguments) for call in calls)]
    return {"role": "assistant", "content": "\n".join(part for part in parts if part)}


def _results(content: str, calls: int) -> list[str]:
    """What the tools answered, one text a call where the turn holds an array of as many results."""
    try:
        results = json.loads(content)
    except ValueError:
        return [content]
    if not isinstance(results, list) or len(results) != calls:
        return [content]
    return [json.dumps(result, ensure_ascii=False) for result in results]


def _conversation(
    messages: Sequence[Message], *, tools: Sequence[dict[str, Any]] = (), system: str = ""
) -> Row | RemovedRow:
    """The row of a conversation, up to its last assistant turn.

    Neighbouring assistant messages become one: between them the template would write nothing that is sampled.
    """
    said: list[Message] = []
    for message in messages:
        if message["role"] == "system" and not said:
            system = "\n\n".join(part for part in (system, message["content"].strip()) if part)
        elif said and said[-1]["role"] == message["role"] == "assistant":
            said[-1] = {"role": "assistant", "content": f"{said[-1]['content']}\n{message['content']}".strip()}
        else:
            said.append(message)
    while said and said[-1]["role"] != "assistant":
        said.pop()
    roles = [message["role"] for message in said]
    if not said or roles[0] != "user":
        return RemovedRow(
            "not-a-conversation", f"roles: {', '.join(roles[:4]) or 'none before the last assistant turn'}"
        )
    if any(not message["content"].strip() for message in said if message["role"] != "tool"):
        return RemovedRow("not-a-conversation", "an empty message")
    prompt = "\n\n".join(part for part in (system.strip(), tools_section(tools) if tools else "") if part)
    opening = [{"role": "system", "content": prompt}] if prompt else []
    return {"messages": [*opening, *said]}


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
    DatasetLayout("tulu3", "allenai/tulu-3-sft-mixture", "conversations", ("messages",), _messages),
    DatasetLayout(
        "nemotron", "nvidia/Llama-Nemotron-Post-Training-Dataset", "conversations",
        ("input", "output", "reasoning"), _nemotron,
    ),
    DatasetLayout(
        "conversations", "your own: {messages: [{role, content}]}", "conversations", ("messages",), _messages
    ),
)  # fmt: skip
"""The layouts of conversations."""
