"""Agents' programs in pods: real runners and the real endpoint; the turns of the model are scripted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import pytest

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.api.roles import RolloutSpec
from rstar2_train.api.stages import Sampling
from rstar2_train.api.tasks import AgentSpec
from rstar2_train.data.problems import Problem
from rstar2_train.rollout import collector
from rstar2_train.rollout.agent import Agent
from rstar2_train.rollout.agent_program.endpoint import AgentEndpoint
from rstar2_train.rollout.agent_program.pods import MAX_REPORT_BYTES, AgentPods
from rstar2_train.rollout.agent_program.programs import AgentPrograms
from rstar2_train.rollout.chat_format import ChatFormat
from rstar2_train.rollout.context import RolloutContext
from rstar2_train.rollout.trajectory import Trajectory
from rstar2_train.utils import agent_runner
from rstar2_train.utils.ports import free_ports
from tests.support.model_fixtures import chat_format, model_folder
from tests.support.rollout_groups import sample_groups
from tests.support.scripted_pool import ScriptedPool
from tests.support.servers import SUPPORT
from tests.support.waiting import until_async

__all__ = ["chat_format", "model_folder"]

PROBLEM = Problem("p", "What is 1 + 1?", "2")
TOKEN = "token-of-the-pods"


@contextlib.asynccontextmanager
async def runner(
    port: int,
    *command: str,
    episodes: int = 2,
    token: str = TOKEN,
    python: Sequence[str] = (sys.executable, agent_runner.__file__),
    user: int | None = None,
) -> AsyncIterator[Any]:
    """Run the runner of one pod."""
    argv = [*python, f"localhost:{port}", str(episodes), *command]
    variables = {"PATH": os.environ["PATH"], agent_runner.TOKEN: token}
    process = await asyncio.create_subprocess_exec(*argv, env=variables, user=user)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def program(*arguments: str) -> list[str]:
    """Return the command of a test's program."""
    return [sys.executable, str(SUPPORT / "agent_program.py"), *arguments]


async def collect(
    chat_format: ChatFormat, pods: AgentPods, *, samples: int = 1, **spec: Any
) -> tuple[list[Trajectory], ScriptedPool]:
    """Run one group of rollouts; the model answers 2 or 3."""
    settings = AgentSpec.model_validate({"command": ["x"], "image": "i", "timeout_seconds": 300, "replicas": 2} | spec)
    pool: Any = ScriptedPool(chat_format, lambda text, seed: str(2 + seed % 2))
    agent = Agent(chat_format=chat_format, sampling=Sampling(), rollout=RolloutSpec(), limits=JudgeLimits())
    judge: Any = None
    async with AgentPrograms(settings, pods) as programs:
        context = RolloutContext(agent=agent, pool=pool, judge=judge, programs=programs, seed=(1,))
        (group,) = await sample_groups([PROBLEM], samples=samples, context=context)
    return group, pool


async def test_agent_pods_give_the_rollouts_of_one_machine(chat_format: ChatFormat) -> None:
    """Each rollout has the tokens of its own episode, and the reward that its program posted; two pods play them."""
    (port,) = free_ports(1)
    command = program("good")
    async with runner(port, *command), runner(port, *command):
        group, _ = await collect(chat_format, AgentPods(token=TOKEN, port=port), samples=8, max_concurrent_episodes=2)
    assert {trajectory.verdict for trajectory in group} == {"correct", "wrong"}
    for trajectory in group:
        (sequence,) = trajectory.sequences()
        ids = sequence.ids[sequence.mask].tolist()
        assert (trajectory.reward == 1.0) == (chat_format.model_text(ids) == "2")
        assert (trajectory.stop, trajectory.turns, trajectory.reason) == ("done", 1, "equal")
        assert (trajectory.p_format, trajectory.lost_to) == (0.0, None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (program("hang"), "posted no reward within spec.agent.timeoutSeconds"),
        (program("dies"), "exited with code 1 before it posted a reward: out of ideas"),
        (program("silent"), "exited with code 0 before it posted a reward"),
        (["/no/such/program"], "before it posted a reward: cannot start the program"),
    ],
)
async def test_agent_pods_program_without_reward_loses_the_rollout(
    chat_format: ChatFormat, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    """A program that posts no reward is an infrastructure failure, with its exit and its last words."""
    monkeypatch.setattr(collector, "SERVER_TRIES", 1)
    (port,) = free_ports(1)
    seconds = 1 if "hang" in arguments else 300
    async with runner(port, *arguments):
        (trajectory,), _ = await collect(chat_format, AgentPods(token=TOKEN, port=port), timeout_seconds=seconds)
    assert (trajectory.lost_to, trajectory.failed, trajectory.reward) == ("server", True, 0.0)
    assert message in trajectory.error


async def test_agent_pods_program_cannot_read_the_token(
    chat_format: ChatFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token of the pods is in no environment that a program can read: it could play other episodes with it.

    The runner is an ordinary user's, as in a pod; root could read it.
    """
    monkeypatch.setattr(collector, "SERVER_TRIES", 1)
    (port,) = free_ports(1)
    check = f"grep -aqs {agent_runner.TOKEN} /proc/self/environ /proc/[0-9]*/environ && exit 3; exit 4"
    python = ["/usr/bin/python3", "-c", agent_runner.source()]  # a user may not read this file, nor run this Python
    async with runner(port, "sh", "-c", check, python=python, user=65534 if os.geteuid() == 0 else None):
        (trajectory,), _ = await collect(chat_format, AgentPods(token=TOKEN, port=port))
    assert "exited with code 4 before it posted a reward" in trajectory.error


async def test_agent_pods_lost_pod_is_replaced(chat_format: ChatFormat) -> None:
    """If a pod dies in an episode, the rollout is played again, from its start, in another one."""
    (port,) = free_ports(1)
    pods = AgentPods(token=TOKEN, port=port)
    async with runner(port, *program("hang"), episodes=1) as first:
        collecting = asyncio.ensure_future(collect(chat_format, pods))
        await until_async(lambda: pods.running == 1, "the first pod plays the episode")
        first.kill()
        await first.wait()
        async with runner(port, *program("good")):
            (trajectory,), pool = await collecting
    assert (trajectory.stop, trajectory.lost_to) == ("done", None), trajectory.error
    assert pool.requests in (1, 2)


async def test_agent_pods_without_pod_lose_the_rollout(
    chat_format: ChatFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If no pod takes an episode, or only one with another token asks for it, the rollout is lost, not scored."""
    monkeypatch.setattr(collector, "SERVER_TRIES", 1)
    (port,) = free_ports(1)
    async with runner(port, *program("good"), token="another"):
        pods = AgentPods(token=TOKEN, port=port, pod_seconds=3)
        (trajectory,), _ = await collect(chat_format, pods)
    assert trajectory.error == "server: agent program: no pod of the agent took the episode within 3 s"


def test_agent_pods_need_a_token() -> None:
    """Without a token every pod of the cluster could play the episodes."""
    with pytest.raises(ValueError, match="the token of the agent's pods is empty"):
        AgentPods(token="", port=1)


async def test_agent_pods_endpoint_needs_token_and_key() -> None:
    """Without the token of the pods there is no episode; an exit needs the key of a running episode."""
    (port,) = free_ports(1)
    spec = AgentSpec(command=["x"], image="i")
    pods = AgentPods(token=TOKEN, port=port)
    async with AgentPrograms(spec, pods), httpx.AsyncClient(verify=False, timeout=60) as client:
        for path, key in (("programs", "Bearer x"), ("programs", "Bearer"), ("programs/exit", f"Bearer {TOKEN}")):
            headers = {"Authorization": key}
            reply = await client.post(f"http://127.0.0.1:{port}/v1/{path}", headers=headers, content=json.dumps({}))
            assert reply.status_code == 401, (path, reply.text)


async def test_agent_pods_large_report_is_rejected() -> None:
    """The key of an episode is the program's, which could hold the event loop of the rollouts with a report."""
    (port,) = free_ports(1)
    pods = AgentPods(token=TOKEN, port=port)
    async with (
        AgentEndpoint(pods) as endpoint,
        httpx.AsyncClient(base_url=endpoint.url, verify=False, timeout=60) as client,
    ):
        waiting = asyncio.ensure_future(client.post("/v1/programs", headers={"Authorization": f"Bearer {TOKEN}"}))
        async with pods.start("key", {}) as program:
            for stderr, status in (("x" * MAX_REPORT_BYTES, 413), ("x", 200)):
                report = {"status": 1, "stderr": stderr}
                reply = await client.post("/v1/programs/exit", headers={"Authorization": "Bearer key"}, json=report)
                assert (reply.status_code, program.exited) == (status, status == 200), reply.text
        assert (await waiting).status_code == 200
