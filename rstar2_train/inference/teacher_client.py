"""HTTP client of a teacher's server: the log-probabilities of given tokens, from a vLLM server of another operator.

`rollout/teacher_check.py` checks the server before a job starts; `orchestrator/pipeline/remote_teacher.py` asks it in
each step. The request has the tokens themselves, not their text, so that nothing is tokenised again.
"""

from __future__ import annotations

import asyncio
import json
import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rstar2_train.inference.engine_errors import EngineRejected
from rstar2_train.inference.engine_http import SHORT_SECONDS
from rstar2_train.inference.engine_session import EngineSession
from rstar2_train.inference.openai_client import ModelList, ServedModel

SCORE_SECONDS = 240.0
"""Time limit of a request, with its time in the server's queue: shorter than the patience, so that it is repeated."""
ROUNDING = 1e-3
"""Largest log-probability above 0 that is rounding."""
COMPLETIONS = "/v1/completions"


@dataclass(frozen=True, slots=True)
class PromptScores:
    """The server's values of the tokens of a prompt."""

    logprobs: array[float]
    """Log-probability of each token at temperature 1; 0 for the first one."""
    texts: list[str | None]
    """Text of each token in the server's tokenizer; None for the first one, and if the server has no tokenizer."""


class TeacherClient(ModelList):
    """The client of one server and one of its models."""

    def __init__(self, url: str, *, token: str, session: EngineSession, model: str | None) -> None:
        """`model`: the served model name; None: the only one."""
        super().__init__(url, token=token, session=session)
        self._model = model

    async def served(self) -> ServedModel:
        """Return the teacher. Raises EngineRejected if the server does not serve it, or several models and no name."""
        models = await self.models()
        names = ", ".join(model.name for model in models) or "no model"
        if self._model is None and len(models) != 1:
            raise EngineRejected(f"{self.url} serves {names}: set teacher.model to the name of the teacher")
        for model in models:
            if self._model in (None, model.name):
                self._model = model.name
                return model
        raise EngineRejected(f"{self.url} serves {names}, not {self._model!r}: correct teacher.model")

    async def score(self, token_ids: Sequence[int]) -> PromptScores:
        """Return the values of at least two tokens. Raises EngineUnavailable or EngineRejected."""
        ids = list(token_ids)
        body = {
            **{"model": self._model, "prompt": ids, "prompt_logprobs": 0},
            **{"max_tokens": 1, "temperature": 0.0, "stream": False},
        }
        async with self.request("POST", COMPLETIONS, seconds=SCORE_SECONDS, json=body) as response:
            reply = await response.read()
        # A reply has 80 bytes per token: the event loop would wait for it.
        try:
            return await asyncio.to_thread(_read_scores, reply, ids)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise EngineRejected(
                f"{self.url}{COMPLETIONS} returned no usable prompt_logprobs ({type(error).__name__}: {error}): use a "
                "vLLM server with the default --logprobs-mode"
            ) from error

    async def tokenise(self, text: str) -> list[int]:
        """Return the server's tokens of a text, without added special tokens."""
        body = {"model": self._model, "prompt": text, "add_special_tokens": False}
        reply = await self.post("/tokenize", body, seconds=SHORT_SECONDS)
        tokens = reply.get("tokens") if isinstance(reply, dict) else None
        if not isinstance(tokens, list):
            raise EngineRejected(f"{self.url}/tokenize returned no tokens: use a vLLM server")
        return tokens


def _read_scores(reply: bytes, ids: list[int]) -> PromptScores:
    """Return the values of a reply. Raises ValueError, LookupError, TypeError or AttributeError for any other reply."""
    rows: list[dict[str, Any] | None] = json.loads(reply)["choices"][0]["prompt_logprobs"]
    if len(rows) != len(ids):
        raise ValueError(f"{len(rows)} entries for {len(ids)} tokens")
    logprobs = array("f", [0.0])
    texts: list[str | None] = [None]
    for token, row in zip(ids[1:], rows[1:], strict=True):
        if row is None:
            raise ValueError(f"no value of token {token}")
        entry = row[str(token)]
        value = entry["logprob"]
        if type(value) not in (int, float) or not math.isfinite(value) or value > ROUNDING:
            raise ValueError(f"the log-probability of token {token} is {value}")
        logprobs.append(min(value, 0.0))
        texts.append(entry.get("decoded_token"))
    return PromptScores(logprobs, texts)
