"""One task as a built-in tool, a function tool, an MCP server and an environment: the same rollouts."""

from __future__ import annotations

import asyncio
import random
import re
import sys
from pathlib import Path
from typing import Any

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.api.roles import RolloutSpec
from rstar2_train.api.stages import Sampling
from rstar2_train.api.tasks import EnvironmentSpec, MCPServerSpec, ToolSpec
from rstar2_train.data.problems import Problem
from rstar2_train.judge.client.client import JudgeClient
from rstar2_train.judge.types import CallResult
from rstar2_train.rollout.agent import Agent
from rstar2_train.rollout.chat_format import ChatFormat
from rstar2_train.rollout.context import RolloutContext
from rstar2_train.tools.schema import TOOL_NAME, call_text
from rstar2_train.tools.toolset import Toolset, builtin_toolset, load_toolset
from tests.support.model_fixtures import chat_format, model_folder
from tests.support.rollout_groups import sample_groups
from tests.support.scripted_pool import ScriptedPool
from tests.support.servers import SUPPORT, running
from tests.support.token_arrays import response

__all__ = ["chat_format", "model_folder"]

FUNCTION = f"""
import contextlib, io

def {TOOL_NAME}(code: str, input: str = "") -> str:
    'Runs a program.'
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(code, {{}})
    return output.getvalue()
"""
PROBLEMS = [Problem(f"p{a}", f"What is {a} * {a}?", str(a * a), data=f'{{"gold": "{a * a}"}}') for a in (7, 12)]
CALLS = (
    call_text(TOOL_NAME, {"code": "raise SystemExit('no data')"}),
    call_text(TOOL_NAME, {"code": "print(1 + 1)"}),
    call_text("search", {"text": "product"}),
    "<tool_call>\n{'name': 'print'}\n</tool_call>",
)
"""Calls of which a turn draws some before its last: a failing and a valid program, an unknown tool, broken JSON."""


def next_turn(text: str, seed: int) -> str:
    """Return some calls and then a right or wrong product; then the product as the answer."""
    if "<tool_response>" in text:
        product = re.findall(r"<tool_response>\n(.*)\n</tool_response>", text)[-1]
        return f"<answer>\\boxed{{{product}}}</answer>"
    draw = random.Random(seed)
    (number,) = re.findall(r"What is (\d+)", text)
    product = {"code": f"print({number} * {number} + {draw.randint(0, 1)})"}
    return "\n".join((*draw.sample(CALLS, draw.randint(0, 3)), call_text(TOOL_NAME, product)))


class OneAtATime:
    """Runs the programs of a judge one after another: without a sandbox, calls share /tmp with the user's source."""

    def __init__(self, judge: JudgeClient) -> None:
        self._judge = judge
        self._lock = asyncio.Lock()

    async def run(self, code: str, stdin: str = "", *, limits: JudgeLimits | None = None) -> CallResult:
        """Run a program."""
        async with self._lock:
            return await self._judge.run(code, stdin, limits=limits)


async def rollouts(chat_format: ChatFormat, tools: Toolset, judge: Any) -> list[dict[str, Any]]:
    """Return what training reads of the rollouts of both problems."""
    own = ChatFormat(chat_format.tokenizer, system_prompt="Use Python.", tools=tools)
    pool: Any = ScriptedPool(own, next_turn)
    sampling = Sampling(max_response_tokens=4000)
    agent = Agent(chat_format=own, sampling=sampling, rollout=RolloutSpec(), limits=JudgeLimits(wall_seconds=20))
    context = RolloutContext(agent=agent, pool=pool, judge=judge, seed=(1,))
    groups = await sample_groups(PROBLEMS, samples=6, context=context)
    fields = ("prompt_ids", "stop", "verdict", "reward", "correct", "p_err", "p_format", "error")
    return [
        {name: getattr(trajectory, name) for name in fields}
        | {"tokens": response(trajectory), "statuses": [call.status for call in trajectory.calls]}
        for group in groups
        for trajectory in group
    ]


async def test_same_task_in_four_forms_gives_same_rollouts(
    chat_format: ChatFormat, judge: JudgeClient, tmp_path: Path
) -> None:
    """For the same seeds, the form of a tool changes no token, no status, no penalty and no reward."""
    (tmp_path / "kit.py").write_text(FUNCTION)
    server = MCPServerSpec(name="kit", command=[sys.executable, str(SUPPORT / "mcp_server.py"), "stdio"])
    runner = OneAtATime(judge)
    builtin = await rollouts(chat_format, builtin_toolset(), runner)
    assert {row["verdict"] for row in builtin} == {"correct", "wrong"}
    statuses = {status for row in builtin for status in row["statuses"]}
    assert statuses == {"ok", "error", "malformed", "unknown_tool"}, "the script must use each status"
    with running("openenv_server.py", "python", 64) as port:
        environment = EnvironmentSpec(name="python", url=f"http://127.0.0.1:{port}", max_concurrent_episodes=8)
        forms = {
            "function": load_toolset([ToolSpec(name=TOOL_NAME, source=str(tmp_path / "kit.py"))]),
            "mcp": load_toolset([ToolSpec(name=TOOL_NAME, server="kit")], servers=[server]),
            "environment": load_toolset([], environments=[environment]),
        }
        for form, tools in forms.items():
            for ours, theirs in zip(await rollouts(chat_format, tools, runner), builtin, strict=True):
                assert ours == theirs, form
