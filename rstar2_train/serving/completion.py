"""One answer: runs the agent loop on a client's conversation and streams its text.

Between the endpoint (app.py) and the agent loop (rollout/agent.py), with the prompt, tool and limits of training. An
infrastructure failure becomes an error for the client, never an output that the model reads.
"""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

from rstar2_train.api.stages import Sampling
from rstar2_train.judge.client.client import JudgeClient
from rstar2_train.judge.types import JudgeUnavailable
from rstar2_train.rollout.agent import Agent, ToolExecutor
from rstar2_train.rollout.chat_format import ChatFormat
from rstar2_train.rollout.jupyter_tool import JupyterTool
from rstar2_train.rollout.remote_tools import RemoteTools
from rstar2_train.rollout.trajectory import StopReason, ToolCall, Trajectory
from rstar2_train.serving.engine_client import StreamingEngine, TurnGenerator
from rstar2_train.serving.judge_timeout import JudgeWithTimeout
from rstar2_train.serving.model import ServingModel
from rstar2_train.serving.request import ChatRequest, prompt_ids
from rstar2_train.serving.text import outputs_text
from rstar2_train.tools.mcp_session import ServerLost
from rstar2_train.utils.api_error import ApiError

Emit = Callable[[str], Awaitable[None]]
"""Sends a piece of text to the client."""


@dataclass(frozen=True, slots=True)
class CompletionEnd:
    """Why an answer ended, and its size."""

    finish_reason: Literal["stop", "length"]
    """Value in OpenAI's API."""
    stop: StopReason | Literal["stop_string"]
    """Reason of the agent loop."""
    prompt_tokens: int
    response_tokens: int
    """All tokens after the prompt, tool outputs included, as for max_tokens."""

    def usage(self) -> dict[str, Any]:
        """Return the usage object of OpenAI's API."""
        total = self.prompt_tokens + self.response_tokens
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.response_tokens,
            "total_tokens": total,
        }


@dataclass(frozen=True, slots=True)
class ServerContext:
    """The objects that all requests of the endpoint share."""

    model: ServingModel
    chat_format: ChatFormat
    engine: StreamingEngine
    judge: JudgeClient
    judge_patience: float
    """Seconds that a call waits for an unreachable judge before it fails."""
    max_turns: int
    """Limit of assistant turns per answer."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer of the endpoint."""

    context: ServerContext
    request: ChatRequest
    prompt_ids: list[int]
    sampling: Sampling

    @classmethod
    def create(cls, request: ChatRequest, context: ServerContext) -> Completion:
        """Prepare the answer to a request. Raises ApiError for an invalid request."""
        tokens = context.model.context
        ids = prompt_ids(request.messages, context.chat_format, context=tokens)
        sampling = request.sampling(prompt_tokens=len(ids), context=tokens, max_turns=context.max_turns)
        return cls(context, request, ids, sampling)

    async def run(self, emit: Emit) -> CompletionEnd:
        """Generate the answer. `emit` gets the text piece by piece. Raises ApiError. Cancelling it stops the engine."""
        context = self.context
        chat_format = context.chat_format

        async def emit_outputs(calls: Sequence[ToolCall]) -> None:
            await emit(outputs_text([chat_format.escape_markers(call.response) for call in calls]))

        turns = TurnGenerator(
            engine=context.engine,
            sampling=self.sampling,
            stop_ids=chat_format.stop_ids,
            stops=self.request.stop,
            seed=self.request.seed,
            emit=emit,
        )
        agent = Agent.from_spec(context.model, chat_format, self.sampling)
        trajectory = Trajectory(prompt_id="", sample=0, prompt_ids=array("i", self.prompt_ids))
        try:
            async with self._tool() as tool, RemoteTools(chat_format.tools.servers) as remote:
                status, patience = context.judge.status, context.judge_patience
                executor = JudgeWithTimeout(tool, status=status, patience_seconds=patience)
                await agent.run(trajectory, generate=turns, executor=executor, remote=remote, on_calls=emit_outputs)
        except JudgeUnavailable as error:
            raise ApiError(
                503, f"the code judge is unavailable, so a tool call failed: {error}", code="judge_unavailable"
            ) from error
        except ServerLost as error:
            raise ApiError(503, f"a tool call failed: {error}", code="server_unavailable") from error
        finished = trajectory.stop == "answered" or turns.stopped
        return CompletionEnd(
            finish_reason="stop" if finished else "length",
            stop="stop_string" if turns.stopped else trajectory.stop,
            prompt_tokens=len(self.prompt_ids),
            response_tokens=trajectory.response_tokens,
        )

    def _tool(self) -> AbstractAsyncContextManager[ToolExecutor]:
        """Return what runs the calls of this conversation: the judge, or a session of it."""
        judge = self.context.judge
        return JupyterTool(judge) if self.context.chat_format.tools.has_notebook else nullcontext(judge)
