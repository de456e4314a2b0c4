"""Episodes of real servers of an OpenEnv environment: tokens, rewards, capacity, and environments that fail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.api.roles import RolloutSpec
from rstar2_train.api.stages import Sampling
from rstar2_train.api.tasks import EnvironmentSpec
from rstar2_train.data.problems import Problem
from rstar2_train.rollout.agent import Agent
from rstar2_train.rollout.chat_format import ChatFormat
from rstar2_train.rollout.context import RolloutContext
from rstar2_train.rollout.trajectory import Trajectory
from rstar2_train.tools.schema import call_text
from rstar2_train.tools.toolset import load_toolset
from tests.support.model_fixtures import chat_format, model_folder
from tests.support.rollout_groups import sample_groups
from tests.support.scripted_pool import ScriptedPool
from tests.support.servers import running
from tests.support.token_arrays import response

__all__ = ["chat_format", "model_folder"]


def next_guess(text: str, _: int) -> str:
    """Return the next call of a bisection; the first guess of each game has a wrong argument."""
    talk = text.partition("I think of a number")[2]
    if "invalid tool call" not in talk:
        return call_text("step", {"number": 500})
    low, high = 1, 100
    for word in (line for line in talk.splitlines() if line in ("higher", "lower")):
        middle = (low + high) // 2
        low, high = (middle + 1, high) if word == "higher" else (low, middle - 1)
    return call_text("step", {"number": (low + high) // 2})


async def play(
    chat_format: ChatFormat, ports: Sequence[int], *, samples: int = 1, script: Any = next_guess, **spec: Any
) -> tuple[list[Trajectory], ScriptedPool]:
    """Run one group of rollouts."""
    settings = {"name": "game", "command": ["x"], "max_concurrent_episodes": 8, "step_timeout_seconds": 60} | spec
    environment = EnvironmentSpec.model_validate(settings)
    tools = load_toolset([], environments=[environment], services=[f"127.0.0.1:{port}" for port in ports])
    own = ChatFormat(chat_format.tokenizer, system_prompt="{tools}", tools=tools)
    pool: Any = ScriptedPool(own, script)
    sampling = Sampling(max_response_tokens=4000, max_turns=12)
    agent = Agent(chat_format=own, sampling=sampling, rollout=RolloutSpec(), limits=JudgeLimits())
    judge: Any = None
    context = RolloutContext(agent=agent, pool=pool, judge=judge, seed=(1,))
    (group,) = await sample_groups([Problem("p", "Play.", "-")], samples=samples, context=context)
    return group, pool


async def test_environment_gives_observations_and_reward(chat_format: ChatFormat) -> None:
    """Observations are tool turns, only their new part; a wrong action never reaches the environment; done ends it."""
    with running("openenv_server.py", "guess", 64) as port:
        (first, second), _ = await play(chat_format, [port], samples=2)
    kinds = [segment.kind for segment in first.segments]
    assert kinds == ["tool", *["model", "tool"] * (first.turns - 1), "model"]
    opening = chat_format.decode(first.segments[0].token_ids)
    assert opening.startswith(chat_format.end_of_turn) and "I think of a number from 1 to 100." in opening
    responses = [call.response for call in first.calls]
    assert responses[0] == 'error: invalid tool call: "number": 500 is greater than the maximum of 100'
    assert set(responses[1:-1]) <= {"higher", "lower"} and responses[-1] == "right"
    assert (first.stop, first.verdict, first.reward, first.p_format) == ("done", "correct", 1.0, 0.0)
    assert [call.status for call in first.calls] == ["malformed", *["ok"] * (len(first.calls) - 1)]
    assert response(first) == response(second)  # the same seed for the whole group


@pytest.mark.parametrize(
    "fault",
    [
        *("hang", "flood", "many", "malformed", "deep", "nan", "infinite", "no_done", "error", "twice", "reset"),
    ],
)
async def test_environment_fault_excludes_the_rollout(chat_format: ChatFormat, fault: str) -> None:
    """An environment that fails in an episode loses the rollout after three tries; it is never scored."""
    with running("openenv_server.py", fault, 64) as port:
        (trajectory,), _ = await play(chat_format, [port], step_timeout_seconds=1)
    assert (trajectory.lost_to, trajectory.failed) == ("server", True), trajectory
    assert trajectory.error.startswith("server: ") and trajectory.reward == 0.0


async def test_environment_drip_fault_excludes_the_rollout(chat_format: ChatFormat) -> None:
    """A message that arrives a byte at a time, without end, does not extend the deadline of a step."""
    with running("dripping_environment.py") as port:
        (trajectory,), _ = await play(chat_format, [port], step_timeout_seconds=1)
    assert (trajectory.lost_to, trajectory.failed, trajectory.reward) == ("server", True, 0.0)
    assert "no answer within 1 s" in trajectory.error


async def test_environment_lost_episode_is_retried_at_another_server(chat_format: ChatFormat) -> None:
    """A server that dies in an episode is avoided: the rollout is played again, from its start, at another one."""
    with running("openenv_server.py", "exit", 64) as dying, running("openenv_server.py", "guess", 64) as port:
        for _ in range(2):
            (trajectory,), _ = await play(chat_format, sorted([dying, port]), samples=1)
            assert (trajectory.stop, trajectory.reward, trajectory.lost_to) == ("done", 1.0, None)


async def test_environment_full_server_is_waited_for(chat_format: ChatFormat) -> None:
    """More rollouts than episodes wait; so do those that the server itself rejects, because a slot is still held."""
    with running("openenv_server.py", "guess", 2) as port:
        group, _ = await play(chat_format, [port], samples=6, max_concurrent_episodes=3)
    assert [trajectory.reward for trajectory in group] == [1.0] * 6


async def test_environment_error_code_may_be_a_tool_error(chat_format: ChatFormat) -> None:
    """The manifest lists the codes of errors that are tool errors of the model; the episode continues."""
    with running("openenv_server.py", "error", 64) as port:
        (trajectory,), _ = await play(chat_format, [port], tool_errors=["EXECUTION_ERROR"])
    assert [call.response for call in trajectory.calls].count("error: unlucky") == 1
    assert (trajectory.reward, trajectory.call_errors) == (1.0, 2)
