"""The client of an engine as the pool and the rollouts use it.

`EngineClient` (an engine of the job), `OpenAIClient` (a server of another operator) and `ScriptedClient` (a script)
satisfy `PooledClient`. Only an engine of the job is also a `WeightReceiver`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from rstar2_train.inference.engine_errors import EngineRejected
from rstar2_train.inference.engine_load import EngineLoad
from rstar2_train.inference.sampled_turn import SampledTurn
from rstar2_train.storage.manifest import IndexEntry
from rstar2_train.weights.adapter_check import AdapterOrder
from rstar2_train.weights.experimental.transfer import Offer
from rstar2_train.weights.version_store import VersionManifest


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """The capacity of one engine."""

    max_model_len: int
    """Tokens of the longest sequence, prompt and response together."""
    kv_tokens: int
    """Tokens of KV cache, for all sequences together."""
    block_tokens: int
    """Tokens per block, the unit in which KV cache is allocated."""


class TurnClient(Protocol):
    """Samples turns in one engine."""

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
        """Sample a turn of at most `max_tokens` after `prompt_ids`, up to one of `stop_ids`.

        `turn`: receives each part as it arrives. If it has tokens of a lost engine, only the rest is sampled.
        Raises EngineUnavailable when the engine cannot serve it now, EngineRejected when the request is invalid.
        """
        ...


class PooledClient(TurnClient, Protocol):
    """An engine as the pool uses it."""

    @property
    def url(self) -> str:
        """Base URL, without a slash at its end."""
        ...

    async def healthy(self) -> bool:
        """Return whether the engine reports that it is healthy."""
        ...

    async def limits(self) -> EngineLimits:
        """Return the engine's capacity."""
        ...

    async def load(self) -> EngineLoad | None:
        """Return the engine's live figures; None if it does not report them."""
        ...

    async def weight_version(self) -> str:
        """Return the weight version that the engine reports."""
        ...

    async def load_weights(self, folder: Path, version: str, *, seconds: float, keep_requests: bool = False) -> None:
        """Load the weights in `folder` as `version`. Raises EngineRejected or EngineUnavailable."""
        ...

    async def release(self) -> None:
        """Let the requests continue that a load with `keep_requests` holds."""
        ...


@runtime_checkable
class WeightReceiver(Protocol):
    """An engine of the job: it reads chains of versions and adapters, receives transfers, and scores the probe."""

    async def load_chain(
        self,
        chain: Sequence[Path],
        version: str,
        *,
        version_id: str,
        seconds: float,
        fresh: bool = False,
        keep_requests: bool = False,
    ) -> None:
        """Load the last version of a chain of snapshot and deltas."""
        ...

    async def workers(self) -> int:
        """Return the number of processes that hold a part of the model."""
        ...

    async def receive_weights(
        self, offer: Offer, manifest: VersionManifest, *, seconds: float, keep_requests: bool = False
    ) -> None:
        """Receive a version over the group of `offer`, then load it."""
        ...

    async def base_name(self) -> str | None:
        """Return the name of the whole weights that the engine has; None: they have none."""
        ...

    async def name_base(self, name: str) -> None:
        """Name the whole weights that the engine has just loaded, on which adapters can follow."""
        ...

    async def load_adapter(self, order: AdapterOrder, *, seconds: float, keep_requests: bool = False) -> None:
        """Load an adapter and serve it."""
        ...

    async def copy_folders(self, entries: Sequence[IndexEntry], *, seconds: float) -> list[Path]:
        """Copy published folders from the bucket to the engine's disk; return their paths there."""
        ...

    async def score(self, rows: Sequence[Sequence[int]], *, base: bool = False) -> list[list[float]]:
        """Return the log-probability of each token of `rows` after its first; `base`: without an adapter."""
        ...

    async def mark_loading(self) -> None:
        """Set the engine's version to `loading`, because its weights are wrong."""
        ...


Connect = Callable[..., PooledClient]
"""Creates the client of an engine: `connect(url, token=..., session=...)`."""


def weight_receiver(client: PooledClient) -> WeightReceiver:
    """Return the client as a receiver of weights. Raises EngineRejected if its server has fixed weights."""
    if not isinstance(client, WeightReceiver):
        raise EngineRejected(f"{client.url} has fixed weights: only an engine of the job receives new ones")
    return client
