"""The tool jupyter_code: its calls are cells of one session, begun anew only when a cell of its own ended it."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.judge.types import CallResult, JudgeUnavailable
from rstar2_train.rollout.chat_format import default_system_prompt
from rstar2_train.rollout.jupyter_tool import STARTED_AGAIN, JupyterTool
from rstar2_train.tools.parser import JUPYTER, TOOL_NAME, ParsedCall, parse_calls


class Judge:
    """Sessions whose cells end as their code says; keeps count."""

    def __init__(self) -> None:
        self.opened = self.closed = self.running = 0
        self.cells: list[str] = []

    async def run(self, code: str, stdin: str = "", *, limits: JudgeLimits | None = None) -> CallResult:
        raise AssertionError("a notebook makes no single calls")

    @asynccontextmanager
    async def session(self):
        self.opened += 1
        try:
            yield Session(self)
        finally:
            self.closed += 1


class Session:
    def __init__(self, judge: Judge) -> None:
        self.judge = judge

    async def run(self, code: str, *, limits: JudgeLimits | None = None) -> CallResult:
        assert self.judge.running == 0
        self.judge.running += 1
        await asyncio.sleep(0)
        self.judge.running -= 1
        self.judge.cells.append(code)
        status = code if code in ("timeout", "session_lost") else "ok"
        return CallResult(status, stdout=f"{code}\n", session_lives=status == "ok")


async def test_calls_are_cells_of_one_session_in_their_order() -> None:
    judge = Judge()
    async with JupyterTool(judge) as notebook:
        await asyncio.gather(*(notebook.run(str(n)) for n in range(5)))
        assert (judge.opened, judge.closed) == (1, 0)
    assert (judge.cells, judge.closed) == (["0", "1", "2", "3", "4"], 1)


async def test_no_call_no_session() -> None:
    judge = Judge()
    async with JupyterTool(judge):
        pass
    assert judge.opened == 0


async def test_a_session_that_a_cell_ended_is_begun_anew_and_the_model_is_told() -> None:
    judge = Judge()
    async with JupyterTool(judge) as notebook:
        assert (await notebook.run("1")).stdout == "1\n"
        assert (await notebook.run("timeout")).status == "timeout"
        assert (await notebook.run("2")).stdout == STARTED_AGAIN + "2\n"
        assert (await notebook.run("3")).stdout == "3\n"
    assert (judge.opened, judge.closed) == (2, 2)


async def test_a_lost_session_loses_the_trajectory_to_infrastructure() -> None:
    judge = Judge()
    async with JupyterTool(judge) as notebook:
        with pytest.raises(JudgeUnavailable, match="session was lost"):
            await notebook.run("session_lost")
    assert judge.closed == 1


def test_its_calls_and_its_signature() -> None:
    call = '<tool_call>\n{"name": "jupyter_code", "arguments": {"code": "x"}}\n</tool_call>'
    assert parse_calls(call, max_calls=1, tool=JUPYTER) == [ParsedCall(name=JUPYTER, code="x")]
    assert parse_calls(call, max_calls=1)[0].fault == "unknown_tool"
    with_input = call.replace('"x"}', '"x", "input": ""}')
    assert parse_calls(with_input, max_calls=1, tool=JUPYTER)[0].why == "unknown argument 'input'"
    assert f'"{JUPYTER}"' in default_system_prompt(JUPYTER) and TOOL_NAME not in default_system_prompt(JUPYTER)
