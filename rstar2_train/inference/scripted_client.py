"""The client of an engine that does not exist: it answers each request with the next turn of a script.

A pool (`pool.py`) takes it in place of `EngineClient`, see `engine_protocols.py`, so that `rstar2 env check` runs the
agent loop of training without a model. Its limits are those of an engine: a turn is cut at the token limit of its
request.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rstar2_train.inference.engine_errors import EngineRejected
from rstar2_train.inference.engine_load import EngineLoad
from rstar2_train.inference.engine_protocols import EngineLimits
from rstar2_train.inference.engine_session import EngineSession
from rstar2_train.inference.sampled_turn import SampledTurn
from rstar2_train.inference.turn_wire import TurnPart

SCRIPT = "script"
"""Weight version of the scripted turns."""
_LARGE = 2**40
"""Tokens of the context and of the KV cache: no limit."""


class ScriptedClient:
    """Returns the turns of one conversation, one per request."""

    def __init__(self, url: str, *, token: str, session: EngineSession | None, turns: Sequence[Sequence[int]]) -> None:
        """`turns`: token ids of each turn, its stop token included. The others are as of `EngineClient`, unused."""
        self.url = url
        self._turns = turns
        self._used = 0

    async def generate(
        self,
        prompt_ids: Sequence[int],
        *,
        max_tokens: int,
        temperature: float = 1.0,
        top_p: float = 1.0,
        seed: int | None = None,
        stop_ids: Sequence[int] = (),
        turn: SampledTurn | None = None,
    ) -> SampledTurn:
        """Return the next turn, cut to `max_tokens`, with log-probabilities of 0. Raises EngineRejected after the last.

        The sampling settings have no effect.
        """
        if self._used == len(self._turns):
            raise EngineRejected(
                f"the script has {self._used} turns, and the last one calls a tool: add the turn that follows"
            )
        scripted = list(self._turns[self._used])
        self._used += 1
        ids = scripted[:max_tokens]
        turn = turn or SampledTurn()
        finish_reason = "stop" if len(ids) == len(scripted) else "length"
        turn.add(TurnPart(ids, [0.0] * len(ids), [(SCRIPT, 0)], finish_reason), url=self.url)
        return turn.whole()

    async def healthy(self) -> bool:
        """Return True."""
        return True

    async def limits(self) -> EngineLimits:
        """Return no limit."""
        return EngineLimits(_LARGE, _LARGE, 1)

    async def load(self) -> EngineLoad | None:
        """Return None."""
        return None

    async def weight_version(self) -> str:
        """Return SCRIPT."""
        return SCRIPT

    async def load_weights(self, folder: Path, version: str, *, seconds: float, keep_requests: bool = False) -> None:
        """Do nothing: a script has no weights."""

    async def release(self) -> None:
        """Do nothing: no request is held."""
