"""The agent loop: one trajectory, from its prompt to its last turn.

A turn is sampled, its tool calls run all at once, their output is put behind the sampled ids, and so on until the model
answers or a limit ends it. Where to sample and how to survive failures is not decided here: `TokenGenerator` and
`ToolExecutor` are given (`generation.py`, the judge's client). Everything is counted from tokens and structured
results.
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
from rstar2_train.tools.parser import ParsedCall, clip_middle, parse_calls, render_parsed, render_result

CHARACTERS_PER_TOKEN = 4


class ToolExecutor(Protocol):
    """Runs a program: a judge client, or what stands before one."""

    def run(self, code: str, stdin: str = "", *, limits: JudgeLimits | None = None) -> Coroutine[Any, Any, CallResult]:
        """Run it. Raises when the infrastructure fails; a program's own failure is a result."""


class TokenGenerator(Protocol):
    """Samples the next turn."""

    def __call__(self, token_ids: Sequence[int], *, max_tokens: int, turn: int) -> Awaitable[Generation]:
        """At most `max_tokens` after `token_ids`."""


@dataclass(frozen=True, slots=True)
class Agent:
    """What all trajectories of a collection share."""

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
        on_calls: Callable[[Sequence[ToolCall]], Awaitable[None]] | None = None,
    ) -> str:
        """Fill `trajectory` (its prompt is there) up to its stop; returns the text that the model wrote.

        `on_calls` is given the calls of a turn when all of them are done, for whoever shows them to a person.

        The budget `sampling.max_response_tokens` counts tool output too. Tool output that would use it up is not
        appended (`tool_overflow`); the calls of the last allowed turn are not run (`max_turns`).
        """
        budget = self.sampling.max_response_tokens
        ids = list(trajectory.prompt_ids)
        written: list[str] = []
        shown: list[str] = []
        stop: StopReason | None = None
        while stop is None:
            started = time.monotonic()
            left = budget - (len(ids) - len(trajectory.prompt_ids))
            turn = await generate(ids, max_tokens=left, turn=trajectory.turns)
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
            written.append(text)
            shown.append(text)
            stop = await self._answer(
                trajectory,
                ids,
                shown,
                text,
                finished=turn.finish_reason == "stop",
                executor=executor,
                on_calls=on_calls,
            )
        trajectory.stop = stop
        trajectory.text = "".join(shown)
        return "\n".join(written)

    async def _answer(
        self,
        trajectory: Trajectory,
        ids: list[int],
        shown: list[str],
        text: str,
        *,
        finished: bool,
        executor: ToolExecutor,
        on_calls: Callable[[Sequence[ToolCall]], Awaitable[None]] | None,
    ) -> StopReason | None:
        """Run a turn's calls and append what they printed; or the reason to stop."""
        if not finished:
            return "length"
        calls = parse_calls(text, max_calls=self.rollout.max_calls_per_turn, tool=self.rollout.tool)
        if not calls:
            return "answered"
        if trajectory.turns >= self.sampling.max_turns:
            return "max_turns"
        started = time.monotonic()
        done = await asyncio.gather(*(self._call(call, trajectory.turns - 1, executor) for call in calls))
        trajectory.calls += done
        if on_calls is not None:
            await on_calls(done)
        reply = self.chat_format.tool_turn_text([call.response for call in done])
        reply_ids = self.chat_format.encode(reply)
        if len(ids) - len(trajectory.prompt_ids) + len(reply_ids) >= self.sampling.max_response_tokens:
            return "tool_overflow"
        trajectory.segments.append(Segment(kind="tool", token_ids=reply_ids, seconds=time.monotonic() - started))
        ids += reply_ids
        shown += [self.chat_format.end_of_turn, reply]
        return None

    async def _call(self, call: ParsedCall, turn: int, executor: ToolExecutor) -> ToolCall:
        """Run one call, or answer a bad one with what is wrong with it."""
        if call.fault:
            response = render_parsed(call)
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
