"""One answer: the loop of rollouts over a client's conversation, told piece by piece, and what it came to.

Between the endpoint (app.py) and the agent loop (rollout/agent.py), which it runs as training does: same prompt, same
tool, same limits. An infrastructure failure becomes an error of the client's, never an output that the model sees.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.api.stages import Sampling
from rstar2_train.judge.client.client import JudgeClient
from rstar2_train.judge.types import JudgeUnavailable
from rstar2_train.rollout.agent import Agent, ToolExecutor
from rstar2_train.rollout.chat_format import ChatFormat
from rstar2_train.rollout.jupyter_tool import JupyterTool
from rstar2_train.rollout.trajectory import StopReason, ToolCall, Trajectory
from rstar2_train.serving.engine_client import StreamingEngine, TurnGenerator
from rstar2_train.serving.errors import ApiError
from rstar2_train.serving.judge_timeout import JudgeWithTimeout
from rstar2_train.serving.model import ServingModel
from rstar2_train.serving.request import ChatRequest, prompt_ids
from rstar2_train.serving.text import outputs_text
from rstar2_train.tools.schema import JUPYTER

Tell = Callable[[str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class CompletionEnd:
    """How an answer ended."""

    finish_reason: Literal["stop", "length"]
    """OpenAI's word."""
    stop: StopReason | Literal["stop_string"]
    """The loop's own."""
    prompt_tokens: int
    response_tokens: int
    """Everything after the prompt, outputs of tools included, as max_tokens counts it."""

    def usage(self) -> dict[str, Any]:
        """OpenAI's counts."""
        total = self.prompt_tokens + self.response_tokens
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.response_tokens,
            "total_tokens": total,
        }


@dataclass(frozen=True, slots=True)
class ServerContext:
    """What all conversations share."""

    served: ServingModel
    protocol: ChatFormat
    engine: StreamingEngine
    judge: JudgeClient
    judge_patience: float
    """Seconds that a judge may be away before a call fails."""
    max_turns: int
    """Most turns of the model in one answer."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer to be given."""

    house: ServerContext
    question: ChatRequest
    prompt_ids: list[int]
    sampling: Sampling

    @classmethod
    def about(cls, question: ChatRequest, house: ServerContext) -> Completion:
        """The answer to a question. Raises ApiError for one that cannot be answered."""
        context = house.served.context
        ids = prompt_ids(question.messages, house.protocol, context=context)
        sampling = question.sampling(prompt_tokens=len(ids), context=context, max_turns=house.max_turns)
        return cls(house, question, ids, sampling)

    async def run(self, tell: Tell) -> CompletionEnd:
        """Answer; `tell` is given the text as it comes. Raises ApiError. Cancelling it stops the engine's work."""
        house = self.house
        protocol = house.protocol

        async def tell_outputs(calls: Sequence[ToolCall]) -> None:
            await tell(outputs_text([protocol.escape_markers(call.response) for call in calls]))

        turns = TurnGenerator(
            engine=house.engine,
            sampling=self.sampling,
            stop_ids=protocol.stop_ids,
            stops=self.question.stop,
            seed=self.question.seed,
            tell=tell,
        )
        agent = Agent(
            chat_format=protocol,
            sampling=self.sampling,
            rollout=house.served.rollout,
            limits=JudgeLimits.from_spec(house.served.judge.limits),
        )
        trajectory = Trajectory(prompt_id="", sample=0, prompt_ids=self.prompt_ids)
        try:
            async with self._tool() as tool:
                patient = JudgeWithTimeout(tool, status=house.judge.status, patience_seconds=house.judge_patience)
                await agent.run(trajectory, generate=turns, executor=patient, on_calls=tell_outputs)
        except JudgeUnavailable as error:
            raise ApiError(
                503, f"the code judge is down, a tool call could not be run: {error}", code="judge_unavailable"
            ) from error
        ended = trajectory.stop == "answered" or turns.stopped
        return CompletionEnd(
            finish_reason="stop" if ended else "length",
            stop="stop_string" if turns.stopped else trajectory.stop,
            prompt_tokens=len(self.prompt_ids),
            response_tokens=trajectory.response_tokens,
        )

    def _tool(self) -> AbstractAsyncContextManager[ToolExecutor]:
        """What runs this conversation's calls: the judge itself, or a session of its own."""
        judge = self.house.judge
        return JupyterTool(judge) if self.house.served.rollout.tool == JUPYTER else nullcontext(judge)
