"""Replaces the engines by a script, so that a test of rollouts needs no engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from rstar2_train.inference.sampled_turn import SampledTurn
from rstar2_train.rollout.chat_format import ChatFormat
from tests.support.token_arrays import logprob_array, token_array

NextTurn = Callable[[str, int], str]
"""Returns the text of the next turn, from the text so far and the seed of the request."""


class ScriptedPool:
    """An engine pool whose only engine writes the turns of a script."""

    version = "v1"
    max_model_len = None

    def __init__(self, chat_format: ChatFormat, next_turn: NextTurn) -> None:
        self._chat_format = chat_format
        self._next_turn = next_turn
        self.admission = SimpleNamespace(request_slot=lambda **_: _Slot(), pacer=SimpleNamespace(wait=_nothing))
        self.requests = 0

    def client(self, url: str) -> ScriptedPool:
        return self

    async def generate(self, token_ids: Sequence[int], *, max_tokens: int, seed: int, **_: Any) -> SampledTurn:
        self.requests += 1
        text = self._next_turn(self._chat_format.decode(token_ids), seed)
        ids = [*self._chat_format.encode(text), self._chat_format.end_of_turn_id]
        return SampledTurn(token_array(ids), logprob_array([-0.5] * len(ids)), "stop", [("v1", 0)])


class _Slot:
    is_displaced = False
    request: Any = None

    async def start_turn(self, tokens: int) -> None:
        """Nothing to reserve."""

    def release(self, *, tokens: int | None) -> None:
        """Nothing to release."""

    async def wait_for_engine(self) -> str:
        return "http://scripted"


async def _nothing() -> None:
    """No pause."""
