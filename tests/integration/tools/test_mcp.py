"""Tools of real MCP servers on stdio and HTTP: answers, errors, limits, and servers that fail."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.api.roles import RolloutSpec
from rstar2_train.api.stages import Sampling
from rstar2_train.api.tasks import MCPServerSpec, RewardSpec, ToolSpec
from rstar2_train.data.problems import Problem
from rstar2_train.rewards.task_rewards import TaskRewards
from rstar2_train.rollout.agent import Agent
from rstar2_train.rollout.chat_format import ChatFormat
from rstar2_train.rollout.context import RolloutContext
from rstar2_train.rollout.trajectory import Trajectory
from rstar2_train.tools.mcp_session import McpSession, ServerLost
from rstar2_train.tools.sandbox_program import SourceError
from rstar2_train.tools.schema import call_text
from rstar2_train.tools.toolset import load_toolset
from tests.support.model_fixtures import chat_format, model_folder
from tests.support.rollout_groups import sample_groups
from tests.support.scripted_pool import ScriptedPool
from tests.support.servers import SUPPORT, running

__all__ = ["chat_format", "model_folder"]

LAST_TURN = "<answer>\\boxed{2}</answer>"
STDIO = MCPServerSpec(name="kit", command=[sys.executable, str(SUPPORT / "mcp_server.py"), "stdio"])


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The URL of the test server."""
    with running("mcp_server.py") as port:
        yield f"http://127.0.0.1:{port}/mcp"


async def sample(
    chat_format: ChatFormat, server: MCPServerSpec, calls: str, **tools: Any
) -> tuple[Trajectory, ScriptedPool]:
    """Run one rollout: a turn with these calls, then the answer 2. `tools`: fields of the tools by name."""
    specs = [ToolSpec(name=name, server="kit", **fields) for name, fields in tools.items()]
    own = ChatFormat(chat_format.tokenizer, system_prompt="{tools}", tools=load_toolset(specs, servers=[server]))
    pool: Any = ScriptedPool(own, lambda text, _: LAST_TURN if "<tool_response>" in text else calls)
    sampling = Sampling(max_response_tokens=4000)
    agent = Agent(chat_format=own, sampling=sampling, rollout=RolloutSpec(), limits=JudgeLimits(wall_seconds=20))
    judge: Any = None
    rewards = TaskRewards([RewardSpec(name="exact", type="Exact")])
    context = RolloutContext(agent=agent, pool=pool, judge=judge, seed=(1,), rewards=rewards)
    ((trajectory,),) = await sample_groups([Problem("p", "q", "2")], samples=1, context=context)
    return trajectory, pool


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_mcp_calls_have_responses_and_statuses(chat_format: ChatFormat, url: str, transport: str) -> None:
    """Results and tool errors reach the model; wrong arguments and unlisted tools never reach the server."""
    server = STDIO if transport == "stdio" else MCPServerSpec(name="kit", url=url)
    texts = [
        call_text("add", {"a": 1}),
        call_text("fail", {"reason": "no such row"}),
        call_text("add", {"a": "1"}),
        call_text("add", {"a": 1, "c": 2}),
        call_text("count", {}),
        call_text("flood", {"characters": 100_000}),
    ]
    trajectory, _ = await sample(chat_format, server, "".join(texts), add={}, fail={}, flood={})
    assert [(call.name, call.status, call.response) for call in trajectory.calls] == [
        ("add", "ok", "2"),
        ("fail", "error", "error: Error executing tool fail: no such row"),
        ("add", "malformed", "error: invalid tool call: \"a\": '1' is not of type 'integer'"),
        (
            "add",
            "malformed",
            "error: invalid tool call: Additional properties are not allowed ('c' was unexpected)",
        ),
        ("count", "unknown_tool", "error: unknown tool 'count'"),
        ("flood", "output_limit", "error: too much output"),
    ]
    assert (trajectory.verdict, trajectory.reward, trajectory.call_errors) == ("correct", 1.0, 5)


async def test_mcp_stdio_session_is_one_rollout(chat_format: ChatFormat) -> None:
    """The calls of a rollout share a process; another rollout has another one."""
    for _ in range(2):
        trajectory, _ = await sample(chat_format, STDIO, call_text("count", {}) * 2, count={})
        assert [call.response for call in trajectory.calls] == ["1", "2"]


@pytest.mark.parametrize("tool", ["hang", "exit_now"])
async def test_mcp_lost_server_excludes_the_rollout(chat_format: ChatFormat, tool: str) -> None:
    """A rollout whose server hangs or dies is run again with a new session, then excluded, never scored."""
    limits = {tool: {"timeout_seconds": 1 if tool == "hang" else 60}}
    trajectory, pool = await sample(chat_format, STDIO, call_text(tool, {}), **limits)
    assert (trajectory.lost_to, trajectory.failed, pool.requests) == ("server", True, 3)
    expected = "did not answer call hang within 1 s" if tool == "hang" else "during call exit_now"
    assert expected in trajectory.error


def test_load_toolset_unusable_server_is_named() -> None:
    """A tool that the server does not offer, and a server that does not start, are named before the job starts."""
    with pytest.raises(SourceError, match="MCP server kit has no tool 'subtract'; its tools: add, fail"):
        load_toolset([ToolSpec(name="subtract", server="kit")], servers=[STDIO])
    for command in (["false"], ["/no/such/program"]):
        with pytest.raises(ServerLost, match="MCP server kit cannot be used"):
            load_toolset([ToolSpec(name="f", server="kit")], servers=[MCPServerSpec(name="kit", command=command)])


@pytest.mark.parametrize("transport", ["stdio", "http"])
@pytest.mark.parametrize("fault", ["malformed", "wrong_shape", "flood", "many_parts", "hang", "drip", "exit"])
async def test_mcp_faulty_server_is_lost(transport: str, fault: str) -> None:
    """Each violation of the protocol is an infrastructure failure, at the latest after the deadline of the call."""
    with contextlib.ExitStack() as stack:
        if transport == "http":
            port = stack.enter_context(running("faulty_peer.py", fault))
            spec = MCPServerSpec(name="kit", url=f"http://127.0.0.1:{port}/mcp")
        else:
            spec = MCPServerSpec(name="kit", command=[sys.executable, str(SUPPORT / "faulty_peer.py"), fault])
        async with McpSession(spec) as session:
            assert [tool.name for tool in session.tools] == ["add"]
            with pytest.raises(ServerLost, match="MCP server kit"):
                await session.call("add", {"a": 1}, seconds=60 if fault in ("wrong_shape", "many_parts") else 0.5)
