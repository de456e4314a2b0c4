"""The agent loop on scripted turns: tokens, mask, counts and stop reasons."""

import asyncio
import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.api.roles import RolloutSpec
from rstar2_train.api.stages import Sampling
from rstar2_train.api.tasks import ToolSpec
from rstar2_train.data.problems import Problem
from rstar2_train.inference.sampled_turn import SampledTurn
from rstar2_train.judge.types import CallResult
from rstar2_train.rollout.agent import Agent
from rstar2_train.rollout.chat_format import ChatFormat
from rstar2_train.rollout.collector import row_agent
from rstar2_train.rollout.trajectory import ToolCall, Trajectory
from rstar2_train.tools.schema import TOOL_NAME, call_text
from rstar2_train.tools.toolset import load_toolset
from tests.support.engine import FIRST_REPLY, FIRST_TURN, LAST_TURN, QUESTION
from tests.support.model_turns import render_call, tool_turn_ids
from tests.support.token_arrays import logprob_array, response, token_array


@dataclass
class Script:
    """Samples the given turns: each a complete text, or (text, "length") for a truncated turn."""

    chat_format: ChatFormat
    turns: list[str | tuple[str, Literal["length"]]]
    requests: list[tuple[list[int], int]] = field(default_factory=list)

    async def __call__(self, token_ids: Sequence[int], *, max_tokens: int, turn: int) -> SampledTurn:
        assert turn == len(self.requests)
        self.requests.append((list(token_ids), max_tokens))
        scripted = self.turns[turn]
        ids = self.chat_format.encode(scripted if isinstance(scripted, str) else scripted[0])
        finished = isinstance(scripted, str)
        ids = [*ids, self.chat_format.end_of_turn_id] if finished else ids[:max_tokens]
        return SampledTurn(
            token_array(ids), logprob_array([-0.5] * len(ids)), "stop" if finished else "length", [("v1", 0)]
        )


@dataclass
class Calculator:
    """Evaluates an expression inside print(); records the largest number of concurrent calls."""

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
    chat_format: ChatFormat, turns: list, *, tokens: int = 500, most_turns: int = 10, **rollout: int
) -> tuple[Trajectory, str, Script, Calculator]:
    agent = Agent(
        chat_format=chat_format,
        sampling=Sampling(max_response_tokens=tokens, max_turns=most_turns),
        rollout=RolloutSpec(**rollout),
        limits=JudgeLimits(wall_seconds=2),
    )
    script, calculator = Script(chat_format, turns), Calculator()
    trajectory = Trajectory(prompt_id="p", sample=0, prompt_ids=token_array(chat_format.prompt_ids(QUESTION)))
    written = asyncio.run(agent.run(trajectory, generate=script, executor=calculator))
    return trajectory, written, script, calculator


def test_run_trajectory_equals_its_demonstration(chat_format: ChatFormat) -> None:
    """A trajectory with tool calls has the tokens, mask and counts of the demonstration of the same conversation."""
    trajectory, written, script, calculator = run(chat_format, [FIRST_TURN, LAST_TURN])
    question = [{"role": "user", "content": QUESTION}]
    replies = [{"role": "tool", "content": text} for text in FIRST_REPLY]
    turns = [{"role": "assistant", "content": FIRST_TURN}, *replies, {"role": "assistant", "content": LAST_TURN}]
    whole = chat_format.encode_conversation([*chat_format.prompt_messages(QUESTION)[:-1], *question, *turns])
    ids, mask, values = response(trajectory)
    assert [*trajectory.prompt_ids, *ids] == whole.token_ids
    assert [0] * len(trajectory.prompt_ids) + mask == whole.mask
    assert values == [-0.5 * bit for bit in mask]
    assert (trajectory.stop, trajectory.turns, written) == ("answered", 2, f"{FIRST_TURN}\n{LAST_TURN}")
    assert [(call.status, call.response) for call in trajectory.calls] == list(
        zip(["ok", "malformed", "ok"], FIRST_REPLY, strict=True)
    )
    assert [call.turn for call in trajectory.calls] == [0, 0, 0]
    assert calculator.most == 2  # the valid calls run concurrently
    assert {limits.wall_seconds for _, _, limits in calculator.seen if limits} == {2}
    assert [segment.kind for segment in trajectory.segments] == ["model", "tool", "model"]
    assert [segment.weight_version for segment in trajectory.segments] == ["v1", "", "v1"]
    # The next prompt is the sampled ids unchanged; each token after the prompt reduces the budget.
    kept = len(ids) - len(trajectory.segments[2].token_ids)
    assert list(script.requests[1][0]) == [*trajectory.prompt_ids, *ids[:kept]]
    assert script.requests[0][1] == 500
    assert script.requests[1][1] == 500 - sum(len(segment.token_ids) for segment in trajectory.segments[:2])
    assert FIRST_TURN in trajectory.text and LAST_TURN in trajectory.text and "<tool_response>" in trajectory.text


def test_run_truncated_turn_runs_no_calls(chat_format: ChatFormat) -> None:
    """The calls of a turn that the token budget truncated are not run."""
    trajectory, _, _, calculator = run(chat_format, [(render_call("print(1)"), "length")])
    assert (trajectory.stop, trajectory.calls, calculator.seen) == ("length", [], [])
    assert trajectory.truncated


def test_run_last_turn_calls_are_not_run(chat_format: ChatFormat) -> None:
    """The calls of the last allowed turn are not run."""
    trajectory, _, _, calculator = run(chat_format, [render_call("print(1)"), render_call("print(2)")], most_turns=2)
    assert (trajectory.stop, trajectory.turns) == ("max_turns", 2)
    assert [code for code, _, _ in calculator.seen] == ["print(1)"]


def test_run_tool_overflow_is_not_appended(chat_format: ChatFormat) -> None:
    """Tool output that would exhaust the budget is not appended; with one more token it is."""
    call = render_call("print('9' * 400)")
    written = len(chat_format.encode(call)) + 1
    reply = len(tool_turn_ids(chat_format, ["9" * 400]))
    over, _, _, _ = run(chat_format, [call, LAST_TURN], tokens=written + reply)
    assert (over.stop, len(over.segments), len(over.calls)) == ("tool_overflow", 1, 1)
    fits, _, script, _ = run(chat_format, [call, (LAST_TURN, "length")], tokens=written + reply + 1)
    assert (fits.stop, script.requests[1][1], fits.response_tokens) == ("length", 1, written + reply + 1)


def test_run_clips_long_tool_output(chat_format: ChatFormat) -> None:
    """Long tool output is cut in the middle, by its tokens."""
    trajectory, *_ = run(chat_format, [render_call("print('9' * 400)"), LAST_TURN], tool_response_tokens=10)
    head, note, tail = trajectory.calls[0].response.split("\n")
    assert len(chat_format.encode(head)) == len(chat_format.encode(tail)) == 5
    assert note == f"...({400 - len(head) - len(tail)} characters left out)..."


def test_run_counts_faults_and_failures(chat_format: ChatFormat) -> None:
    """Invalid calls and failed calls have a response, and both count as tool errors."""
    turn = "\n".join([render_call("sleep"), '<tool_call>\n{"name": "search", "arguments": {}}\n</tool_call>'])
    trajectory, *_ = run(chat_format, [turn + render_call("print(1)"), LAST_TURN], max_calls_per_turn=2)
    assert [call.status for call in trajectory.calls] == ["timeout", "unknown_tool", "malformed"]
    assert [call.response for call in trajectory.calls] == [
        "error: timed out after 2 s",
        "error: unknown tool 'search'",
        "error: invalid tool call: more than 2 calls in one turn",
    ]
    assert (trajectory.call_errors, trajectory.stop) == (3, "answered")


@pytest.mark.parametrize("text", ["", "no tag at all", "<answer>\\boxed{1}</answer> and more"])
def test_run_turn_without_calls_is_the_answer(chat_format: ChatFormat, text: str) -> None:
    """A turn without tool calls ends the trajectory, with or without an answer tag."""
    trajectory, written, *_ = run(chat_format, [text])
    assert (trajectory.stop, written, trajectory.turns) == ("answered", text, 1)


def test_run_passes_finished_calls_to_on_calls(chat_format: ChatFormat) -> None:
    """`on_calls` receives the calls of a turn before the next turn is sampled."""
    agent = Agent(
        chat_format=chat_format, sampling=Sampling(max_response_tokens=500), rollout=RolloutSpec(), limits=JudgeLimits()
    )
    trajectory = Trajectory(prompt_id="p", sample=0, prompt_ids=token_array(chat_format.prompt_ids(QUESTION)))
    script, passed = Script(chat_format, [FIRST_TURN, LAST_TURN]), []

    async def on_calls(calls: Sequence[ToolCall]) -> None:
        assert len(script.requests) == 1, "the next turn waits for on_calls"
        passed.append([call.response for call in calls])

    asyncio.run(agent.run(trajectory, generate=script, executor=Calculator(), on_calls=on_calls))
    assert passed == [FIRST_REPLY]


def test_run_row_tools_and_files_reach_the_program(chat_format: ChatFormat, tmp_path: Path) -> None:
    """A row's call runs the function with the row's files and the tool's limits; a tool that it forbids is unknown."""
    (tmp_path / "store.py").write_text("def query(sql: str) -> str:\n    'Runs a query.'\n    return sql\n")
    (tmp_path / "a.txt").write_bytes(b"content")
    specs = [ToolSpec(name="query", source=str(tmp_path / "store.py"), timeout_seconds=9), ToolSpec(name=TOOL_NAME)]
    own = ChatFormat(chat_format.tokenizer, system_prompt="Use them.\n{tools}", tools=load_toolset(specs))
    problem = Problem("p", "q", "a", tools=("query",), files=(("a.txt", str(tmp_path / "a.txt")),))
    agent = Agent(chat_format=own, sampling=Sampling(), rollout=RolloutSpec(), limits=JudgeLimits(wall_seconds=2))
    prompt = own.prompt_ids("q", tools=problem.tools)
    text = own.decode(prompt)
    assert '"query"' in text and TOOL_NAME not in text and TOOL_NAME in own.decode(own.prompt_ids("q"))
    turns = [call_text("query", {"sql": "x"}) + render_call("print(1)") + call_text("query", {"sql": 1}), LAST_TURN]
    recorder = Recorder()
    trajectory = Trajectory(prompt_id="p", sample=0, prompt_ids=token_array(prompt))
    asyncio.run(row_agent(agent, problem).run(trajectory, generate=Script(own, turns), executor=recorder))
    assert [(call.name, call.status) for call in trajectory.calls] == [
        ("query", "ok"),
        (TOOL_NAME, "unknown_tool"),
        ("query", "malformed"),
    ]
    assert trajectory.calls[0].code == '{"sql": "x"}'
    ((stdin, limits),) = recorder.seen
    files = {"a.txt": base64.b64encode(b"content").decode()}
    assert json.loads(stdin) == {"arguments": {"sql": "x"}, "files": files} and limits.wall_seconds == 9


def test_run_declared_functions_are_the_answer(chat_format: ChatFormat) -> None:
    """Functions that a row declares are in its prompt and do not run: their calls end the rollout."""
    functions = [{"name": name, "description": "Adds.", "parameters": {"type": "object"}} for name in ("add", "mul")]
    problem = Problem("p", "Add.", "[]", functions=json.dumps(functions))
    own = ChatFormat(
        chat_format.tokenizer, system_prompt="Act.\n{tools}", tools=load_toolset([ToolSpec(name=TOOL_NAME)])
    )
    for form, head in ((own, "Act.\n"), (chat_format, "# Tools")):
        text = form.decode(form.problem_ids(problem))
        assert f"system\n{head}" in text and '"name": "mul"' in text and TOOL_NAME not in text and "boxed" not in text
    agent = Agent(chat_format=own, sampling=Sampling(max_turns=1), rollout=RolloutSpec(), limits=JudgeLimits())
    turn = call_text("add", {"a": [1, "x"]}) + call_text("sub", {}) + "<tool_call>\n{\n</tool_call>"
    trajectory = Trajectory(prompt_id="p", sample=0, prompt_ids=own.problem_ids(problem))
    recorder = Recorder()
    asyncio.run(row_agent(agent, problem).run(trajectory, generate=Script(own, [turn]), executor=recorder))
    assert (trajectory.stop, trajectory.turns, recorder.seen) == ("answered", 1, [])
    assert [(call.name, call.code, call.status) for call in trajectory.calls] == [
        ("add", '{"a": [1, "x"]}', "ok"),
        ("sub", "", "unknown_tool"),
        ("", "", "malformed"),
    ]


def test_run_empty_functions_offer_no_tool(chat_format: ChatFormat) -> None:
    """A row with an empty list of functions has no tools in its prompt; a call is an error, and the model replies."""
    problem = Problem("p", "Add.", "[]", functions="[]")
    own = ChatFormat(
        chat_format.tokenizer, system_prompt="Act.\n{tools}", tools=load_toolset([ToolSpec(name=TOOL_NAME)])
    )
    for form, system in ((own, "Act."), (chat_format, "")):
        text = form.decode(form.problem_ids(problem))
        assert "tools>" not in text and "Add." in text and ("system\n" in text, system in text) == (bool(system), True)
    agent = Agent(chat_format=own, sampling=Sampling(), rollout=RolloutSpec(), limits=JudgeLimits())
    trajectory = Trajectory(prompt_id="p", sample=0, prompt_ids=own.problem_ids(problem))
    recorder = Recorder()
    script = Script(own, [call_text(TOOL_NAME, {"code": "1", "input": ""}), "No function helps."])
    asyncio.run(row_agent(agent, problem).run(trajectory, generate=script, executor=recorder))
    assert (trajectory.stop, trajectory.turns, recorder.seen) == ("answered", 2, [])
    assert [(call.status, call.response) for call in trajectory.calls] == [
        ("unknown_tool", f"error: unknown tool {TOOL_NAME!r}")
    ]


@dataclass
class Recorder:
    """Records standard input and limits of each call."""

    seen: list[tuple[str, JudgeLimits]] = field(default_factory=list)

    async def run(self, code: str, stdin: str = "", *, limits: JudgeLimits | None = None) -> CallResult:
        assert limits is not None
        self.seen.append((stdin, limits))
        return CallResult(status="ok", stdout="done\n")
