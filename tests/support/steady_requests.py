"""Requests that are in flight at any time, so that an update of the weights meets some of them on any machine."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from rstar2_train.inference.client import EngineClient
from rstar2_train.inference.sampled_turn import Generation

REQUESTS = 6
"""Requests at the same time. They differ in length, so that they never end together."""
SECONDS = 300


@asynccontextmanager
async def steady_requests(client: EngineClient, prompt: Sequence[int]) -> AsyncIterator[list[Generation]]:
    """Send requests, each at the end of the one before, until the end of the context; provide the finished ones."""
    finished: list[Generation] = []

    async def send(number: int) -> None:
        for turn in itertools.count():
            length, seed = 60 + 20 * number, number + REQUESTS * turn
            finished.append(await client.generate(prompt, max_tokens=length, seed=seed, stop_ids=[]))

    async with asyncio.TaskGroup() as group:
        senders = [group.create_task(send(number)) for number in range(REQUESTS)]
        async with asyncio.timeout(SECONDS):
            while len(finished) < REQUESTS:
                await asyncio.sleep(0.01)
        yield finished
        for sender in senders:
            sender.cancel()


async def spanning(finished: list[Generation]) -> list[Generation]:
    """Wait for requests that span an update of the weights; return those that have finished."""
    async with asyncio.timeout(SECONDS):
        while not (spans := [each for each in finished if each.later_versions]):
            await asyncio.sleep(0.01)
    return spans
