"""One sampled turn: the tokens as they arrive from one engine or several, and the finished result.

The client of an engine (`client.py`) fills it part by part; a turn that lost its engine continues in another one.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, cast

import numpy as np

from rstar2_train.inference.engine_errors import EngineRejected, EngineUnavailable
from rstar2_train.inference.turn_wire import TurnPart

FinishReason = Literal["stop", "length"]


@dataclass(slots=True)
class SampledTurn:
    """A turn as its parts arrive, from one engine or, after failures, from several; at its end the whole turn."""

    token_ids: array[int] = field(default_factory=lambda: array("i"))
    """Sampled token ids (int32), the stop token included."""
    logprobs: array[float] = field(default_factory=lambda: array("f"))
    """Log-probability of each token under the sampling distribution (after temperature and top-p), in float32."""
    finish_reason: FinishReason | None = None
    """None before the end of the turn."""
    versions: list[tuple[str, int]] = field(default_factory=list)
    """Each weight version that sampled tokens, with the position of its first one."""
    accepts: Callable[[str], bool] = lambda version: True
    """Whether the tokens of a weight version may be used."""
    first_route: int | None = None
    """First token of prompt and turn whose experts the engine reports; None: those of no token."""
    routes: bytearray = field(default_factory=bytearray)
    """Experts of the tokens from `first_route` to the last but one (`RouteFormat`): no engine computes the last one."""
    row_bytes: int = 0
    """Bytes of `routes` per token."""
    _start: int = 0
    """Tokens at the start of the present request."""

    def resume(self) -> None:
        """Start a request for the rest of the turn."""
        self._start = len(self.token_ids)

    def add(self, part: TurnPart, *, url: str) -> None:
        """Append a part of the present request. Raises EngineUnavailable or EngineRejected for an invalid one."""
        if part.error:
            raise EngineUnavailable(f"{url} failed during a turn: {part.error}")
        if len(part.logprobs) != len(part.token_ids):
            raise EngineUnavailable(
                f"{url} returned {len(part.logprobs)} log-probabilities for {len(part.token_ids)} tokens"
            )
        if part.token_ids and not part.versions:
            raise EngineUnavailable(f"{url} reports no weight version for a request")
        if math.isnan(np.asarray(part.logprobs, np.float32).sum()):
            raise EngineRejected(
                f"{url} returned NaN log-probabilities: the weights of version {part.versions[-1][0]!r} are broken"
            )
        for version, _ in part.versions:
            if not self.accepts(version):
                raise EngineUnavailable(
                    f"{url} sampled with weight version {version!r}, which this rollout does not accept: the engine "
                    "has restarted"
                )
        self.token_ids.extend(part.token_ids)
        self.routes += part.routes
        self.row_bytes = part.row_bytes or self.row_bytes
        self.logprobs.extend(part.logprobs)
        known = [span for span in self.versions if span[1] < self._start]
        for version, at in part.versions:
            if self._start + at < len(self.token_ids) and (not known or known[-1][0] != version):
                known.append((version, self._start + at))
        self.versions = known
        if part.finish_reason in ("stop", "length"):
            self.finish_reason = cast(FinishReason, part.finish_reason)
        elif part.finish_reason is not None:
            raise EngineUnavailable(f"{url} finished a request with reason {part.finish_reason!r}")

    @property
    def next_route(self) -> int | None:
        """First token whose experts are not known yet; None if they are not wished."""
        if self.first_route is None:
            return None
        return self.first_route + (len(self.routes) // self.row_bytes if self.routes else 0)

    def check_routes(self, prompt_tokens: int, *, url: str) -> None:
        """Raise EngineRejected if a finished turn lacks experts that the request wished."""
        if self.next_route is not None and self.next_route != prompt_tokens + len(self.token_ids) - 1:
            raise EngineRejected(
                f"{url} reports the experts of {self.next_route} of {prompt_tokens + len(self.token_ids)} tokens: a "
                "mixture is trained with those of all tokens but the last; set grpo.routerReplay: false to train it "
                "with the experts that the trainer chooses"
            )

    def whole(self) -> SampledTurn:
        """Return the turn, which is finished. Raises EngineUnavailable if it has no tokens."""
        if self.finish_reason is None or not self.versions:
            raise EngineUnavailable("an engine finished a request without a token")
        return self
