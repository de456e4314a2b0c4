"""One weight version that engines must load, per transport: a model folder, or a chain of a snapshot and deltas.

The pool calls `load` for each engine, also for one that restarts later. Each update names its files; the
engine reads them itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rstar2_train.inference.client import EngineClient
from rstar2_train.weights.probe import Probe


class WeightUpdate(Protocol):
    """A version to load."""

    @property
    def version(self) -> str:
        """Weight version that the engine reports afterwards."""
        ...

    @property
    def probe(self) -> Probe | None:
        """Check of the engine after the update; None: no check."""
        ...

    async def load(self, client: EngineClient, *, seconds: float, fresh: bool) -> None:
        """Load the version into one engine.

        Args:
            client: the engine.
            seconds: timeout.
            fresh: use nothing that the engine kept from earlier versions, because the probe refused its weights.

        Raises:
            EngineRejected: the files do not fit the engine; its weights stay.
            EngineUnavailable: the engine fails or exceeds `seconds`.
        """
        ...


@dataclass(frozen=True, slots=True)
class FolderUpdate:
    """A whole model as a Hugging Face folder. Works with every engine."""

    folder: Path
    """Absolute path that the engine can read until the next version."""
    version: str
    probe: Probe | None = None

    @classmethod
    def make(cls, folder: Path, version: str, probe: Probe | None = None) -> FolderUpdate:
        """Return the update; the engines have other working directories, so the path becomes absolute."""
        return cls(folder.absolute(), version, probe)

    async def load(self, client: EngineClient, *, seconds: float, fresh: bool) -> None:
        """Let the engine read the folder."""
        await client.load_weights(self.folder, self.version, seconds=seconds)


@dataclass(frozen=True, slots=True)
class DeltaUpdate:
    """A chain of a snapshot and deltas. The engine reads only what its host copy lacks."""

    chain: Sequence[Path]
    """Absolute paths of the versions, from the snapshot to this one."""
    version: str
    version_id: str
    """Id of this version of this run."""
    probe: Probe | None = None

    async def load(self, client: EngineClient, *, seconds: float, fresh: bool) -> None:
        """Let the engine update its host copy, then load all tensors from it."""
        await client.load_chain(self.chain, self.version, version_id=self.version_id, seconds=seconds, fresh=fresh)
