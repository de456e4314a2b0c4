"""The example of an agent's program, with OpenAI's official client, on a real engine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.api.roles import RolloutSpec
from rstar2_train.api.stages import Sampling
from rstar2_train.api.tasks import AgentSpec
from rstar2_train.data.problems import Problem
from rstar2_train.inference.client import EngineClient
from rstar2_train.inference.pool import EnginePool
from rstar2_train.inference.weight_update import FolderUpdate
from rstar2_train.judge.client.client import JudgeClient
from rstar2_train.rollout import trajectory_store
from rstar2_train.rollout.agent import Agent
from rstar2_train.rollout.agent_program.programs import AgentPrograms
from rstar2_train.rollout.chat_format import ChatFormat
from rstar2_train.rollout.context import RolloutContext
from tests.support.engine import QUESTION
from tests.support.engine_fixtures import Models
from tests.support.example_manifests import EXAMPLES
from tests.support.rollout_groups import sample_groups


async def test_agent_program_has_the_engines_tokens(
    pool: EnginePool,
    client: EngineClient,
    judge: JudgeClient,
    engine_chat_format: ChatFormat,
    models: Models,
    tmp_path: Path,
) -> None:
    """Each trained token is the one that the engine samples after exactly the tokens before it, also after storage."""
    await pool.push(FolderUpdate.make(models.memorising, "known/1"))
    sampling = Sampling(temperature=0, max_response_tokens=200, max_turns=4)
    agent = Agent(chat_format=engine_chat_format, sampling=sampling, rollout=RolloutSpec(), limits=JudgeLimits())
    spec = AgentSpec(command=[sys.executable, str(EXAMPLES / "agent.py")], max_concurrent_episodes=2)
    async with AgentPrograms(spec) as programs:
        context = RolloutContext(agent=agent, pool=pool, judge=judge, programs=programs, seed=(0, 0))
        (group,) = await sample_groups([Problem("p", QUESTION, "43")], samples=2, context=context)
    trajectory_store.write(tmp_path / "step.parquet", group)
    for trajectory in trajectory_store.read(tmp_path / "step.parquet"):
        assert (trajectory.stop, trajectory.lost_to, trajectory.turns) == ("done", None, 2), trajectory.error
        prompt, *segments = trajectory.trained_segments()
        assert [segment.kind for segment in segments] == ["model", "tool", "model"]
        before = list(prompt.token_ids)
        for segment in segments:
            if segment.kind == "model":
                again = await client.generate(
                    before, max_tokens=32, temperature=0, stop_ids=engine_chat_format.stop_ids
                )
                assert (segment.token_ids, segment.weight_version) == (again.token_ids, "known/1")
                assert segment.logprobs.tolist() == pytest.approx(again.logprobs.tolist(), abs=1e-4)
            before += segment.token_ids
        assert "Wrong. Try again." in engine_chat_format.decode(before)
