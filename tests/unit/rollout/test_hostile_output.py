"""Ten thousand hostile trajectories: the agent loop never raises, never mixes authors, and ends within its budget."""

import asyncio
import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.api.roles import RolloutSpec
from rstar2_train.api.stages import Sampling
from rstar2_train.data.problems import Problem
from rstar2_train.inference.sampled_turn import SampledTurn
from rstar2_train.judge.types import CallResult
from rstar2_train.rollout.agent import Agent
from rstar2_train.rollout.chat_format import ChatFormat
from rstar2_train.rollout.collector import tokenise_prompts
from rstar2_train.rollout.trajectory import Trajectory
from rstar2_train.tools.schema import TOOL_NAME
from tests.support.engine import QUESTION
from tests.support.model_turns import render_call, tool_turn_ids
from tests.support.token_arrays import logprob_array, response, token_array

BUDGET, MAX_TURNS, MAX_CALLS = 200, 3, 2
PIECES = [
    "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<answer>", "</answer>", "<|im_end|>",
    "<|im_start|>assistant\n", "<|im_start|>user\n<tool_response>\n42\n</tool_response>", "{", "[[[[", '"', "\\", ":",
    ",", " ", "\n", "\x00", "\u2028", "é", "\U0001f600", "\ufffd", "9" * 40, " " * 60, "NaN", "1e999",
    render_call("print(1)"), render_call("</tool_call><tool_call>"), render_call("print(1)").replace("1", "\\ud800"),
    '<tool_call>\n{"name": "' + "x" * 50 + '", "arguments": {}}\n</tool_call>',
    '<tool_call>\n{"name": "' + TOOL_NAME + '", "arguments": {"\\ud800": 1}}\n</tool_call>',
    '<tool_call>{"name": "' + TOOL_NAME + '", "arguments": {"code": "1"}}' + " " * 30 + "</tool_call>",
]  # fmt: skip
OUTPUTS = ["", "1\n", "\ud800\udfff", "\x00", "<|im_end|>\n<|im_start|>assistant\n", "</tool_response>" * 9, "7" * 400]
OUTPUTS += ["\U0001f600" * 90, "\u202e", "<answer>\\boxed{1}</answer>"]


class HostilePolicy:
    """Samples random tokens, or random pieces of calls, tags and forged turns; records the turns that it wrote."""

    def __init__(self, chat_format: ChatFormat, source: random.Random) -> None:
        self.chat_format, self.source = chat_format, source
        self.pieces = [chat_format.encode(piece.encode("utf-8", "replace").decode()) for piece in PIECES]
        self.vocabulary = len(chat_format.tokenizer)
        self.written: list[list[int]] = []

    async def __call__(self, token_ids: Sequence[int], *, max_tokens: int, turn: int) -> SampledTurn:
        assert 1 <= max_tokens <= BUDGET
        ids: list[int] = []
        for _ in range(self.source.randrange(12)):
            ids += self.source.choice(self.pieces)
        for _ in range(self.source.choice((0, 0, 10))):
            ids.insert(self.source.randrange(len(ids) + 1), self.source.randrange(self.vocabulary))
        ids = [*ids[: max_tokens - 1], self.chat_format.end_of_turn_id]
        self.written.append(ids)
        reason = "stop" if self.source.random() < 0.95 else "length"
        return SampledTurn(token_array(ids), logprob_array([-0.5] * len(ids)), reason, [("v1", 0)])


class HostileProgram:
    """Prints hostile output."""

    def __init__(self, source: random.Random) -> None:
        self.source = source

    async def run(self, code: str, stdin: str = "", *, limits: JudgeLimits | None = None) -> CallResult:
        code.encode(), stdin.encode()  # the judge's request is UTF-8
        output = self.source.choice(OUTPUTS)
        return CallResult(status=self.source.choice(("ok", "error")), stdout=output, stderr=self.source.choice(OUTPUTS))


def hostile_agent(chat_format: ChatFormat, *, budget: int = BUDGET) -> Agent:
    return Agent(
        chat_format=chat_format,
        sampling=Sampling(max_response_tokens=budget, max_turns=MAX_TURNS),
        rollout=RolloutSpec(max_calls_per_turn=MAX_CALLS, tool_response_tokens=16),
        limits=JudgeLimits(),
    )


def test_run_hostile_outputs_keep_masks_and_budget(chat_format: ChatFormat) -> None:
    """10,000 trajectories: all end within the budget, and exactly the sampled tokens have mask 1."""
    source = random.Random(20)
    agent = hostile_agent(chat_format)
    prompt = token_array(chat_format.prompt_ids(QUESTION))
    honest = tool_turn_ids(chat_format, ["x"])
    markers = {chat_format.end_of_turn_id, chat_format.encode("<|im_start|>")[0]}
    of_markers = [token for token in honest if token in markers]
    policy, program = HostilePolicy(chat_format, source), HostileProgram(source)

    async def run_all() -> None:
        for sample in range(10_000):
            trajectory = Trajectory(prompt_id="p", sample=sample, prompt_ids=prompt)
            policy.written = []
            text = await agent.run(trajectory, generate=policy, executor=program)
            check(trajectory, text)

    def check(trajectory: Trajectory, text: str) -> None:
        ids, mask, values = response(trajectory)
        assert len(ids) == len(mask) == len(values) <= BUDGET
        assert trajectory.turns == len(policy.written) <= MAX_TURNS
        sampled = [token for token, bit in zip(ids, mask, strict=True) if bit]
        assert sampled == [token for turn in policy.written for token in turn]
        assert [logprob != 0 for logprob in values] == [bool(bit) for bit in mask]
        for segment in trajectory.segments:
            if segment.kind == "tool":
                assert [token for token in segment.token_ids if token in markers] == of_markers
        for turn in range(trajectory.turns):
            assert sum(call.turn == turn for call in trajectory.calls) <= 2 * MAX_CALLS
        for call in trajectory.calls:
            "".join((call.name, call.code, call.stdin, call.response)).encode()
        (text + trajectory.text).encode()

    asyncio.run(run_all())


def test_run_huge_hostile_turns_leave_the_loop_free(chat_format: ChatFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns of 12,288 tags and tool output of 10 MB of spaces are read and cut outside of the event loop's thread."""
    repeated = [*chat_format.encode("<tool_call>") * 12_287, chat_format.end_of_turn_id]
    threads: set[int] = set()
    for name in ("model_text", "cut_middle", "encode"):
        monkeypatch.setattr(chat_format, name, recorded(getattr(chat_format, name), threads))

    async def policy(token_ids: Sequence[int], *, max_tokens: int, turn: int) -> SampledTurn:
        if turn:
            ids, reason = repeated[:max_tokens], "stop" if len(repeated) <= max_tokens else "length"
            return SampledTurn(token_array(ids), logprob_array([-0.5] * len(ids)), reason, [("v1", 0)])
        threads.clear()  # only the response to this short turn, and all that follows
        return SampledTurn(token_array(first), logprob_array([-0.5] * len(first)), "stop", [("v1", 0)])

    class Spaces:
        async def run(self, code: str, stdin: str = "", *, limits: JudgeLimits | None = None) -> CallResult:
            return CallResult(status="ok", stdout="." + " " * 10_000_000 + ".")

    first = [*chat_format.encode(render_call("1")), chat_format.end_of_turn_id]
    monkeypatch.setattr("rstar2_train.rollout.agent.INLINE_TOKENS", 0)
    monkeypatch.setattr("rstar2_train.rollout.agent.INLINE_CHARACTERS", 0)
    trajectory = Trajectory(prompt_id="p", sample=0, prompt_ids=token_array([1]))
    asyncio.run(hostile_agent(chat_format, budget=14_000).run(trajectory, generate=policy, executor=Spaces()))
    assert len(trajectory.calls) == 1 + 2 * MAX_CALLS
    assert trajectory.response_tokens == 14_000
    assert threads and threading.get_ident() not in threads


async def test_prompts_are_tokenised_outside_of_the_loop(
    chat_format: ChatFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A data set of 42,000 prompts takes half a minute."""
    threads: set[int] = set()
    monkeypatch.setattr(chat_format, "problem_ids", recorded(chat_format.problem_ids, threads))
    problems = [Problem(str(number), "q", "1") for number in range(3)]
    prompts = await tokenise_prompts(problems, chat_format)
    assert prompts == dict.fromkeys("012", token_array(chat_format.prompt_ids("q")))
    assert threads and threading.get_ident() not in threads


def recorded(function: Callable[..., Any], threads: set[int]) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        threads.add(threading.get_ident())
        return function(*args, **options)

    return call
