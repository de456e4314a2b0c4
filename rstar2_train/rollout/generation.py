"""What a trajectory holds while it runs: its place in an engine, and patience when that engine fails.

An engine that fails is no fault of the model: the turn is sampled again, elsewhere or later, a bounded number of times
(the judge's client does the same for calls). Turns that were sampled stay: the same weights sampled them, and repeating
only what failed keeps long trajectories from being sampled more rarely than short ones. What cannot be saved raises
`InfrastructureError`, and the trajectory is excluded, never scored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from rstar2_train.api.stages import Sampling
from rstar2_train.inference.client import EngineUnavailable, Generation
from rstar2_train.inference.pool import EnginePool
from rstar2_train.inference.scheduler import Ticket
from rstar2_train.rollout.seeds import derive

MAX_TRIES = 12
"""Of one turn. Waiting for a lost engine is not a try: that ends by the pool's patience."""


class InfrastructureError(Exception):
    """A trajectory is lost, through no fault of the model."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Seconds between the tries of something that fails."""

    first: float = 0.25
    most: float = 10.0

    def seconds(self, failures: int) -> float:
        """Pause after so many failures in a row (1, 2, ...)."""
        return float(min(self.most, self.first * 2 ** (failures - 1)))


@dataclass(slots=True)
class FailoverGenerator:
    """A trajectory's place in the pool; samples its turns wherever the place is."""

    pool: EnginePool
    ticket: Ticket
    sampling: Sampling
    version: str
    stop_ids: Sequence[int]
    seed: tuple[int | str, ...]
    backoff: Backoff = Backoff()

    async def wait(self) -> None:
        """Wait until there is a place. Raises Infrastructure when no engine comes back."""
        try:
            await self.ticket.engine()
        except EngineUnavailable as error:
            raise InfrastructureError(str(error)) from error

    async def __call__(self, token_ids: Sequence[int], *, max_tokens: int, turn: int) -> Generation:
        """Sample a turn. Raises Infrastructure when no engine can, EngineRejected when the request is at fault."""
        failure: Exception | None = None
        for tries in range(1, MAX_TRIES + 1):
            try:
                url = await self.ticket.engine()
            except EngineUnavailable as error:
                raise InfrastructureError(str(error)) from error
            if self.pool.version != self.version:
                raise InfrastructureError(
                    f"the engines were given version {self.pool.version!r} before {self.version!r} ended"
                )
            try:
                generation = await self._try(url, token_ids, max_tokens=max_tokens, turn=turn)
            except EngineUnavailable as error:
                failure = error
                self.pool.trouble(url, error)
                await asyncio.sleep(self.backoff.seconds(tries))
                continue
            if generation is not None:
                return generation
        raise InfrastructureError(f"a turn failed {MAX_TRIES} times: {failure}")

    async def _try(self, url: str, token_ids: Sequence[int], *, max_tokens: int, turn: int) -> Generation | None:
        """Sample in one engine; None when the engine was lost meanwhile and the place has moved."""
        request = asyncio.ensure_future(
            self.pool.client(url).generate(
                token_ids,
                max_tokens=max_tokens,
                temperature=self.sampling.temperature,
                top_p=self.sampling.top_p,
                seed=derive(*self.seed, turn),
                stop_ids=self.stop_ids,
            )
        )
        self.ticket.request = request
        try:
            await asyncio.wait((request,))
        finally:
            self.ticket.request = None
            request.cancel()  # does nothing unless this trajectory itself was cancelled
        if request.cancelled():
            return None
        generation = request.result()
        if generation.weight_version != self.version:
            raise EngineUnavailable(
                f"{url} sampled with weights {generation.weight_version!r}, not {self.version!r}: it was restarted"
            )
        return generation
