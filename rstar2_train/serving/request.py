"""A client's question: checked, and as the conversation that the model is to go on with.

Between the endpoint (app.py) and the loop (completion.py). What this server does not do is refused rather than ignored.
Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from rstar2_train.api.stages import Sampling
from rstar2_train.rollout.chat_format import ChatFormat, ChatFormatError
from rstar2_train.serving.errors import ApiError
from rstar2_train.serving.text import split_turns
from rstar2_train.tools.schema import TOOLS, tools_section
from rstar2_train.utils.text import half_character

TEMPERATURE = 0.6
"""Where a request sets none: the paper's, for evaluation."""
_HARMLESS: dict[str, Sequence[Any]] = {
    "n": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "store": (False,),
}
"""Parameters that are taken only with the value that asks for nothing."""
Stop = Annotated[str, StringConstraints(min_length=1, max_length=256)]


def _as_list(stop: Any) -> Any:
    """OpenAI allows one string, several, or null."""
    return [] if stop is None else [stop] if isinstance(stop, str) else stop


class StreamOptions(BaseModel):
    """What else is streamed."""

    model_config = ConfigDict(extra="ignore")

    include_usage: bool = False


class ChatRequest(BaseModel):
    """Body of POST /v1/chat/completions, as far as it is understood."""

    model_config = ConfigDict(extra="allow")

    model: str
    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    stop: Annotated[list[Stop], Field(max_length=4), BeforeValidator(_as_list)] = []
    """Strings that end the answer; one may stand alone."""
    seed: int | None = None
    user: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None

    @property
    def most_tokens(self) -> int | None:
        """Most tokens of the answer, by whichever name they were given."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def check(self, *, model: str) -> None:
        """Raises ApiError for what this server does not do, and for another model than `model`."""
        if self.model != model:
            message = f"the model {self.model!r} is not served here; this is {model!r}"
            raise ApiError(404, message, param="model", code="model_not_found")
        for name, value in (self.model_extra or {}).items():
            if value is None or value in _HARMLESS.get(name, ()):
                continue
            allowed = f"; only {_HARMLESS[name][0]!r} is" if name in _HARMLESS else ""
            message = f"{name}={value!r} is not supported{allowed}: leave it out"
            raise ApiError(400, message, param=name, code="unsupported_parameter")
        if not self.tools:
            for name in ("tool_choice", "parallel_tool_calls"):
                if getattr(self, name) is not None:
                    raise ApiError(400, f"{name} is only allowed with tools", param=name, code="unsupported_parameter")

    def sampling(self, *, prompt_tokens: int, context: int, max_turns: int) -> Sampling:
        """How the answer is sampled. Raises ApiError when it has no room behind the prompt."""
        left = context - prompt_tokens
        wanted = self.most_tokens or left
        told = f"the model takes {context} tokens; the messages have {prompt_tokens}"
        if left < 1:
            raise ApiError(400, f"{told}: shorten them", param="messages", code="context_length_exceeded")
        if wanted > left:
            message = f"{told}, which leaves {left} of the {wanted} asked for: lower max_tokens"
            raise ApiError(400, message, param="max_tokens", code="context_length_exceeded")
        return Sampling(
            temperature=TEMPERATURE if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            max_response_tokens=wanted,
            max_turns=max_turns,
        )

    def for_engine(self, *, model: str) -> dict[str, Any]:
        """The body for the engine's own endpoint, which a request with tools of the client's own goes to."""
        body = self.model_dump(include=set(type(self).model_fields) - {"user"}, exclude_none=True)
        return body | {"model": model, "temperature": TEMPERATURE if self.temperature is None else self.temperature}


def prompt_ids(messages: Sequence[dict[str, Any]], protocol: ChatFormat, *, context: int) -> list[int]:
    """Token ids of a client's messages, as the model was taught to read them. Raises ApiError.

    `context`: tokens that the model takes; text that cannot be so few is refused before the tokenizer works on it.

    Where the client gives no system message the model's own stands first; behind a client's own comes the tool's
    signature. The model's prompt prefix is put before the first question. Outputs in earlier answers are told apart
    from what the model wrote.
    """
    told: list[dict[str, str]] = []
    for number, message in enumerate(messages):
        told += _message(message, at=f"messages[{number}]")
    if told[-1]["role"] != "user":
        raise ApiError(400, "the last message must be the user's", param="messages")
    if told[0]["role"] == "system":
        if "<tools>" not in told[0]["content"]:
            told[0]["content"] += "\n\n" + tools_section([TOOLS[protocol.tool]])
    elif protocol.system_prompt:
        told.insert(0, {"role": "system", "content": protocol.system_prompt})
    first = next(message for message in told if message["role"] == "user")
    first["content"] = protocol.prompt_prefix + first["content"]
    characters, most = sum(len(message["content"]) for message in told), context * protocol.longest_token
    if characters > most:
        wrong = f"the model takes {context} tokens; the messages have {characters} characters: shorten them"
        raise ApiError(400, wrong, param="messages", code="context_length_exceeded")
    try:
        return protocol.conversation_prompt_ids(told)
    except ChatFormatError as error:
        raise ApiError(400, str(error), param="messages") from error


def _message(message: dict[str, Any], *, at: str) -> list[dict[str, str]]:
    """One message of a client as those that the model is shown."""
    role = message.get("role")
    if role not in ("system", "developer", "user", "assistant"):
        hint = ": results of a client's own tools need `tools` in the request" if role == "tool" else ""
        raise ApiError(400, f"{at}.role {role!r} is not system, developer, user or assistant{hint}", param="messages")
    if message.get("tool_calls"):
        raise ApiError(400, f"{at}.tool_calls need `tools` in the request", param="messages")
    content = _content(message.get("content"), at=f"{at}.content")
    if half_character(content):
        raise ApiError(400, f"{at}.content holds half a surrogate pair, which is no character", param="messages")
    if role == "assistant":
        return split_turns(content)
    return [{"role": "system" if role == "developer" else role, "content": content}]


def _content(content: Any, *, at: str) -> str:
    """A message's text: a string, or a list of parts of type text."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = [part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)]
        if len(texts) == len(content):
            return "".join(texts)
    raise ApiError(400, f"{at} must be a string or a list of text parts", param="messages")
