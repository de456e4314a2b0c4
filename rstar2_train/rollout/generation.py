"""Generates the turns of one trajectory, with failover to another engine.

An engine failure is not the model's fault: the rest of the turn is sampled in the same or another engine, a limited
number of times (the judge's client does the same for tool calls). The turns and the parts of the turn that arrived are
kept, each with its weight version: a restart would make long trajectories rarer than short ones. When the turn cannot
be sampled, `InfrastructureError` is raised, and the trajectory is excluded, never scored.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from rstar2_train.inference.admission import EngineSlot
from rstar2_train.inference.engine_errors import EngineUnavailable
from rstar2_train.inference.sampled_turn import SampledTurn
from rstar2_train.rollout.context import RolloutContext
from rstar2_train.rollout.seeds import derive_seed

MAX_TRIES = 12
"""Tries per turn. Waiting for an engine is not a try: the pool limits that time."""


class InfrastructureError(Exception):
    """The trajectory is lost to an engine failure."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff, in seconds."""

    first: float = 0.25
    most: float = 10.0

    def seconds(self, failures: int) -> float:
        """Return the pause after `failures` consecutive failures (1, 2, ...)."""
        return float(min(self.most, self.first * 2 ** (failures - 1)))


@dataclass(slots=True)
class FailoverGenerator:
    """Samples the turns of one trajectory in the engine of its slot."""

    context: RolloutContext
    slot: EngineSlot
    seed: tuple[int | str, ...]
    """Name of the trajectory; with the turn's number it seeds each request."""
    backoff: Backoff = Backoff()
    known: array[int] = field(default_factory=lambda: array("i"))
    """Tokens of the last turn and its prompt: the engines have reported the experts of all but the last one."""

    async def wait_for_engine(self) -> str:
        """Wait for an engine and return its URL. Raises InfrastructureError when the pool gives up."""
        try:
            return await self.slot.wait_for_engine()
        except EngineUnavailable as error:
            raise InfrastructureError(str(error)) from error

    async def __call__(self, token_ids: Sequence[int], *, max_tokens: int, turn: int) -> SampledTurn:
        """Sample one turn.

        Raises InfrastructureError when no engine can, EngineRejected when the request itself is invalid.
        """
        pool, version = self.context.pool, self.context.version
        sampled = SampledTurn(accepts=self.context.accepts, first_route=self._first_route(token_ids))
        failure: Exception | None = None
        tries = 0
        while tries < MAX_TRIES:
            tries += 1
            await self.wait_for_engine()
            await pool.admission.pacer.wait()
            await self.slot.start_turn(len(token_ids) + len(sampled.token_ids))
            url = await self.wait_for_engine()  # no wait, unless the engine was lost meanwhile
            if pool.version != version and not self.context.later_versions:
                raise InfrastructureError(
                    f"version {pool.version!r} was pushed before the rollouts of {version!r} finished"
                )
            try:
                generation = await self._generate_in(url, token_ids, sampled, max_tokens=max_tokens, turn=turn)
            except EngineUnavailable as error:
                failure = error
                pool.mark_failed(url, error)
                await asyncio.sleep(self.backoff.seconds(tries))
                continue
            if generation is not None:
                if self.context.records_experts:
                    self.known = array("i", token_ids) + generation.token_ids
                return generation
            if self.slot.is_displaced:
                self.slot.is_displaced = False
                tries -= 1  # not a failure: the policy moved it, and it starts before those that have not started
        raise InfrastructureError(f"a turn failed {MAX_TRIES} times: {failure}")

    def _first_route(self, token_ids: Sequence[int]) -> int | None:
        """Return the first token of a prompt whose experts the engine shall report; None if they are not wished."""
        if not self.context.records_experts:
            return None
        continues = array("i", token_ids[: len(self.known)]) == self.known
        return max(0, len(self.known) - 1) if continues else 0

    async def _generate_in(
        self, url: str, token_ids: Sequence[int], sampled: SampledTurn, *, max_tokens: int, turn: int
    ) -> SampledTurn | None:
        """Sample the rest of a turn in one engine; return None when it was lost and the trajectory is queued again."""
        agent = self.context.agent
        # The seed of the lost part would repeat its random numbers.
        position = (len(sampled.token_ids),) if sampled.token_ids else ()
        task = asyncio.current_task()
        assert task is not None
        self.slot.requesting = task
        try:
            return await self.context.pool.client(url).generate(
                token_ids,
                max_tokens=max_tokens,
                temperature=agent.sampling.temperature,
                top_p=agent.sampling.top_p,
                seed=derive_seed(*self.seed, turn, *position),
                stop_ids=agent.chat_format.stop_ids,
                turn=sampled,
            )
        except asyncio.CancelledError:
            if self.slot.requesting is None and not task.uncancel():
                return None  # the slot has cancelled the request, and nothing else the trajectory
            raise
        finally:
            self.slot.requesting = None
