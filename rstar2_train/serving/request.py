"""A client's request: its validation, and its messages as the token ids of the prompt. Pure.

Between the endpoint (app.py) and the loop (completion.py). An unsupported parameter is rejected, not ignored.
"""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from rstar2_train.api.stages import Sampling
from rstar2_train.rollout.agent_program.call_arguments import check_arguments
from rstar2_train.rollout.agent_program.conversation import (
    call_order,
    check_fields,
    check_role,
    check_tool,
    message_text,
)
from rstar2_train.rollout.chat_format import ChatFormat, ChatFormatError
from rstar2_train.serving.text import split_turns
from rstar2_train.utils.api_error import STREAM_OPTIONS, ApiError, reject_unsupported

TEMPERATURE = 0.6
"""Default sampling temperature: the paper's, for evaluation."""
Stop = Annotated[str, StringConstraints(min_length=1, max_length=256)]


def _as_list(stop: Any) -> Any:
    """Return a list for each form that OpenAI allows: one string, several, or null. An empty string stops nothing."""
    return [] if stop in (None, "", [""]) else [stop] if isinstance(stop, str) else stop


class ChatRequest(BaseModel):
    """Body of POST /v1/chat/completions: the supported parameters."""

    model_config = ConfigDict(extra="allow", strict=True)

    model: str
    messages: Annotated[list[dict[str, Any]], Field(min_length=1, fail_fast=True)]
    stream: Annotated[bool, BeforeValidator(lambda value: False if value is None else value)] = False
    stream_options: dict[str, Any] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    stop: Annotated[list[Stop], Field(max_length=4, fail_fast=True), BeforeValidator(_as_list)] = []
    """Stop strings: a string, or a list of strings."""
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    user: str | None = None
    tools: Annotated[list[dict[str, Any]], Field(fail_fast=True)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None

    @property
    def token_limit(self) -> int | None:
        """Limit of the answer in tokens, from either of its two names."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def check(self, *, model: str) -> None:
        """Raise ApiError for an unsupported parameter, and for another model than `model`."""
        if self.model != model:
            message = f"the model {reprlib.repr(self.model)} is not served here; use {model!r}"
            raise ApiError(404, message, param="model", code="model_not_found")
        reject_unsupported(self.model_extra or {})
        reject_unsupported(self.stream_options or {}, STREAM_OPTIONS)
        for number, tool in enumerate(self.tools or ()):  # the engine ignores unknown fields, also those of messages
            check_tool(tool, at=f"tools[{number}]")
        for number, entry in enumerate(self.messages if self.tools else ()):
            check_role(entry, at=f"messages[{number}]")
            check_fields(entry, at=f"messages[{number}]")
            _check_texts(entry, at=f"messages[{number}]")
        if self.tools:
            call_order(self.messages)
        if not self.tools and self.tool_choice not in (None, "auto", "none"):
            message = f"tool_choice={reprlib.repr(self.tool_choice)} is only allowed with tools: remove it"
            raise ApiError(400, message, param="tool_choice", code="unsupported_parameter")

    def sampling(self, *, prompt_tokens: int, context: int, max_turns: int) -> Sampling:
        """Return the sampling settings of the answer. Raises ApiError if the context has too few tokens left for it."""
        left = context - prompt_tokens
        limit = self.token_limit or left
        usage = f"the context has {context} tokens; the messages have {prompt_tokens}"
        if left < 1:
            raise ApiError(400, f"{usage}: shorten them", param="messages", code="context_length_exceeded")
        if limit > left:
            message = f"{usage}, which leaves {left} of the {limit} requested: lower max_tokens"
            raise ApiError(400, message, param="max_tokens", code="context_length_exceeded")
        return Sampling(
            temperature=TEMPERATURE if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            max_response_tokens=limit,
            max_turns=max_turns,
        )

    def for_engine(self, *, model: str) -> dict[str, Any]:
        """Return the body for the engine's own endpoint, which handles requests with the client's tools.

        Most chat templates write results without their ids, so they are put in the order of their calls.
        """
        body = {name: getattr(self, name) for name in type(self).model_fields if name != "user"}
        body["messages"] = [self.messages[at] for at in call_order(self.messages)]
        body |= {"model": model, "temperature": TEMPERATURE if self.temperature is None else self.temperature}
        return {name: value for name, value in body.items() if value is not None}


def _check_texts(message: dict[str, Any], *, at: str) -> None:
    """Raise ApiError for a content or arguments that the engine would change, or fail on. `at` names the message.

    Arguments that are null or an empty text are an empty object.
    """
    if message.get("content") is not None or message["role"] != "assistant":
        message_text(message.get("content"), at=f"{at}.content")
    for index, call in enumerate(message.get("tool_calls") or ()):
        if (arguments := call["function"].get("arguments")) not in (None, ""):
            check_arguments(arguments, at=f"{at}.tool_calls[{index}]")


def prompt_ids(messages: Sequence[dict[str, Any]], chat_format: ChatFormat, *, context: int) -> list[int]:
    """Return the token ids of a client's messages, in the format of training. Raises ApiError.

    `context`: tokens of the model's context. Text that cannot fit is rejected before the tokenizer reads it.

    Without a system message, the model's own is added. A client's system message is followed by the tool's signature.
    The model's prompt prefix is put before the first question. Tool outputs in earlier answers become messages of
    their own.
    """
    conversation: list[dict[str, str]] = []
    for number, message in enumerate(messages):
        conversation += _message(message, at=f"messages[{number}]")
    if conversation[-1]["role"] != "user":
        raise ApiError(400, "the last message must be the user's", param="messages")
    if conversation[0]["role"] == "system":
        if "<tools>" not in conversation[0]["content"]:
            conversation[0]["content"] += "\n\n" + chat_format.tools.section()
    elif chat_format.system_prompt:
        conversation.insert(0, {"role": "system", "content": chat_format.system_prompt})
    first = next(message for message in conversation if message["role"] == "user")
    first["content"] = chat_format.prompt_prefix + first["content"]
    characters, limit = sum(len(message["content"]) for message in conversation), context * chat_format.longest_token
    if characters > limit:
        error_message = f"the context has {context} tokens; the messages have {characters} characters: shorten them"
        raise ApiError(400, error_message, param="messages", code="context_length_exceeded")
    try:
        return chat_format.conversation_prompt_ids(conversation)
    except ChatFormatError as error:
        raise ApiError(400, str(error), param="messages") from error


def _message(message: dict[str, Any], *, at: str) -> list[dict[str, str]]:
    """Return a client's message as one or more messages of the model's conversation."""
    role = message.get("role")
    if role not in ("system", "developer", "user", "assistant"):
        hint = ": results of the client's tools require `tools` in the request" if role == "tool" else ""
        raise ApiError(
            400, f"{at}.role {reprlib.repr(role)} is not system, developer, user or assistant{hint}", param="messages"
        )
    if message.get("tool_calls"):
        raise ApiError(400, f"{at}.tool_calls require `tools` in the request", param="messages")
    check_fields(message, at=at)
    content = message_text(message.get("content"), at=f"{at}.content")
    if role == "assistant":
        return split_turns(content)
    return [{"role": "system" if role == "developer" else role, "content": content}]
