"""Engines that do not come up hold nobody who is asked to stop."""

from __future__ import annotations

import asyncio
import dataclasses
import time

import pytest

from rstar2_train.api.contracts import StageFailed
from rstar2_train.orchestrator.context import SuspendRequested
from rstar2_train.orchestrator.rollout_session import RolloutSession
from rstar2_train.rollout.collector import PromptTooLong
from tests.support.stage_attempt import Begin

NOBODY = "http://127.0.0.1:9"


async def test_a_prompt_that_no_engine_has_room_for_is_bad_data_for_every_attempt(begin: Begin) -> None:
    async def work() -> None:
        raise PromptTooLong("problem p7: 9 prompt tokens and maxResponseTokens 5 are more than the engines' 12")

    ctx = begin()
    ctx.endpoints = dataclasses.replace(ctx.endpoints, engines=(NOBODY,), judge=NOBODY)
    rollouts = RolloutSession(ctx, None)  # type: ignore[arg-type]
    with pytest.raises(StageFailed, match="problem p7: 9 prompt tokens") as caught:
        await rollouts._unless_stopped(work())
    assert (caught.value.reason, caught.value.retryable) == ("BadData", False)


async def test_asked_to_stop_it_waits_for_no_engine(begin: Begin) -> None:
    ctx = begin()
    ctx.endpoints = dataclasses.replace(ctx.endpoints, engines=(NOBODY,), judge=NOBODY)
    began = time.monotonic()
    async with RolloutSession(ctx, None) as rollouts:  # type: ignore[arg-type]
        asyncio.get_running_loop().call_later(0.3, ctx.stopping.set)
        with pytest.raises(SuspendRequested):
            await rollouts.push_folder(ctx.state.root, "v1")
    assert time.monotonic() - began < rollouts._pool.times.patience / 2
