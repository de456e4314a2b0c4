"""Rollouts with a real engine and a real judge, and with failures of both."""

import asyncio
import dataclasses
import time
from collections.abc import Callable
from typing import Any

import pytest

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.api.roles import AdmissionSpec, RolloutSpec
from rstar2_train.api.stages import Sampling
from rstar2_train.data.problems import Problem
from rstar2_train.inference.pool import EnginePool, PoolTimes
from rstar2_train.inference.weight_update import FolderUpdate
from rstar2_train.judge.client.client import JudgeClient
from rstar2_train.rollout import trajectory_store
from rstar2_train.rollout.agent import Agent
from rstar2_train.rollout.chat_format import ChatFormat
from rstar2_train.rollout.collector import PromptTooLong
from rstar2_train.rollout.context import RolloutContext
from rstar2_train.rollout.trajectory import Trajectory
from tests.integration.rollout.conftest import TIMES
from tests.support.engine import FIRST_REPLY, QUESTION, RESPONSE_TOKENS, Engine, conversation
from tests.support.engine_fixtures import Models
from tests.support.rollout_groups import sample_groups
from tests.support.token_arrays import response
from tests.support.unsupervised_judge import UnsupervisedJudge

GREEDY = Sampling(temperature=0, max_response_tokens=RESPONSE_TOKENS, max_turns=4)
PROBLEMS = [Problem(id=f"p{number}", problem=QUESTION, answer="42", slice="L1", hard=True) for number in range(4)]


async def gather(
    pool: EnginePool,
    judge: JudgeClient,
    chat_format: ChatFormat,
    *,
    samples: int = 2,
    sampling: Sampling = GREEDY,
    seed: tuple[int | str, ...] = (0, 0),
    on_done: Callable[[Trajectory], None] = lambda _: None,
    problems: list[Problem] = PROBLEMS,
    **rollout: Any,
) -> list[Trajectory]:
    agent = Agent(chat_format=chat_format, sampling=sampling, rollout=RolloutSpec(**rollout), limits=JudgeLimits())
    groups = await sample_groups(
        problems,
        samples=samples,
        context=RolloutContext(agent=agent, pool=pool, judge=judge, seed=seed),
        on_done=on_done,
    )
    assert [[(trajectory.prompt_id, trajectory.sample) for trajectory in group] for group in groups] == [
        [(problem.id, sample) for sample in range(samples)] for problem in problems
    ]
    return [trajectory for group in groups for trajectory in group]


async def test_collect_groups_returns_scored_trajectories(
    pool: EnginePool, judge: JudgeClient, engine_chat_format: ChatFormat, models: Models, tmp_path: Any
) -> None:
    """Each trajectory has the tokens of the known conversation, its counts, its verdict and its weight version."""
    await pool.push(FolderUpdate.make(models.memorising, "known/1"))
    finished: list[Trajectory] = []
    rows = await gather(pool, judge, engine_chat_format, on_done=finished.append)
    assert len(finished) == len(rows) == 8
    whole = engine_chat_format.encode_conversation(conversation())
    for trajectory in rows:
        ids, mask, logprobs = response(trajectory)
        assert [*trajectory.prompt_ids, *ids] == whole.token_ids
        assert [0] * len(trajectory.prompt_ids) + mask == whole.mask
        assert [value < 0 for value in logprobs] == [bool(sampled) for sampled in mask]
        assert [(call.status, call.response) for call in trajectory.calls] == list(
            zip(["ok", "malformed", "ok"], FIRST_REPLY, strict=True)
        )
        assert (trajectory.stop, trajectory.turns, trajectory.verdict, trajectory.answer, trajectory.reward) == (
            "answered",
            2,
            "correct",
            "42",
            1.0,
        )
        assert (trajectory.answer_tags, trajectory.tags_balanced, trajectory.p_format) == (1, True, 0.0)
        assert trajectory.p_err == pytest.approx(1 / 3)
        assert {segment.weight_version for segment in trajectory.segments if segment.kind == "model"} == {"known/1"}
        assert (trajectory.slice, trajectory.hard, trajectory.gold) == ("L1", True, "42")
        assert trajectory.seconds > 0 and abs(time.time() - trajectory.started_at) < 600
    trajectory_store.write(tmp_path / "step.parquet", rows)
    assert [trajectory.segments[0].token_ids for trajectory in trajectory_store.read(tmp_path / "step.parquet")] == [
        trajectory.segments[0].token_ids for trajectory in rows
    ]


async def test_collect_groups_same_seed_samples_the_same(
    pool: EnginePool, judge: JudgeClient, engine_chat_format: ChatFormat, models: Models
) -> None:
    """At most trajectory sample may differ: floating-point sums depend on the other requests of the batch."""
    await pool.push(FolderUpdate.make(models.boot, "random/1"))
    sampling = Sampling(max_response_tokens=12, max_turns=1)
    seeds: list[tuple[int | str, ...]] = [(1, "s", 7), (1, "s", 7), (1, "s", 8)]
    once, again, other = [
        [
            trajectory.segments[0].token_ids
            for trajectory in await gather(pool, judge, engine_chat_format, samples=3, sampling=sampling, seed=seed)
        ]
        for seed in seeds
    ]
    assert len({tuple(ids) for ids in once}) > 1
    assert sum(a == b for a, b in zip(once, again, strict=True)) >= len(once) - 1
    assert sum(a == b for a, b in zip(once, other, strict=True)) <= 1


@pytest.mark.parametrize(
    ("sampling", "stop"),
    [
        (Sampling(temperature=0, max_response_tokens=5), "length"),
        (Sampling(temperature=0, max_response_tokens=RESPONSE_TOKENS, max_turns=1), "max_turns"),
        (Sampling(temperature=0, max_response_tokens=40), "tool_overflow"),
    ],
)
async def test_collect_groups_truncated_has_no_reward(
    pool: EnginePool, judge: JudgeClient, engine_chat_format: ChatFormat, models: Models, sampling: Sampling, stop: str
) -> None:
    """A trajectory that a limit truncated has no answer and no reward."""
    await pool.push(FolderUpdate.make(models.memorising, "known/2"))
    for trajectory in await gather(pool, judge, engine_chat_format, samples=1, sampling=sampling):
        assert (trajectory.stop, trajectory.truncated, trajectory.reward, trajectory.verdict) == (
            stop,
            True,
            0.0,
            "no_answer",
        )
        assert trajectory.response_tokens <= sampling.max_response_tokens


@pytest.mark.parametrize("policy", ["Static", "Reserve"])
async def test_collect_groups_respects_max_in_flight(
    engine: Engine, judge: JudgeClient, engine_chat_format: ChatFormat, models: Models, policy: Any
) -> None:
    """With either admission policy at most `maxInFlight` trajectories run, and all finish."""
    admission = AdmissionSpec(policy=policy, max_in_flight=3)
    async with EnginePool([engine.url], token=engine.token, times=TIMES, admission=admission) as pool:
        await pool.push(FolderUpdate.make(models.memorising, "known/3"))
        running: list[int] = []
        rows = await gather(
            pool, judge, engine_chat_format, samples=4,
            on_done=lambda _: running.append(len(pool.admission._scheduler.running(engine.url))),
        )  # fmt: skip
        assert {trajectory.verdict for trajectory in rows} == {"correct"}
        assert max(running) == 3 and running[-1] == 0


async def test_collect_groups_killed_engine_loses_nothing(
    engine: Engine, pool: EnginePool, judge: JudgeClient, engine_chat_format: ChatFormat, models: Models
) -> None:
    """After a SIGKILL and a restart all rollouts finish; with the initial, random weights they would be wrong."""
    await pool.push(FolderUpdate.make(models.memorising, "known/4"))
    first_done = asyncio.Event()

    def on_done(_: Trajectory) -> None:
        if not first_done.is_set():
            engine.kill()  # before any other rollout can finish
            first_done.set()

    work = asyncio.create_task(gather(pool, judge, engine_chat_format, samples=80, on_done=on_done))
    await first_done.wait()
    assert not work.done()
    try:
        async with asyncio.timeout(300):
            while pool.serving:
                await asyncio.sleep(0.05)
    finally:
        await asyncio.to_thread(engine.start)
    rows = await work
    assert len(rows) == 320
    assert {(trajectory.stop, trajectory.verdict, trajectory.reward) for trajectory in rows} == {
        ("answered", "correct", 1.0)
    }
    versions = {
        segment.weight_version for trajectory in rows for segment in trajectory.segments if segment.kind == "model"
    }
    assert versions == {"known/4"}


async def test_collect_groups_restarted_judge_loses_nothing(
    pool: EnginePool, judge: JudgeClient, judge_stack: UnsupervisedJudge, engine_chat_format: ChatFormat, models: Models
) -> None:
    """Rollouts wait for a judge that restarts."""
    await pool.push(FolderUpdate.make(models.memorising, "known/5"))
    await asyncio.to_thread(judge_stack.kill, "api")
    work = asyncio.create_task(gather(pool, judge, engine_chat_format, samples=3))
    try:
        await asyncio.sleep(2)
        assert not work.done()
    finally:
        await asyncio.to_thread(judge_stack.start_api)
    assert {(trajectory.stop, trajectory.verdict) for trajectory in await work} == {("answered", "correct")}


async def test_collect_groups_outage_marks_rollouts_lost(
    engine: Engine, engine_chat_format: ChatFormat, models: Models
) -> None:
    """If the judge or all engines stay unavailable, the rollouts are lost to that service and not scored."""
    times = PoolTimes(patience=2, load=60, straggler=1, check_interval=0.5, retry_interval=0.2)
    async with (
        JudgeClient("http://127.0.0.1:1", patience_seconds=0.5) as unreachable,
        EnginePool([engine.url], token=engine.token, times=times) as pool,
    ):
        await pool.push(FolderUpdate.make(models.memorising, "known/6"))
        finished: list[Trajectory] = []
        for role in ("judge", "engine"):
            rows = await gather(pool, unreachable, engine_chat_format, samples=1, on_done=finished.append)
            for trajectory in rows:
                assert trajectory.failed and (trajectory.stop, trajectory.verdict, trajectory.reward) == (
                    "infrastructure",
                    "internal",
                    0.0,
                )
                assert trajectory.error.startswith(f"{role}: ") and trajectory.lost_to == role
            pool._target = dataclasses.replace(  # no engine can load this folder
                pool._target, number=99, update=FolderUpdate.make(models.boot / "missing", "known/6")
            )
            pool.mark_failed(engine.url, RuntimeError("connection refused"))
        assert len(finished) == 8


async def test_collect_groups_cancelled_stops_requests(
    engine: Engine, pool: EnginePool, judge: JudgeClient, engine_chat_format: ChatFormat, models: Models
) -> None:
    """A cancelled collection aborts its requests in the engine."""
    await pool.push(FolderUpdate.make(models.boot, "random/2"))
    work = asyncio.create_task(
        gather(pool, judge, engine_chat_format, samples=20, sampling=Sampling(max_response_tokens=RESPONSE_TOKENS))
    )
    client = pool.client(engine.url)
    async with asyncio.timeout(300):
        while not await _running(client):
            await asyncio.sleep(0.01)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        while await _running(client):
            await asyncio.sleep(0.05)
    assert pool.admission._scheduler.waiting == []


async def _running(client: Any) -> float:
    lines = (await client.text("/metrics")).splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:num_requests_running{"))


async def test_collect_groups_prompt_too_long_is_named(
    pool: EnginePool, judge: JudgeClient, engine_chat_format: ChatFormat, models: Models
) -> None:
    """The error names the problem, its tokens and the limit; without weights no context can be created."""
    with pytest.raises(ValueError, match="the engines have no weights yet"):
        await gather(pool, judge, engine_chat_format)
    await pool.push(FolderUpdate.make(models.boot, "random/3"))
    message = "problem p0: 33 prompt tokens plus maxResponseTokens 500 exceed the engines' max-model-len 512"
    with pytest.raises(PromptTooLong, match=message):
        await gather(pool, judge, engine_chat_format, sampling=Sampling(max_response_tokens=500))
