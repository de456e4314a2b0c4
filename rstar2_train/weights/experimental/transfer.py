"""The messages of a collective transfer, between trainer, orchestrator and engine. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rstar2_train.weights.version_store import VersionManifest

BACKEND = "rstar2"
"""Name of the project's backend in vLLM's weight-transfer API."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A transfer that waits for the workers of one engine."""

    host: str
    port: int
    workers: int
    seconds: float
    """Deadline of each phase."""

    def init_info(self) -> dict[str, Any]:
        """Return the body of vLLM's request to join."""
        return {"init_info": asdict(self)}


def update_info(manifest: VersionManifest) -> dict[str, Any]:
    """Return the body of vLLM's request to receive the files of a version, in the order of its manifest."""
    return {"update_info": {"manifest": manifest.to_json()}}
