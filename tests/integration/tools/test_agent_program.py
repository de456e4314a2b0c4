"""Rollouts of agents' programs: real processes and the real endpoint; the turns of the model are scripted."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.api.roles import RolloutSpec
from rstar2_train.api.stages import Sampling
from rstar2_train.api.tasks import AgentSpec
from rstar2_train.data.problems import Problem
from rstar2_train.rollout import collector
from rstar2_train.rollout.agent import Agent
from rstar2_train.rollout.agent_program.programs import AgentPrograms
from rstar2_train.rollout.chat_format import ChatFormat
from rstar2_train.rollout.context import RolloutContext
from rstar2_train.rollout.trajectory import Trajectory
from tests.support.model_fixtures import chat_format, model_folder
from tests.support.rollout_groups import sample_groups
from tests.support.scripted_pool import ScriptedPool
from tests.support.servers import SUPPORT
from tests.support.waiting import until_async

__all__ = ["chat_format", "model_folder"]

PROBLEM = Problem("p", "What is 1 + 1?", "2")


async def play(
    chat_format: ChatFormat, *arguments: str, samples: int = 1, tokens: int = 4000, turns: int = 4, **spec: Any
) -> tuple[list[Trajectory], ScriptedPool]:
    """Run one group of rollouts; the model answers 2 or 3."""
    command = [sys.executable, str(SUPPORT / "agent_program.py"), *arguments]
    settings = AgentSpec.model_validate({"command": command, "timeout_seconds": 300} | spec)
    pool: Any = ScriptedPool(chat_format, lambda text, seed: str(2 + seed % 2))
    sampling = Sampling(max_response_tokens=tokens, max_turns=turns)
    agent = Agent(chat_format=chat_format, sampling=sampling, rollout=RolloutSpec(), limits=JudgeLimits())
    judge: Any = None
    async with AgentPrograms(settings) as programs:
        context = RolloutContext(agent=agent, pool=pool, judge=judge, programs=programs, seed=(1,))
        (group,) = await sample_groups([PROBLEM], samples=samples, context=context)
    return group, pool


async def test_agent_program_reward_and_tokens_are_the_trajectory(chat_format: ChatFormat) -> None:
    """Each rollout has the tokens of its own episode, and the reward that its program posted."""
    group, _ = await play(chat_format, "good", samples=6, max_concurrent_episodes=3)
    assert {trajectory.verdict for trajectory in group} == {"correct", "wrong"}
    for trajectory in group:
        (sequence,) = trajectory.sequences()
        prompt = chat_format.conversation_prompt_ids([{"role": "user", "content": PROBLEM.problem}])
        assert sequence.ids[: len(prompt)].tolist() == prompt
        assert sequence.mask.tolist() == [False] * len(prompt) + [True] * (len(sequence.ids) - len(prompt))
        assert (trajectory.reward == 1.0) == (chat_format.model_text(sequence.ids[len(prompt) :].tolist()) == "2")
        assert (trajectory.stop, trajectory.turns, trajectory.reason) == ("done", 1, "equal")
        assert (trajectory.p_format, trajectory.lost_to) == (0.0, None)


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("hang", "posted no reward within spec.agent.timeoutSeconds"),
        ("dies", "exited with code 1 before it posted a reward: out of ideas"),
        ("silent", "exited with code 0 before it posted a reward"),
        ("no-turn", "exited with code 0 before it posted a reward"),
        ("too-long", "exited with code 0 before it posted a reward: the messages have"),
        ("floods-requests", "sent more than 1000 requests that were rejected"),
        ("floods-stderr", "posted no reward within spec.agent.timeoutSeconds"),
    ],
)
async def test_agent_program_without_reward_loses_the_rollout(
    chat_format: ChatFormat, monkeypatch: pytest.MonkeyPatch, mode: str, message: str
) -> None:
    """A program that posts no reward is an infrastructure failure: the rollout is excluded, never scored."""
    monkeypatch.setattr(collector, "SERVER_TRIES", 2 if mode == "dies" else 1)
    (trajectory,), pool = await play(chat_format, mode, timeout_seconds=1 if mode in ("hang", "floods-stderr") else 300)
    assert (trajectory.lost_to, trajectory.failed, trajectory.reward) == ("server", True, 0.0)
    assert message in trajectory.error and len(trajectory.error) < 2500
    if mode == "dies":
        assert pool.requests == 2, "it is run again"


async def test_agent_program_missing_command_is_named(chat_format: ChatFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the command."""
    monkeypatch.setattr(collector, "SERVER_TRIES", 1)
    (trajectory,), _ = await play(chat_format, command=["no-such-program"])
    assert trajectory.error == "server: agent program: spec.agent.command: no such program: no-such-program"


@pytest.mark.parametrize(
    ("mode", "reward"), [("twice", 0.0), ("faulty-rewards", 0.25), ("other-key", 0.0), ("large", 0.0)]
)
async def test_agent_program_faulty_requests_change_nothing(chat_format: ChatFormat, mode: str, reward: float) -> None:
    """A second, NaN or malformed reward, another key and a large request are rejected; the episode continues."""
    (trajectory,), _ = await play(chat_format, mode)
    assert (trajectory.lost_to, trajectory.reward, trajectory.turns) == (None, reward, 1), trajectory.error


async def test_agent_program_limit_of_the_stage_truncates(chat_format: ChatFormat) -> None:
    """A program that stops because the stage's limits stop the model gives a truncated rollout with reward 0."""
    (trajectory,), _ = await play(chat_format, "floods-turns", turns=3)
    assert (trajectory.stop, trajectory.reward, trajectory.turns, trajectory.failed) == ("max_turns", 0.0, 3, False)
    (trajectory,), _ = await play(chat_format, "grows", turns=100, tokens=300)
    assert (trajectory.stop, trajectory.failed) == ("length", False) and trajectory.turns > 1


async def test_agent_program_key_ends_with_its_episode(
    chat_format: ChatFormat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that outlives the program cannot reward the rollout later: its key is unknown."""
    monkeypatch.setattr(collector, "SERVER_TRIES", 1)
    file = tmp_path / "status"
    settings = AgentSpec(command=[sys.executable, str(SUPPORT / "agent_program.py"), "late", str(file)])
    pool: Any = ScriptedPool(chat_format, lambda text, seed: "2")
    agent = Agent(chat_format=chat_format, sampling=Sampling(), rollout=RolloutSpec(), limits=JudgeLimits())
    judge: Any = None
    async with AgentPrograms(settings) as programs:
        context = RolloutContext(agent=agent, pool=pool, judge=judge, programs=programs, seed=(1,))
        ((trajectory,),) = await sample_groups([PROBLEM], samples=1, context=context)
        await until_async(lambda: file.exists() and file.read_text(), "the process posts its reward")
    assert (trajectory.lost_to, file.read_text()) == ("server", "401")
