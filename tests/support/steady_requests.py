"""Requests that are in flight while the weights are updated, so that some of them span an update."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from rstar2_train.inference.client import EngineClient
from rstar2_train.inference.sampled_turn import SampledTurn

REQUESTS = 6
"""Requests at the same time. They differ in length, so that they rarely end together."""
SECONDS = 300
UPDATES = 3
"""Updates of which one must meet a request."""
ROUNDS = 6
"""Times that all requests finish, within which each request has ended that was in flight during an update."""


@asynccontextmanager
async def steady_requests(
    client: EngineClient, prompt: Sequence[int], *, first_route: int | None = None
) -> AsyncIterator[list[SampledTurn]]:
    """Send requests, each at the end of the one before, until the end of the context; provide the finished ones.

    `first_route`: first token whose experts the engine reports; None: those of no token.
    """
    finished: list[SampledTurn] = []

    async def send(number: int) -> None:
        for turn in itertools.count():
            length, seed = 60 + 20 * number, number + REQUESTS * turn
            sampled = SampledTurn(first_route=first_route)
            finished.append(await client.generate(prompt, max_tokens=length, seed=seed, turn=sampled))

    async with asyncio.TaskGroup() as group:
        senders = [group.create_task(send(number)) for number in range(REQUESTS)]
        async with asyncio.timeout(SECONDS):
            while len(finished) < REQUESTS:
                await asyncio.sleep(0.01)
        yield finished
        for sender in senders:
            sender.cancel()


async def spanning(finished: list[SampledTurn], update: Callable[[], Awaitable[None]]) -> list[SampledTurn]:
    """Update the weights until requests span an update; return those that have finished.

    On a busy machine all requests can end between the hold and the abort of an update: then none spans it.
    """
    for _ in range(UPDATES):
        await update()
        enough = len(finished) + ROUNDS * REQUESTS
        async with asyncio.timeout(SECONDS):
            while len(finished) < enough:
                if spans := [each for each in finished if len(each.versions) > 1]:
                    return spans
                await asyncio.sleep(0.01)
    raise AssertionError(f"no request spans one of {UPDATES} updates")
