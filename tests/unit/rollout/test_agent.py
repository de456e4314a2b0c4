"""The agent loop on worked traces: what is appended, masked, counted, and why it stops."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import pytest

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.api.roles import RolloutSpec
from rstar2_train.api.stages import Sampling
from rstar2_train.inference.client import Generation
from rstar2_train.judge.types import CallResult
from rstar2_train.rollout.agent import Agent
from rstar2_train.rollout.chat_format import ChatFormat, render_call
from rstar2_train.rollout.trajectory import ToolCall, Trajectory
from tests.support.engine import FIRST_REPLY, FIRST_TURN, LAST_TURN, QUESTION


@dataclass
class Script:
    """Samples given turns: each a text that ends its turn, or (text, "length") for one that was cut off."""

    protocol: ChatFormat
    turns: list[str | tuple[str, Literal["length"]]]
    asked: list[tuple[list[int], int]] = field(default_factory=list)

    async def __call__(self, token_ids: Sequence[int], *, max_tokens: int, turn: int) -> Generation:
        assert turn == len(self.asked)
        self.asked.append((list(token_ids), max_tokens))
        said = self.turns[turn]
        ids = self.protocol.encode(said if isinstance(said, str) else said[0])
        finished = isinstance(said, str)
        ids = [*ids, self.protocol.end_of_turn_id] if finished else ids[:max_tokens]
        return Generation(ids, [-0.5] * len(ids), "stop" if finished else "length", "v1")


@dataclass
class Calculator:
    """Evaluates an expression inside print(); knows how many calls ran at once."""

    running: int = 0
    most: int = 0
    seen: list[tuple[str, str, JudgeLimits | None]] = field(default_factory=list)

    async def run(self, code: str, stdin: str = "", *, limits: JudgeLimits | None = None) -> CallResult:
        self.seen.append((code, stdin, limits))
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0.01)
        self.running -= 1
        if code == "sleep":
            return CallResult(status="timeout")
        return CallResult(
            status="ok", stdout=f"{eval(code.removeprefix('print'))}\n", queue_seconds=0.1, run_seconds=0.2
        )


def run(
    protocol: ChatFormat, turns: list, *, tokens: int = 500, most_turns: int = 10, **rollout: int
) -> tuple[Trajectory, str, Script, Calculator]:
    agent = Agent(
        chat_format=protocol,
        sampling=Sampling(max_response_tokens=tokens, max_turns=most_turns),
        rollout=RolloutSpec(**rollout),
        limits=JudgeLimits(wall_seconds=2),
    )
    script, calculator = Script(protocol, turns), Calculator()
    trajectory = Trajectory(prompt_id="p", sample=0, prompt_ids=protocol.prompt_ids(QUESTION))
    written = asyncio.run(agent.run(trajectory, generate=script, executor=calculator))
    return trajectory, written, script, calculator


def test_a_whole_trajectory_is_the_demonstration_of_it(protocol: ChatFormat) -> None:
    trajectory, written, script, calculator = run(protocol, [FIRST_TURN, LAST_TURN])
    question = [{"role": "user", "content": QUESTION}]
    told = [{"role": "tool", "content": text} for text in FIRST_REPLY]
    said = [{"role": "assistant", "content": FIRST_TURN}, *told, {"role": "assistant", "content": LAST_TURN}]
    whole = protocol.conversation([*protocol.prompt_messages(QUESTION)[:-1], *question, *said])
    ids, mask, logprobs = trajectory.response()
    assert trajectory.prompt_ids + ids == whole.token_ids
    assert [0] * len(trajectory.prompt_ids) + mask == whole.mask
    assert logprobs == [-0.5 * one for one in mask]
    assert (trajectory.stop, trajectory.turns, written) == ("answered", 2, f"{FIRST_TURN}\n{LAST_TURN}")
    assert [(one.status, one.response) for one in trajectory.calls] == list(
        zip(["ok", "malformed", "ok"], FIRST_REPLY, strict=True)
    )
    assert [one.turn for one in trajectory.calls] == [0, 0, 0]
    assert calculator.most == 2  # the good ones, at once
    assert {limits.wall_seconds for _, _, limits in calculator.seen if limits} == {2}
    assert [kind.kind for kind in trajectory.segments] == ["model", "tool", "model"]
    assert [one.weight_version for one in trajectory.segments] == ["v1", "", "v1"]
    # What was sampled goes back in as it was; the budget shrinks by every token behind the prompt.
    assert script.asked[1][0] == trajectory.prompt_ids + ids[: len(ids) - len(trajectory.segments[2].token_ids)]
    assert script.asked[0][1] == 500
    assert script.asked[1][1] == 500 - sum(len(one.token_ids) for one in trajectory.segments[:2])
    assert FIRST_TURN in trajectory.text and LAST_TURN in trajectory.text and "<tool_response>" in trajectory.text


def test_a_turn_that_is_cut_off_runs_nothing(protocol: ChatFormat) -> None:
    trajectory, _, _, calculator = run(protocol, [(render_call("print(1)"), "length")])
    assert (trajectory.stop, trajectory.calls, calculator.seen) == ("length", [], [])
    assert trajectory.truncated


def test_the_last_turns_calls_are_not_run(protocol: ChatFormat) -> None:
    trajectory, _, _, calculator = run(protocol, [render_call("print(1)"), render_call("print(2)")], most_turns=2)
    assert (trajectory.stop, trajectory.turns) == ("max_turns", 2)
    assert [code for code, _, _ in calculator.seen] == ["print(1)"]


def test_tool_output_that_would_use_up_the_budget_is_not_appended(protocol: ChatFormat) -> None:
    call = render_call("print('9' * 400)")
    written = len(protocol.encode(call)) + 1
    reply = len(protocol.tool_turn_ids(["9" * 400]))
    over, _, _, _ = run(protocol, [call, LAST_TURN], tokens=written + reply)
    assert (over.stop, len(over.segments), len(over.calls)) == ("tool_overflow", 1, 1)
    fits, _, script, _ = run(protocol, [call, (LAST_TURN, "length")], tokens=written + reply + 1)
    assert (fits.stop, script.asked[1][1], fits.response_tokens) == ("length", 1, written + reply + 1)


def test_long_output_is_cut_in_the_middle(protocol: ChatFormat) -> None:
    trajectory, *_ = run(protocol, [render_call("print('9' * 400)"), LAST_TURN], tool_response_tokens=10)
    assert trajectory.calls[0].response == f"{'9' * 20}\n...(360 characters left out)...\n{'9' * 20}"


def test_faults_and_failures_are_told_and_counted(protocol: ChatFormat) -> None:
    turn = "\n".join([render_call("sleep"), '<tool_call>\n{"name": "search", "arguments": {}}\n</tool_call>'])
    trajectory, *_ = run(protocol, [turn + render_call("print(1)"), LAST_TURN], max_calls_per_turn=2)
    assert [one.status for one in trajectory.calls] == ["timeout", "unknown_tool", "malformed"]
    assert [one.response for one in trajectory.calls] == [
        "error: timed out after 2 s",
        "error: unknown tool 'search'",
        "error: invalid tool call: more than 2 calls in one turn",
    ]
    assert (trajectory.call_errors, trajectory.stop) == (3, "answered")


@pytest.mark.parametrize("said", ["", "no tag at all", "<answer>\\boxed{1}</answer> and more"])
def test_a_turn_without_calls_ends_it(protocol: ChatFormat, said: str) -> None:
    trajectory, written, *_ = run(protocol, [said])
    assert (trajectory.stop, written, trajectory.turns) == ("answered", said, 1)


def test_the_calls_of_a_turn_are_told_when_they_are_done(protocol: ChatFormat) -> None:
    agent = Agent(
        chat_format=protocol, sampling=Sampling(max_response_tokens=500), rollout=RolloutSpec(), limits=JudgeLimits()
    )
    trajectory = Trajectory(prompt_id="p", sample=0, prompt_ids=protocol.prompt_ids(QUESTION))
    script, told = Script(protocol, [FIRST_TURN, LAST_TURN]), []

    async def tell(calls: Sequence[ToolCall]) -> None:
        assert len(script.asked) == 1, "the next turn waits until the calls were told"
        told.append([call.response for call in calls])

    asyncio.run(agent.run(trajectory, generate=script, executor=Calculator(), on_calls=tell))
    assert told == [FIRST_REPLY]
