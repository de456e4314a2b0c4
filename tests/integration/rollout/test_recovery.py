"""Two real engines, one of which is lost or drains in the middle of long turns: the other one samples the rest."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.api.roles import RolloutSpec
from rstar2_train.api.stages import Sampling
from rstar2_train.data.problems import Problem
from rstar2_train.inference.client import EngineClient
from rstar2_train.inference.pool import EnginePool
from rstar2_train.inference.sampled_turn import SampledTurn
from rstar2_train.inference.weight_update import FolderUpdate
from rstar2_train.judge.client.client import JudgeClient
from rstar2_train.rollout.agent import Agent
from rstar2_train.rollout.chat_format import ChatFormat
from rstar2_train.rollout.context import RolloutContext
from rstar2_train.rollout.trajectory import Trajectory
from tests.integration.rollout.conftest import TIMES
from tests.support.engine import QUESTION, RESPONSE_TOKENS, Engine
from tests.support.engine_fixtures import Models
from tests.support.rollout_groups import sample_groups
from tests.support.token_arrays import response

PART = 4
SAMPLES = 24
TOLERANCE = 1e-4
PROBLEM = Problem(id="p", problem=QUESTION, answer="42")


class RecordingClient(EngineClient):
    """Records the turns in progress, and the tokens that each has at the start of a request."""

    turns: dict[int, tuple[str, SampledTurn]]
    resumed: list[tuple[str, int]]
    started: dict[int, SampledTurn]
    """All turns; a turn that continues in another engine is the same one."""

    async def generate(self, *args: Any, turn: SampledTurn | None = None, **options: Any) -> SampledTurn:
        assert turn is not None
        self.turns[id(turn)] = self.url, turn
        self.started[id(turn)] = turn
        self.resumed.append((self.url, len(turn.token_ids)))
        try:
            return await super().generate(*args, turn=turn, **options)
        finally:
            del self.turns[id(turn)]


recording: Callable[..., RecordingClient] = partial(RecordingClient, part_tokens=PART)
"""Constructor of clients that ask for short parts."""


def tokens_handed_over(engine: Engine) -> list[int]:
    """Return the tokens that each turn had when an engine took it over."""
    return [tokens for url, tokens in RecordingClient.resumed if url == engine.url and tokens]


def context_of(pool: EnginePool, judge: JudgeClient, chat_format: ChatFormat) -> RolloutContext:
    """Return the context of trajectories of one long turn."""
    agent = Agent(
        chat_format=chat_format,
        sampling=Sampling(max_response_tokens=RESPONSE_TOKENS, max_turns=1),
        rollout=RolloutSpec(),
        limits=JudgeLimits(),
    )
    return RolloutContext(agent=agent, pool=pool, judge=judge, seed=(0, "kill"))


def is_long(turn: SampledTurn) -> bool:
    return turn.finish_reason is None and len(turn.token_ids) >= 5 * PART


async def sampled_while_lost(
    pool: EnginePool, context: RolloutContext, second: Engine, lose: Callable[[], object]
) -> list[Trajectory]:
    """Sample a group on two engines; lose the second one when it has sampled several parts of a turn that continues."""
    RecordingClient.turns, RecordingClient.resumed, RecordingClient.started = {}, [], {}
    while len(pool.serving) < 2:
        await asyncio.sleep(0.05)
    work = asyncio.create_task(sample_groups([PROBLEM], samples=SAMPLES, context=context))
    # On a machine that pauses, all turns may end unseen.
    while not work.done() and second.url not in {url for url, turn in RecordingClient.turns.values() if is_long(turn)}:
        await asyncio.sleep(0.002)
    lose()  # in the loop: no turn continues meanwhile
    [group] = await work
    return group


@pytest.fixture
async def second(engine: Engine, models: Models, tmp_path: Path) -> AsyncIterator[Engine]:
    """Another engine with the token of the first one."""
    second = Engine(models.boot, folder=tmp_path)
    second.token = engine.token
    await asyncio.to_thread(second.start)
    yield second
    await asyncio.to_thread(second.kill)


async def test_killed_engine_costs_the_last_part_only(
    engine: Engine, second: Engine, judge: JudgeClient, engine_chat_format: ChatFormat, models: Models
) -> None:
    """After a SIGKILL all trajectories finish once; log-probabilities are exact before and after the change."""
    urls = [engine.url, second.url]
    async with EnginePool(urls, token=engine.token, times=TIMES, connect=recording) as pool, asyncio.timeout(900):
        await pool.push(FolderUpdate.make(models.boot, "kill/1"))
        context = context_of(pool, judge, engine_chat_format)
        while True:
            group = await sampled_while_lost(pool, context, second, second.kill)
            resumed = tokens_handed_over(engine)
            if max(resumed, default=0) >= 5 * PART:
                break
            await asyncio.to_thread(second.start)  # nothing was recovered: the turns had ended before
    assert [trajectory.sample for trajectory in group] == list(range(SAMPLES))
    assert not any(trajectory.failed for trajectory in group)
    assert len(RecordingClient.started) == SAMPLES
    # Whole parts after the first token, which vLLM passes on alone: at most the last part was lost.
    assert all(tokens % PART == 1 for tokens in resumed), resumed
    model = AutoModelForCausalLM.from_pretrained(models.boot, dtype=torch.float32)
    for trajectory in group:
        ids, _, logprobs = response(trajectory)
        with torch.no_grad():
            logits = model(torch.tensor([[*trajectory.prompt_ids, *ids]])).logits[
                0, len(trajectory.prompt_ids) - 1 : -1
            ]
        expected = logits.log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0]
        assert float((torch.tensor(logprobs) - expected).abs().max()) < TOLERANCE


async def test_draining_engine_hands_over_its_turns(
    engine: Engine, second: Engine, judge: JudgeClient, engine_chat_format: ChatFormat, models: Models
) -> None:
    """An engine whose pod terminates, as in a scale-down or `kubectl drain`: no trajectory restarts."""
    urls = {engine.url, second.url}

    async def find() -> frozenset[str]:
        return frozenset(urls)

    requests = 0

    def drain() -> None:
        urls.remove(second.url)

    async def until_drained() -> None:
        """Note the requests before the second engine is out of use."""
        nonlocal requests
        while second.url in urls or second.url in pool.serving:
            await asyncio.sleep(0.002)
        requests = len(RecordingClient.resumed)

    times = replace(TIMES, discovery_interval=0.05)
    async with (
        EnginePool(token=engine.token, find=find, times=times, connect=recording) as pool,
        asyncio.timeout(900),
    ):
        await pool.push(FolderUpdate.make(models.boot, "drain/1"))
        context = context_of(pool, judge, engine_chat_format)
        while True:
            drained = asyncio.create_task(until_drained())
            group = await sampled_while_lost(pool, context, second, drain)
            await drained
            if max(tokens_handed_over(engine), default=0) >= 5 * PART:
                break
            urls.add(second.url)  # nothing was handed over: the turns had ended before
    assert [trajectory.sample for trajectory in group] == list(range(SAMPLES))
    assert not any(trajectory.failed for trajectory in group)
    assert second.url not in {url for url, _ in RecordingClient.resumed[requests:]}
    assert len(RecordingClient.started) == SAMPLES, "a trajectory has one turn: another one is a restart"
