"""The agent loop of one trajectory: from the prompt to the last turn.

It samples a turn, runs the tool calls of the turn concurrently, appends their output to the sampled token ids, and
repeats until the model answers or a limit stops it. `TokenGenerator` and `ToolExecutor` do the work and handle failures
(`generation.py`, the judge's client). All counts come from tokens and structured results, never from text.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.api.roles import RolloutSpec
from rstar2_train.api.stages import Sampling
from rstar2_train.inference.client import Generation
from rstar2_train.judge.types import CallResult
from rstar2_train.rollout.chat_format import ChatFormat
from rstar2_train.rollout.trajectory import Segment, StopReason, ToolCall, Trajectory
from rstar2_train.tools.parser import ParsedCall, clip_middle, parse_calls, render_fault, render_result

CHARACTERS_PER_TOKEN = 4
"""Estimate that converts the token limit of a tool response to characters."""


class ToolExecutor(Protocol):
    """Executes a program: a judge client, or an adapter in front of it."""

    def run(self, code: str, stdin: str = "", *, limits: JudgeLimits | None = None) -> Coroutine[Any, Any, CallResult]:
        """Execute it. Raises on an infrastructure failure; a failure of the program is a result."""


class TokenGenerator(Protocol):
    """Samples the next turn."""

    def __call__(self, token_ids: Sequence[int], *, max_tokens: int, turn: int) -> Awaitable[Generation]:
        """Sample at most `max_tokens` after `token_ids`."""


OnCalls = Callable[[Sequence[ToolCall]], Awaitable[None]]
"""Called with the finished calls of one turn."""


@dataclass(frozen=True, slots=True)
class Agent:
    """The settings of the agent loop; shared by all trajectories of a set."""

    chat_format: ChatFormat
    sampling: Sampling
    rollout: RolloutSpec
    limits: JudgeLimits

    async def run(
        self,
        trajectory: Trajectory,
        *,
        generate: TokenGenerator,
        executor: ToolExecutor,
        on_calls: OnCalls | None = None,
    ) -> str:
        """Run the loop and fill in `trajectory`, which has its prompt. Return the text that the model wrote.

        `on_calls`: called with the calls of a turn when all of them have finished, for example to stream them.

        The budget `sampling.max_response_tokens` includes tool output. Tool output that would exhaust it is not
        appended (stop reason `tool_overflow`). The calls of the last allowed turn are not run (`max_turns`).
        """
        budget = self.sampling.max_response_tokens
        ids = list(trajectory.prompt_ids)
        model_text: list[str] = []
        display_text: list[str] = []
        stop: StopReason | None = None
        while stop is None:
            started = time.monotonic()
            remaining = budget - (len(ids) - len(trajectory.prompt_ids))
            turn = await generate(ids, max_tokens=remaining, turn=trajectory.turns)
            trajectory.turns += 1
            trajectory.segments.append(
                Segment(
                    kind="model",
                    token_ids=turn.token_ids,
                    logprobs=turn.logprobs,
                    weight_version=turn.weight_version,
                    seconds=time.monotonic() - started,
                )
            )
            ids += turn.token_ids
            text = self.chat_format.model_text(turn.token_ids)
            model_text.append(text)
            display_text.append(text)
            stop = await self._run_tools(
                trajectory,
                ids,
                display_text,
                text,
                finished=turn.finish_reason == "stop",
                executor=executor,
                on_calls=on_calls,
            )
        trajectory.stop = stop
        trajectory.text = "".join(display_text)
        return "\n".join(model_text)

    async def _run_tools(
        self,
        trajectory: Trajectory,
        ids: list[int],
        display_text: list[str],
        text: str,
        *,
        finished: bool,
        executor: ToolExecutor,
        on_calls: OnCalls | None,
    ) -> StopReason | None:
        """Run the tool calls of a turn and append their output; return a stop reason if the loop ends here."""
        if not finished:
            return "length"
        calls = parse_calls(text, max_calls=self.rollout.max_calls_per_turn, tool=self.rollout.tool)
        if not calls:
            return "answered"
        if trajectory.turns >= self.sampling.max_turns:
            return "max_turns"
        started = time.monotonic()
        results = await asyncio.gather(*(self._run_call(call, trajectory.turns - 1, executor) for call in calls))
        trajectory.calls += results
        if on_calls is not None:
            await on_calls(results)
        reply = self.chat_format.tool_turn_text([call.response for call in results])
        reply_ids = self.chat_format.encode(reply)
        if len(ids) - len(trajectory.prompt_ids) + len(reply_ids) >= self.sampling.max_response_tokens:
            return "tool_overflow"
        trajectory.segments.append(Segment(kind="tool", token_ids=reply_ids, seconds=time.monotonic() - started))
        ids += reply_ids
        display_text += [self.chat_format.end_of_turn, reply]
        return None

    async def _run_call(self, call: ParsedCall, turn: int, executor: ToolExecutor) -> ToolCall:
        """Execute a call. An invalid call is not executed; its response is the error."""
        if call.fault:
            response = render_fault(call)
            return ToolCall(
                turn=turn, name=call.name, code=call.code, stdin=call.stdin, status=call.fault, response=response
            )
        result = await executor.run(call.code, call.stdin, limits=self.limits)
        response = render_result(
            status=result.status,
            stdout=result.stdout,
            stderr=result.stderr,
            exit_code=result.exit_code,
            wall_seconds=self.limits.wall_seconds,
        )
        return ToolCall(
            turn=turn,
            name=call.name,
            code=call.code,
            stdin=call.stdin,
            status=result.status,
            response=clip_middle(response, limit=CHARACTERS_PER_TOKEN * self.rollout.tool_response_tokens),
            queue_seconds=result.queue_seconds,
            run_seconds=result.run_seconds,
        )
