"""One episode of an agent: the requests of its program, its limits, and its reward.

    endpoint (HTTP) --> AgentEpisode --> Conversations (tokens, tree), generate (an engine)

The program chooses the messages; sampling is that of the stage. Requests of one episode run one after another, in its
engine slot. A failure of the engines ends the episode.
"""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from rstar2_train.inference.sampled_turn import SampledTurn
from rstar2_train.rollout.agent_program.conversation import CONTEXT_LENGTH, MAX_TOOLS, Conversations
from rstar2_train.rollout.trajectory import StopReason
from rstar2_train.utils.api_error import STREAM_OPTIONS, ApiError, reject_unsupported

MODEL = "policy"
"""Name of the model in responses; a request may give any name."""
MAX_WAITING = 64
"""Requests of one episode that wait for the present one."""
MAX_REJECTED = 1000
"""Rejected requests after which an episode is lost: a program that repeats one without end."""
FORCED = frozenset(
    ("model", "user", "metadata", "store", "return_token_ids", "temperature", "top_p", "top_k", "min_p", "seed")
) | {"presence_penalty", "frequency_penalty", "repetition_penalty"}
"""Parameters without an effect: the stage decides."""
_NO_OP_VALUES: Mapping[str, Sequence[Any]] = {
    "stop": ([], ""),
    "tool_choice": ("auto",),
    "parallel_tool_calls": (True,),
}
_WITHOUT_TOOLS: Mapping[str, Sequence[Any]] = {
    **_NO_OP_VALUES,
    "tool_choice": ("auto", "none"),
    "parallel_tool_calls": (True, False),
}
"""Values that change nothing, of a request with tools and of one without."""

Generate = Callable[..., Awaitable[SampledTurn]]
"""A `TokenGenerator` of `rollout/agent.py`."""


class AgentRequest(BaseModel):
    """Body of POST /v1/chat/completions: the parameters with an effect."""

    model_config = ConfigDict(extra="allow", strict=True)

    messages: Annotated[list[dict[str, Any]], Field(min_length=1, fail_fast=True)]
    tools: Annotated[list[dict[str, Any]], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    logprobs: bool | None = None

    @property
    def token_limit(self) -> int | None:
        """Limit of the turn in tokens, from either of its two names."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def check(self) -> None:
        """Raise ApiError for an unsupported parameter."""
        extra = {name: value for name, value in (self.model_extra or {}).items() if name not in FORCED}
        reject_unsupported(extra, _NO_OP_VALUES if self.tools else _WITHOUT_TOOLS)
        reject_unsupported(self.stream_options or {}, STREAM_OPTIONS)


class RewardRequest(BaseModel):
    """Body of POST /v1/reward."""

    model_config = ConfigDict(extra="forbid")

    reward: float
    reason: Annotated[str, Field(max_length=1000)] = ""
    tool_errors: Annotated[list[str], Field(max_length=10_000, fail_fast=True)] = []
    """Ids of the calls that failed."""


class AgentEpisode:
    """The state of one episode."""

    def __init__(
        self, conversations: Conversations, generate: Generate, *, sequence_tokens: int, max_turns: int, seconds: float
    ) -> None:
        """`sequence_tokens`: tokens of the longest sequence; `seconds`: time of the program without generation."""
        self.conversations = conversations
        self._generate = generate
        self._sequence_tokens = sequence_tokens
        self._max_turns = max_turns
        self._seconds = seconds
        self._lock = asyncio.Lock()
        self._running: set[asyncio.Task[dict[str, Any]]] = set()
        self._idle, self._busy = asyncio.Event(), asyncio.Event()
        self._idle.set()
        self._rejected = 0
        self.reward: float | None = None
        self.reason = ""
        self.rewarded = asyncio.Event()
        self.limit: StopReason | None = None
        """Limit of the stage that cut a turn or rejected a request; None: none did."""
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Has an exception if the episode is lost."""

    async def complete(self, body: Any) -> tuple[AgentRequest, dict[str, Any]]:
        """Return the request and the body of its response. Raises ApiError, and pydantic's ValidationError."""
        request = AgentRequest.model_validate(body)
        request.check()
        if len(self._running) > MAX_WAITING:
            raise ApiError(429, f"the episode has {MAX_WAITING} waiting requests: send fewer at the same time")
        task = asyncio.ensure_future(self._sample(request))
        self._running.add(task)
        self._idle.clear()
        self._busy.set()
        try:
            return request, await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise
            raise ApiError(400, "the episode has ended", code="episode_finished") from None
        finally:
            task.cancel()
            self._running.discard(task)
            if not self._running:
                self._busy.clear()
                self._idle.set()

    def post_reward(self, body: Any) -> None:
        """Take the reward, which ends the episode. Raises ApiError, and pydantic's ValidationError."""
        request = RewardRequest.model_validate(body)
        if not math.isfinite(request.reward) or not 0 <= request.reward <= 1:
            raise ApiError(400, f"the reward must be a number in [0, 1], got {request.reward}", param="reward")
        if self.reward is not None:
            raise ApiError(409, f"the episode has the reward {self.reward:g}: post it once", code="episode_finished")
        if not self.conversations.tree.turns:
            raise ApiError(400, "no turn was sampled: there is nothing to reward", param="reward")
        self.conversations.mark_errors(request.tool_errors)
        self.reward, self.reason = request.reward, request.reason
        self.rewarded.set()

    def count_rejected(self) -> None:
        """Count a rejected request; too many of them lose the episode."""
        self._rejected += 1
        if self._rejected > MAX_REJECTED:
            self.fail(AgentFailed(f"sent more than {MAX_REJECTED} requests that were rejected"))

    def fail(self, error: Exception) -> None:
        """End the episode: it is lost."""
        if not self.failure.done():
            self.failure.set_exception(error)

    async def expire(self) -> None:
        """Return when the program has used its time. The time of its requests does not count."""
        left = self._seconds
        while left > 0:
            await self._idle.wait()
            started = time.monotonic()
            try:
                async with asyncio.timeout(left):
                    await self._busy.wait()
            except TimeoutError:
                return
            left -= time.monotonic() - started

    async def close(self) -> None:
        """Cancel the requests in flight."""
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        if not self.failure.done():
            self.failure.cancel()
        elif not self.failure.cancelled():
            self.failure.exception()  # read: asyncio logs an exception that nothing reads

    async def _sample(self, request: AgentRequest) -> dict[str, Any]:
        async with self._lock:
            if self.reward is not None:
                raise ApiError(400, "the episode has its reward: it takes no further request", code="episode_finished")
            number = len(self.conversations.tree.turns)
            if number >= self._max_turns:
                self.limit = "max_turns"
                raise ApiError(400, f"the episode has {number} turns, the limit of the stage", code="max_turns")
            limit, tools = self._sequence_tokens - 1, request.tools or []
            try:
                prompt = await asyncio.to_thread(self.conversations.prompt, request.messages, tools, limit=limit)
            except ApiError as error:
                if error.code == CONTEXT_LENGTH:
                    self.limit = "length"
                raise
            ids = prompt.token_ids
            left = self._sequence_tokens - len(ids)
            tokens = min(left, request.token_limit or left)
            started = time.monotonic()
            try:
                turn = await self._generate(ids, max_tokens=tokens, turn=number)
            except Exception as error:
                self.fail(error)
                raise ApiError(503, f"the engines are lost, and the episode with them: {error}") from error
            if turn.finish_reason == "length" and tokens == left:
                self.limit = "length"
            message = self.conversations.reply(prompt, turn, seconds=time.monotonic() - started)
            return await asyncio.to_thread(_response, message, ids, turn, logprobs=bool(request.logprobs))


class AgentFailed(Exception):
    """The program violates the rules of an episode, or does not finish it."""


def _response(message: dict[str, Any], prompt_ids: list[int], turn: SampledTurn, *, logprobs: bool) -> dict[str, Any]:
    """Return the body of a response, with the fields of vLLM's `return_token_ids`."""
    content: list[dict[str, Any]] = [
        {"token": f"token_id:{token}", "logprob": value, "bytes": None, "top_logprobs": []}
        for token, value in zip(turn.token_ids, turn.logprobs, strict=True)
        if logprobs
    ]
    choice = {
        "index": 0,
        "message": message,
        "finish_reason": "tool_calls" if message.get("tool_calls") else turn.finish_reason,
        "logprobs": {"content": content} if logprobs else None,
        "token_ids": turn.token_ids.tolist(),
    }
    used, sampled = len(prompt_ids), len(turn.token_ids)
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": MODEL,
        "choices": [choice],
        "prompt_token_ids": prompt_ids,
        "usage": {"prompt_tokens": used, "completion_tokens": sampled, "total_tokens": used + sampled},
    }
