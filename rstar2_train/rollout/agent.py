"""The agent loop of one trajectory: from the prompt to the last turn.

It samples a turn, runs the tool calls of the turn concurrently, appends their output to the sampled token ids, and
repeats until the model answers or a limit stops it. `TokenGenerator` and `ToolExecutor` do the work and handle failures
(`generation.py`, the judge's client). All counts come from tokens and structured results, never from text.

A policy that collapses writes anything: thousands of tags, megabytes of spaces, forged tool responses. Long turns and
long tool output are decoded, parsed and tokenised in a thread, so that one trajectory never stalls the others.
"""

from __future__ import annotations

import asyncio
import mimetypes
import time
from array import array
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, Self

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.api.roles import JudgeSpec, RolloutSpec
from rstar2_train.api.stages import Sampling
from rstar2_train.inference.sampled_turn import SampledTurn
from rstar2_train.judge.types import CallResult, ReturnedFile
from rstar2_train.rollout.chat_format import INLINE_CHARACTERS, INLINE_TOKENS, ChatFormat
from rstar2_train.rollout.trajectory import Segment, StopReason, ToolCall, Trajectory
from rstar2_train.tools.parser import ParsedCall, parse_calls, render_fault, render_result
from rstar2_train.tools.toolset import Tool, Toolset
from rstar2_train.utils.text import replace_surrogates


class ToolExecutor(Protocol):
    """Executes a program: a judge client, or an adapter in front of it."""

    def run(self, code: str, stdin: str = "", *, limits: JudgeLimits | None = None) -> Coroutine[Any, Any, CallResult]:
        """Execute it. Raises on an infrastructure failure; a failure of the program is a result."""


class RemoteCalls(Protocol):
    """Calls the tools of servers."""

    @property
    def opening(self) -> str:
        """Text of the environment before the first turn; empty: none."""

    @property
    def done(self) -> bool:
        """Whether the environment has ended the episode."""

    def call(self, tool: Tool, arguments: str, *, limits: JudgeLimits) -> Coroutine[Any, Any, CallResult]:
        """Call a tool with checked arguments (JSON). Raises ServerLost on an infrastructure failure."""


class TokenGenerator(Protocol):
    """Samples the next turn."""

    def __call__(self, token_ids: Sequence[int], *, max_tokens: int, turn: int) -> Awaitable[SampledTurn]:
        """Sample at most `max_tokens` after `token_ids`."""


class AgentSettings(Protocol):
    """The parts of a job's spec, or of a served model, that the agent loop reads."""

    @property
    def rollout(self) -> RolloutSpec:
        """Limits of tool responses and calls."""
        ...

    @property
    def judge(self) -> JudgeSpec:
        """Limits of a call."""
        ...


OnCalls = Callable[[Sequence[ToolCall]], Awaitable[None]]
"""Called with the finished calls of one turn."""


_MEDIA_TYPES = mimetypes.MimeTypes(filenames=())
"""Media types by the suffix of a name, without the files of this machine: rollouts have the same text anywhere."""


def describe_files(files: Sequence[ReturnedFile], *, limit: int) -> str:
    """Return the lines of a tool response for the files that a call returns; empty without files. `limit`: in bytes."""
    lines = []
    for file in files:
        kind = _MEDIA_TYPES.guess_type(file.name)[0] or "application/octet-stream"
        note = "" if file.content is not None else f", not returned: the limit of a call is {limit} bytes"
        lines.append(f"\n[file {file.name}: {kind}, {file.size} bytes{note}]")
    return "".join(lines)


def _declared_call(call: ParsedCall, turn: int) -> ToolCall:
    """Return a call of a function that the row declares: it is not run."""
    status = call.fault or "ok"
    response = render_fault(call) if call.fault else ""
    return ToolCall(turn=turn, name=call.name, code=call.code, stdin="", status=status, response=response)


async def _run_all(calls: Sequence[ParsedCall], run: Callable[[ParsedCall], Awaitable[ToolCall]]) -> list[ToolCall]:
    """Run the calls of a turn, concurrently if several are valid; return them in their order."""
    if sum(not call.fault for call in calls) > 1:
        return await asyncio.gather(*map(run, calls))
    return [await run(call) for call in calls]  # the others do not run, and need no tasks


@dataclass(frozen=True, slots=True)
class Agent:
    """The settings of the agent loop; shared by all trajectories of a set."""

    chat_format: ChatFormat
    sampling: Sampling
    rollout: RolloutSpec
    limits: JudgeLimits
    row_tools: Toolset | None = None
    """Tools that the row of data allows; None: all tools of the job."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Files of the row, which its function tools read."""

    @classmethod
    def from_spec(cls, spec: AgentSettings, chat_format: ChatFormat, sampling: Sampling) -> Self:
        """Return the agent loop of a job, or of a served model."""
        limits = JudgeLimits.from_spec(spec.judge.limits)
        return cls(chat_format=chat_format, sampling=sampling, rollout=spec.rollout, limits=limits)

    @property
    def tools(self) -> Toolset:
        """Tools that the model may call."""
        return self.chat_format.tools if self.row_tools is None else self.row_tools

    async def run(
        self,
        trajectory: Trajectory,
        *,
        generate: TokenGenerator,
        executor: ToolExecutor,
        remote: RemoteCalls | None = None,
        on_calls: OnCalls | None = None,
    ) -> str:
        """Run the loop and fill in `trajectory`, which has its prompt. Return the text that the model wrote.

        `remote`: calls the tools of servers; a job without such tools needs none. The first observation of an
        environment is the response to an empty turn that the model did not write. If the environment ends the episode,
        the stop reason is `done`, and its last observation is not appended.
        `on_calls`: called with the calls of a turn when all of them have finished, for example to stream them.

        The budget `sampling.max_response_tokens` includes tool output. Tool output that would exhaust it is not
        appended (stop reason `tool_overflow`). The calls of the last allowed turn are not run (`max_turns`). Calls of
        functions that the row declares are not run either: they are the answer.
        """
        budget = self.sampling.max_response_tokens
        ids = trajectory.prompt_ids[:]
        model_text: list[str] = []
        display_text: list[str] = []
        stop: StopReason | None = None
        if remote is not None and remote.opening:
            opening = await self._response(remote.opening)
            stop = await self._append_reply(trajectory, ids, display_text, [opening], started=time.monotonic())
        while stop is None:
            started = time.monotonic()
            remaining = budget - (len(ids) - len(trajectory.prompt_ids))
            turn = await generate(ids, max_tokens=remaining, turn=trajectory.turns)
            trajectory.turns += 1
            trajectory.segments.append(Segment.sampled(turn, seconds=time.monotonic() - started))
            ids.extend(turn.token_ids)
            text, calls = await self._read_turn(turn)
            model_text.append(text)
            display_text.append(text)
            if turn.finish_reason != "stop":
                stop = "length"
            elif not calls:
                stop = "answered"
            elif self.tools.is_declared:
                trajectory.calls += [_declared_call(call, trajectory.turns - 1) for call in calls]
                stop = "answered"
            elif trajectory.turns >= self.sampling.max_turns:
                stop = "max_turns"
            else:
                started = time.monotonic()
                run = partial(self._run_call, turn=trajectory.turns - 1, executor=executor, remote=remote)
                results = await _run_all(calls, run)
                trajectory.calls += results
                if on_calls is not None:
                    await on_calls(results)
                if remote is not None and remote.done:
                    stop = "done"
                else:
                    responses = [call.response for call in results]
                    stop = await self._append_reply(trajectory, ids, display_text, responses, started=started)
        trajectory.stop = stop
        trajectory.text = "".join(display_text)
        return "\n".join(model_text)

    async def _read_turn(self, turn: SampledTurn) -> tuple[str, list[ParsedCall]]:
        """Return the text of a sampled turn, and its calls; a truncated turn has none."""

        def read() -> tuple[str, list[ParsedCall]]:
            text = self.chat_format.model_text(turn.token_ids)
            if turn.finish_reason != "stop":
                return text, []
            return text, parse_calls(text, max_calls=self.rollout.max_calls_per_turn, tools=self.tools)

        return read() if len(turn.token_ids) <= INLINE_TOKENS else await asyncio.to_thread(read)

    async def _append_reply(
        self,
        trajectory: Trajectory,
        ids: array[int],
        display_text: list[str],
        responses: Sequence[str],
        *,
        started: float,
    ) -> StopReason | None:
        """Append the turn with tool responses; return a stop reason if the loop ends here.

        `started`: start of the turn (monotonic).
        """
        reply, reply_ids = await self._reply(responses)
        if not trajectory.turns:  # the first observation answers an empty turn
            reply_ids.insert(0, self.chat_format.end_of_turn_id)
        if len(ids) - len(trajectory.prompt_ids) + len(reply_ids) >= self.sampling.max_response_tokens:
            return "tool_overflow"
        trajectory.segments.append(Segment(kind="tool", token_ids=reply_ids, seconds=time.monotonic() - started))
        ids.extend(reply_ids)
        display_text += [self.chat_format.end_of_turn, reply]
        return None

    async def _run_call(
        self, call: ParsedCall, turn: int, executor: ToolExecutor, remote: RemoteCalls | None
    ) -> ToolCall:
        """Execute a call. An invalid call is not executed; its response is the error."""
        if call.fault:
            response = await self._response(render_fault(call))
            return ToolCall(
                turn=turn, name=call.name, code=call.code, stdin=call.stdin, status=call.fault, response=response
            )
        tool = self.tools.by_name[call.name]
        limits = tool.limits(self.limits)
        if tool.server:
            assert remote is not None
            result = await remote.call(tool, call.code, limits=limits)
        else:
            result = await executor.run(*tool.snippet(call.code, call.stdin, self.files), limits=limits)
        output = render_result(
            status=result.status,
            stdout=result.stdout,
            stderr=result.stderr,
            exit_code=result.exit_code,
            wall_seconds=limits.wall_seconds,
        )
        return ToolCall(
            turn=turn,
            name=call.name,
            code=call.code,
            stdin=call.stdin,
            status=result.status,
            response=await self._response(output + describe_files(result.files, limit=limits.file_bytes)),
            queue_seconds=result.queue_seconds,
            run_seconds=result.run_seconds,
            files=result.files,
        )

    async def _response(self, output: str) -> str:
        """Return tool output as the model receives it: cut to `tool_response_tokens`, without surrogates."""

        def cut() -> str:
            return self.chat_format.cut_middle(replace_surrogates(output), limit=self.rollout.tool_response_tokens)

        return cut() if len(output) <= INLINE_CHARACTERS else await asyncio.to_thread(cut)

    async def _reply(self, responses: Sequence[str]) -> tuple[str, array[int]]:
        """Return the text and the tokens of the turn that answers a turn's calls."""

        def encode() -> tuple[str, array[int]]:
            text = self.chat_format.tool_turn_text(responses)
            return text, array("i", self.chat_format.encode_reply(text))

        return encode() if sum(map(len, responses)) <= INLINE_CHARACTERS else await asyncio.to_thread(encode)
