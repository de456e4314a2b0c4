"""The conversations of one episode: messages as the tokens of a prompt, and a sampled turn as a message. Pure.

A message that an earlier request or response of the episode had keeps its recorded tokens: sampled tokens are never
tokenised again. Messages are compared by role, text without white space at its ends, and calls. A client that edits an
earlier message starts another branch of the tree (`tree.py`).
"""

from __future__ import annotations

import hashlib
import itertools
import json
import reprlib
import secrets
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from rstar2_train.api.roles import ToolParser
from rstar2_train.inference.sampled_turn import SampledTurn
from rstar2_train.rollout.agent_program.call_arguments import CALL_HINT, check_arguments
from rstar2_train.rollout.agent_program.tree import TokenTree, Turn
from rstar2_train.rollout.chat_format import ChatFormat, ChatFormatError
from rstar2_train.rollout.trajectory import ToolCall
from rstar2_train.tools.parser import call_spans, parse_calls, write_calls
from rstar2_train.tools.remote_schema import remote_signature
from rstar2_train.tools.sandbox_program import SourceError
from rstar2_train.tools.schema import qwen_tools_section
from rstar2_train.tools.toolset import Toolset, schema_tool
from rstar2_train.utils.api_error import ApiError
from rstar2_train.utils.text import lone_surrogate, replace_surrogates

MAX_TOOLS = 128
CLIENT = "client"
"""`Tool.server` of the tools that the client runs."""
CONTEXT_LENGTH = "context_length_exceeded"
"""OpenAI's code of a conversation that is too long."""
MAX_ARGUMENTS = 1 << 20
"""Characters of the arguments of one call."""
_ROLES = ("system", "developer", "user", "assistant", "tool")
_FIELDS: Mapping[str, frozenset[str]] = {
    "assistant": frozenset({"tool_calls"}),
    "tool": frozenset({"tool_call_id", "name"}),
}
"""Role -> its fields, besides those of every message."""
_ANY_ROLE = frozenset({"role", "content", "id", "cache_control"})
_PART_FIELDS = frozenset({"type", "text", "cache_control"})
_CALL_FIELDS = frozenset({"id", "index", "type", "function"})
_FUNCTION_FIELDS = frozenset({"name", "arguments"})
_TOOL_FIELDS = frozenset({"type", "function", "cache_control"})
_SIGNATURE_FIELDS = frozenset({"name", "description", "parameters", "strict"})
_REMEDIES: Mapping[str, str] = {
    "function_call": "write it as tool_calls",
    "tool_calls": "only assistant messages have calls",
    "name": "write the name in the content",
    "reasoning_content": "write the reasoning in the content, as the response has it",
    "reasoning": "write the reasoning in the content, as the response has it",
    "refusal": "write it in the content",
}


@dataclass(frozen=True, slots=True)
class Prompt:
    """The messages of a request, as the recording of its turn needs them."""

    token_ids: list[int]
    """Tokens up to the model's next turn."""
    toolset: Toolset | None
    """Tools of the request; None: none."""
    key: hashlib.blake2b
    """Hash of the tools and the messages."""


class Conversations:
    """The conversations of one episode."""

    def __init__(self, chat_format: ChatFormat, *, max_calls: int) -> None:
        """`max_calls`: calls of a turn that are parsed (`rollout.maxCallsPerTurn`)."""
        self.tree = TokenTree()
        self.chat_format = chat_format
        self._max_calls = max_calls
        self._turns: dict[bytes, Turn] = {}
        """Turn of each recorded conversation, by its key."""
        self._calls: dict[str, ToolCall] = {}

    def prompt(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[dict[str, Any]], *, limit: int) -> Prompt:
        """Return the messages as a prompt. It may take long. `limit`: largest number of tokens.

        Raises ApiError for messages that cannot be rendered, and with code CONTEXT_LENGTH for too many tokens.
        """
        parser = self.chat_format.tools.parser
        conversation = [_message(message, parser, at=f"messages[{at}]") for at, message in enumerate(messages)]
        _check_order(conversation)
        order = call_order(messages)
        messages, conversation = [messages[at] for at in order], [conversation[at] for at in order]
        known_tools = self._toolset(tools) if tools else None
        characters = sum(len(message["content"]) for message in conversation)
        if characters > limit * self.chat_format.longest_token:
            raise too_long(f"the messages have {characters} characters", limit)
        states = _states(messages, tools)
        ids = self._render(messages, conversation, tools, [state.digest() for state in states])
        if len(ids) > limit:
            raise too_long(f"the messages have {len(ids)} tokens", limit)
        return Prompt(ids, known_tools, states[-1])

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        conversation: Sequence[dict[str, str]],
        tools: Sequence[dict[str, Any]],
        keys: Sequence[bytes],
    ) -> list[int]:
        for message in messages:
            call = self._calls.get(str(message.get("tool_call_id"))) if message["role"] == "tool" else None
            if call is not None:
                call.response = call.response or _text(message.get("content"), at="content")
        known = next((at for at in reversed(range(len(keys))) if keys[at] in self._turns), None)
        try:
            if known is None:
                return self.chat_format.conversation_prompt_ids(
                    _with_tools(self._escaped(conversation), self._toolset(tools), tools)
                )
            ids = self._turns[keys[known]].token_ids().tolist()
            if ids[-1] not in self.chat_format.stop_ids:  # a limit cut the turn
                ids.append(self.chat_format.end_of_turn_id)
            return ids + self.chat_format.continuation_ids(self._escaped(conversation[known + 1 :]))
        except ChatFormatError as error:
            raise ApiError(400, str(error), param="messages") from error

    def reply(self, prompt: Prompt, generation: SampledTurn, *, seconds: float) -> dict[str, Any]:
        """Record the turn that was sampled after `prompt`; return it as an assistant message.

        A turn with an invalid call is a text without calls, as vLLM returns it.
        """
        turn = self.tree.add(prompt.token_ids, generation, seconds=seconds)
        text = self.chat_format.model_text(generation.token_ids)
        message: dict[str, Any] = {"role": "assistant", "content": text}
        parsed = []
        if generation.finish_reason == "stop" and prompt.toolset is not None:
            parsed = parse_calls(text, max_calls=self._max_calls, tools=prompt.toolset)
        if any(call.fault for call in parsed):
            parsed = [call for call in parsed if call.fault]
        elif parsed:
            message["content"] = text[: call_spans(text, self.chat_format.tools.parser)[0][0]].strip() or None
            message["tool_calls"] = []
        for call in parsed:
            record = ToolCall(0, call.name, call.code, "", call.fault or "ok", response=call.detail)
            turn.calls.append(record)
            if not call.fault:
                name = f"call_{secrets.token_hex(8)}"
                self._calls[name] = record
                function = {"name": call.name, "arguments": call.code}
                message["tool_calls"].append({"id": name, "type": "function", "function": function})
        self._turns[_with_message(prompt.key, message).digest()] = turn
        return message

    def _toolset(self, tools: Sequence[dict[str, Any]]) -> Toolset:
        return replace(toolset(json.dumps(tools)), parser=self.chat_format.tools.parser)

    def mark_errors(self, names: Sequence[str]) -> None:
        """Count calls as tool errors. `names`: their ids. Raises ApiError for an unknown one."""
        unknown = [name for name in names if name not in self._calls]
        if unknown:
            raise ApiError(400, f"tool_errors: {unknown[0]!r} is not the id of a call of this episode")
        for name in names:
            self._calls[name].status = "error"

    def _escaped(self, conversation: Sequence[dict[str, str]]) -> list[dict[str, str]]:
        """Return the messages with tool outputs that cannot forge a turn."""
        return [
            {**message, "content": self.chat_format.escape_markers(message["content"])}
            if message["role"] == "tool"
            else message
            for message in conversation
        ]


def too_long(size: str, limit: int) -> ApiError:
    """Return the error of a conversation without space for a turn."""
    message = f"{size}, but a sequence of this stage has {limit} tokens, the turn included: shorten the messages"
    return ApiError(400, message, param="messages", code=CONTEXT_LENGTH)


def message_text(content: Any, *, at: str) -> str:
    """Return the text of a message: a string, or a list of parts of type text. Raises ApiError; `at` names the field.

    Raises also for a lone surrogate, which tokenizers reject.
    """
    text = _text(content, at=at)
    if lone_surrogate(text):
        raise ApiError(400, f"{at} has a lone surrogate, which is not a valid character", param="messages")
    return text


@lru_cache(maxsize=64)
def toolset(tools: str) -> Toolset:
    """Return the tools of a request. `tools`: the field as JSON. Raises ApiError for an unusable tool."""
    signatures = []
    for at, tool in enumerate(json.loads(tools)):
        function = check_tool(tool, at=f"tools[{at}]")
        parameters = function.get("parameters") or {"type": "object"}
        if not isinstance(parameters, dict):
            raise ApiError(400, f"tools[{at}].function.parameters must be a JSON schema", param="tools")
        try:
            signatures.append(remote_signature(function["name"], str(function.get("description") or ""), parameters))
        except SourceError as error:
            raise ApiError(400, f"tools[{at}]: {error}", param="tools") from error
    return Toolset(tuple(schema_tool(signature, server=CLIENT) for signature in signatures))


def check_tool(tool: Mapping[str, Any], *, at: str) -> Mapping[str, Any]:
    """Return the function of a tool. Raises ApiError for another tool, and for a field that its prompt would not have.

    `at` names the tool.
    """
    function = tool.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ApiError(400, f"{at} must be an object with function.name", param="tools")
    if tool.get("type", "function") != "function":
        raise ApiError(400, f"{at}.type must be function", param="tools")
    _check_known(tool, _TOOL_FIELDS, at=at, param="tools")
    _check_known(function, _SIGNATURE_FIELDS, at=f"{at}.function", param="tools")
    return function


def check_role(message: Any, *, at: str) -> str:
    """Return the role of a message. Raises ApiError for another one than OpenAI's; `at` names the message."""
    role = message.get("role") if isinstance(message, Mapping) else None
    if role not in _ROLES:
        raise ApiError(400, f"{at}.role {reprlib.repr(role)} is not one of {', '.join(_ROLES)}", param="messages")
    return str(role)


def check_fields(message: Mapping[str, Any], *, at: str) -> None:
    """Raise ApiError for a field of a message that its prompt would not have. `at` names the message.

    Clients send empty fields, such as `refusal: null` and `annotations: []`: they change nothing.
    """
    _check_known(message, _ANY_ROLE | _FIELDS.get(message["role"], frozenset()), at=at)
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise ApiError(400, f"{at}.tool_calls must be a list of calls", param="messages")
    for index, call in enumerate(calls):
        field = f"{at}.tool_calls[{index}]"
        if not isinstance(call, Mapping) or not isinstance(function := call.get("function"), Mapping):
            raise ApiError(400, f"{field} {CALL_HINT}", param="messages")
        _check_known(call, _CALL_FIELDS, at=field)
        _check_known(function, _FUNCTION_FIELDS, at=f"{field}.function")
        if call.get("type") not in (None, "function"):
            raise ApiError(400, f"{field}.type must be function", param="messages")


def _check_known(given: Mapping[str, Any], known: Set[str], *, at: str, param: str = "messages") -> None:
    other = "content" if param == "messages" else "description"
    for name, value in given.items():
        if name not in known and not _is_empty(value):
            remedy = _REMEDIES.get(name, f"remove it, or write it in the {other}")
            raise ApiError(400, f"{at}.{reprlib.repr(name)[1:-1]} is not supported: {remedy}", param=param)


def _is_empty(value: Any) -> bool:
    return value in (None, "", [], {}) or (isinstance(value, Mapping) and all(part is None for part in value.values()))


def _text(content: Any, *, at: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ApiError(400, f"{at} must be a string or a list of text parts", param="messages")
    for index, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise ApiError(400, f"{at}[{index}] must be a text part: {{type: text, text: ...}}", param="messages")
        _check_known(part, _PART_FIELDS, at=f"{at}[{index}]")
    return "".join(part["text"] for part in content)


def call_order(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the positions of the messages with each turn's results in the order of its calls, as a rollout has them.

    Results without ids are in this order already. `messages` passed `check_fields`.

    Raises ApiError unless each call has one result.
    """
    order = list(range(len(messages)))
    for at, message in enumerate(messages):
        calls = message.get("tool_calls") or []
        later = [] if message["role"] == "tool" else messages[at + 1 :]
        results = list(itertools.takewhile(lambda other: other["role"] == "tool", later))
        given = [result.get("tool_call_id") for result in results]
        ids = [call.get("id") for call in calls]
        if not any(given) and (not calls or len(given) == len(ids)):
            _check_names(calls, results, at=at + 1)
            continue
        if len(set(map(str, ids))) < len(ids) or sorted(map(str, given)) != sorted(map(str, ids)):
            raise ApiError(
                400,
                f"messages[{at}].tool_calls has the ids {reprlib.repr(ids)}, but the messages of role tool after it "
                f"have the tool_call_id {reprlib.repr(given)}: send one result for each call, with its id",
                param="messages",
            )
        place = {str(name): at + 1 + index for index, name in enumerate(given)}
        order[at + 1 : at + 1 + len(ids)] = [place[str(name)] for name in ids]
        _check_names(calls, [messages[place[str(name)]] for name in ids], at=at + 1)
    return order


def _check_names(calls: Sequence[Mapping[str, Any]], results: Sequence[Mapping[str, Any]], *, at: int) -> None:
    """Raise ApiError for a result with a name that its call does not have: the prompt has only that of the call.

    `at`: position of the first result.
    """
    names = [call["function"].get("name") for call in calls] or [None] * len(results)
    for index, (name, result) in enumerate(zip(names, results, strict=True), start=at):
        if (given := result.get("name")) and given != name:
            message = f"messages[{index}].name {reprlib.repr(given)} is not the name of its call: remove it"
            raise ApiError(400, message, param="messages")


def _message(message: Any, parser: ToolParser, *, at: str) -> dict[str, str]:
    """Return a client's message as a message of the chat template: calls are part of the text."""
    role = check_role(message, at=at)
    check_fields(message, at=at)
    content = message.get("content")
    calls = _calls(message, at=at)
    for index, call in enumerate(message.get("tool_calls") or ()):
        check_arguments(call["function"]["arguments"], at=f"{at}.tool_calls[{index}]")
    text = "" if content is None and role == "assistant" else message_text(content, at=f"{at}.content")
    try:
        written = write_calls([(name, json.loads(arguments)) for name, arguments in calls], parser) if calls else ""
    except ValueError as error:
        raise ApiError(400, f"{at}.tool_calls cannot be written: {error}", param="messages") from error
    if lone_surrogate(written):
        raise ApiError(400, f"{at}.tool_calls have a lone surrogate, which is not a valid character", param="messages")
    parts = [text, written]
    return {"role": "system" if role == "developer" else role, "content": "\n".join(part for part in parts if part)}


def _calls(message: Mapping[str, Any], *, at: str) -> list[tuple[str, str]]:
    """Return name and arguments, as JSON with sorted keys, of each call of an assistant message. Raises ApiError."""
    calls = []
    for index, call in enumerate(message.get("tool_calls") or ()):
        try:
            function = call["function"]
            if len(function["arguments"]) > MAX_ARGUMENTS:
                limit = f"has arguments of more than {MAX_ARGUMENTS >> 20} Mi characters: shorten them"
                raise ApiError(400, f"{at}.tool_calls[{index}] {limit}", param="messages")
            value = json.loads(function["arguments"])
            if not isinstance(value, dict) or not isinstance(function["name"], str) or not function["name"]:
                raise TypeError
            calls.append((function["name"], replace_surrogates(json.dumps(value, sort_keys=True))))
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise ApiError(400, f"{at}.tool_calls[{index}] {CALL_HINT}", param="messages") from error
    return calls


def _check_order(conversation: Sequence[Mapping[str, str]]) -> None:
    """Raise ApiError unless each assistant message follows another author, and the last message is not its own."""
    roles = [message["role"] for message in conversation]
    if not roles or roles[-1] == "assistant":
        raise ApiError(400, "the last message must not be the assistant's", param="messages")
    for at, (role, earlier) in enumerate(zip(roles, ["assistant", *roles], strict=False)):
        if role == earlier == "assistant":
            raise ApiError(400, f"messages[{at}] must not be the assistant's: nothing precedes it", param="messages")


def _with_tools(
    conversation: list[dict[str, str]], tools: Toolset, given: Sequence[dict[str, Any]]
) -> list[dict[str, str]]:
    """Return the conversation whose system message describes the tools, as Qwen's chat template does."""
    if not given:
        return conversation
    section = qwen_tools_section(given) if tools.parser == "hermes" else tools.section()
    if conversation[0]["role"] != "system":
        return [{"role": "system", "content": section}, *conversation]
    return [{"role": "system", "content": f"{conversation[0]['content']}\n\n{section}"}, *conversation[1:]]


def _states(messages: Sequence[Mapping[str, Any]], tools: Sequence[dict[str, Any]]) -> list[hashlib.blake2b]:
    """Return a hash of the conversation up to each message."""
    states = [hashlib.blake2b(json.dumps(tools, sort_keys=True).encode(), digest_size=16)]
    for message in messages:
        states.append(_with_message(states[-1], message))
    return states[1:]


def _with_message(state: hashlib.blake2b, message: Mapping[str, Any]) -> hashlib.blake2b:
    """Return the hash of a conversation with one more message."""
    content = message.get("content")
    text = "" if content is None else _text(content, at="content").strip()
    extended = state.copy()
    extended.update(json.dumps([message["role"], text, _calls(message, at="messages")]).encode())
    return extended
