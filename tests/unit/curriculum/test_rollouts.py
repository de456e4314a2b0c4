"""Engines that do not come up hold nobody who is asked to stop."""

from __future__ import annotations

import asyncio
import dataclasses
import time

import pytest

from rstar2_train.curriculum.context import Suspend
from rstar2_train.curriculum.rollouts import Rollouts
from tests.support.attempt import Begin

NOBODY = "http://127.0.0.1:9"


async def test_asked_to_stop_it_waits_for_no_engine(begin: Begin) -> None:
    ctx = begin()
    ctx.endpoints = dataclasses.replace(ctx.endpoints, engines=(NOBODY,), judge=NOBODY)
    began = time.monotonic()
    async with Rollouts(ctx, None) as rollouts:  # type: ignore[arg-type]
        asyncio.get_running_loop().call_later(0.3, ctx.stopping.set)
        with pytest.raises(Suspend):
            await rollouts.push_folder(ctx.state.root, "v1")
    assert time.monotonic() - began < rollouts._pool.times.patience / 2
