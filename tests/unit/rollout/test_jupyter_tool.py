"""The tool jupyter_code: its calls are cells of one session; only a cell can end the session."""

import asyncio
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.judge.types import CallResult, JudgeUnavailable
from rstar2_train.rollout.default_prompts import default_system_prompt
from rstar2_train.rollout.jupyter_tool import KERNEL_RESTARTED, JupyterTool
from rstar2_train.tools.parser import ParsedCall, parse_calls
from rstar2_train.tools.schema import JUPYTER, TOOL_NAME
from rstar2_train.tools.toolset import builtin_toolset


class FakeJudge:
    """Replaces JudgeClient: the code of a cell is its status. Counts the sessions."""

    def __init__(self) -> None:
        self.opened = self.closed = self.running = 0
        self.cells: list[str] = []

    async def run(self, code: str, stdin: str = "", *, limits: JudgeLimits | None = None) -> CallResult:
        raise AssertionError("the tool makes no calls outside a session")

    @asynccontextmanager
    async def session(self):
        self.opened += 1
        try:
            yield FakeSession(self)
        finally:
            self.closed += 1


class FakeSession:
    def __init__(self, judge: FakeJudge) -> None:
        self.judge = judge

    async def run(self, code: str, *, limits: JudgeLimits | None = None) -> CallResult:
        assert self.judge.running == 0
        self.judge.running += 1
        await asyncio.sleep(0)
        self.judge.running -= 1
        self.judge.cells.append(code)
        status = code if code in ("timeout", "session_lost") else "ok"
        return CallResult(status, stdout=f"{code}\n", session_lives=status == "ok")


async def test_jupyter_tool_runs_calls_in_one_session() -> None:
    """Concurrent calls run one after another, in order, in one session that is closed at the end."""
    judge: Any = FakeJudge()
    async with JupyterTool(judge) as tool:
        await asyncio.gather(*(tool.run(str(n)) for n in range(5)))
        assert (judge.opened, judge.closed) == (1, 0)
    assert (judge.cells, judge.closed) == (["0", "1", "2", "3", "4"], 1)


async def test_jupyter_tool_without_calls_opens_no_session() -> None:
    """A trajectory without calls opens no session."""
    judge: Any = FakeJudge()
    async with JupyterTool(judge):
        pass
    assert judge.opened == 0


async def test_jupyter_tool_reopens_a_session_ended_by_a_cell() -> None:
    """After a cell ended the session, the first output of the new session informs the model."""
    judge: Any = FakeJudge()
    async with JupyterTool(judge) as tool:
        assert (await tool.run("1")).stdout == "1\n"
        assert (await tool.run("timeout")).status == "timeout"
        assert (await tool.run("2")).stdout == KERNEL_RESTARTED + "2\n"
        assert (await tool.run("3")).stdout == "3\n"
    assert (judge.opened, judge.closed) == (2, 2)


async def test_jupyter_tool_lost_session_raises() -> None:
    """A session that the judge lost is an infrastructure failure."""
    judge: Any = FakeJudge()
    async with JupyterTool(judge) as tool:
        with pytest.raises(JudgeUnavailable, match="session was lost"):
            await tool.run("session_lost")
    assert judge.closed == 1


def test_jupyter_code_call_and_signature() -> None:
    """The tool is called by its own name, takes no input, and is in the system prompt."""
    call = '<tool_call>\n{"name": "jupyter_code", "arguments": {"code": "x"}}\n</tool_call>'
    assert parse_calls(call, max_calls=1, tools=builtin_toolset(JUPYTER)) == [ParsedCall(name=JUPYTER, code="x")]
    assert parse_calls(call, max_calls=1)[0].fault == "unknown_tool"
    with_input = call.replace('"x"}', '"x", "input": ""}')
    assert parse_calls(with_input, max_calls=1, tools=builtin_toolset(JUPYTER))[0].detail == "unknown argument 'input'"
    prompt = default_system_prompt(builtin_toolset(JUPYTER))
    assert f'"{JUPYTER}"' in prompt and TOOL_NAME not in prompt
