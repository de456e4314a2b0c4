"""The messages of a collective transfer, between trainer, orchestrator and engine. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

BACKEND = "rstar2"
"""Name of the project's backend in vLLM's weight-transfer API."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a transfer, in the order of the broadcasts."""

    name: str
    shape: list[int]
    dtype: str
    checksum: int
    """Sum of all bit patterns as signed integers."""


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


def update_info(version_id: str, tensors: list[TensorInfo]) -> dict[str, Any]:
    """Return the body of vLLM's request to receive."""
    return {"update_info": {"version_id": version_id, "tensors": [asdict(tensor) for tensor in tensors]}}
