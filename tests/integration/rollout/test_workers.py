"""Two rollout workers share an engine; one of them is killed in the middle."""

import asyncio
import os
import signal
from typing import Any

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.api.roles import AdmissionSpec, RolloutSpec
from rstar2_train.api.stages import Sampling
from rstar2_train.data.problems import Problem
from rstar2_train.inference.pool import EnginePool
from rstar2_train.inference.weight_update import FolderUpdate
from rstar2_train.rollout.agent import Agent
from rstar2_train.rollout.chat_format import ChatFormat
from rstar2_train.rollout.context import RolloutContext
from rstar2_train.rollout.trajectory import Trajectory
from rstar2_train.rollout.workers.messages import WorkerSetup
from rstar2_train.rollout.workers.rollout_workers import RolloutWorkers
from tests.integration.rollout.conftest import TIMES
from tests.support.engine import QUESTION, RESPONSE_TOKENS, Engine, conversation
from tests.support.engine_fixtures import Models
from tests.support.rollout_groups import sample_groups
from tests.support.token_arrays import response
from tests.support.unsupervised_judge import UnsupervisedJudge

PROBLEMS = [Problem(id=f"p{number}", problem=QUESTION, answer="42") for number in range(4)]
SAMPLES = 12


async def test_killed_worker_loses_and_repeats_no_rollout(
    engine: Engine, judge_stack: UnsupervisedJudge, engine_chat_format: ChatFormat, models: Models
) -> None:
    """All groups are complete, with the tokens that one process samples; a version that is pushed later is known."""
    admission = AdmissionSpec(max_in_flight=8)  # most rollouts of the worker have not started when it is killed
    setup = WorkerSetup(engine_chat_format, engine.token, judge_stack.url, None, judge_patience=120)
    agent = Agent(
        chat_format=engine_chat_format,
        sampling=Sampling(temperature=0, max_response_tokens=RESPONSE_TOKENS, max_turns=4),
        rollout=RolloutSpec(),
        limits=JudgeLimits(),
    )
    finished: list[tuple[str, int]] = []
    killed: list[int] = []
    async with (
        EnginePool([engine.url], token=engine.token, times=TIMES, admission=admission) as pool,
        RolloutWorkers(2, pool, setup) as workers,
    ):
        victim, other = workers.processes
        await pool.push(FolderUpdate.make(models.memorising, "workers/1"))

        def on_done(trajectory: Trajectory) -> None:
            finished.append((trajectory.prompt_id, trajectory.sample))
            if not killed and trajectory.prompt_id == "p0":
                assert victim.pid is not None
                killed.append(victim.unfinished)
                os.kill(victim.pid, signal.SIGKILL)

        judge: Any = None  # each worker has its own
        context = RolloutContext(agent=agent, pool=pool, judge=judge, seed=(0,), workers=workers)
        async with asyncio.timeout(600):
            groups = await sample_groups(PROBLEMS, samples=SAMPLES, context=context, on_done=on_done)
        assert victim.unfinished == other.unfinished == 0
        assert pool.admission._scheduler.waiting == [] and not pool.admission._scheduler.running(engine.url)
    assert killed[0] > 0  # else the worker had finished
    assert len(finished) == len(set(finished)) == len(PROBLEMS) * SAMPLES
    expected = engine_chat_format.encode_conversation(conversation()).token_ids
    for problem, group in zip(PROBLEMS, groups, strict=True):
        assert [(trajectory.prompt_id, trajectory.sample) for trajectory in group] == [
            (problem.id, sample) for sample in range(SAMPLES)
        ]
        for trajectory in group:
            assert [*trajectory.prompt_ids, *response(trajectory)[0]] == expected
            assert (trajectory.verdict, trajectory.reward) == ("correct", 1.0)
            assert {version for segment in trajectory.segments for version, _ in segment.version_spans()} == {
                "workers/1"
            }
