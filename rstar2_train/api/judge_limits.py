"""Limits of one call as the judge's HTTP API carries them: the wire form of `spec.judge.limits`.

The HTTP API is a contract of its own. It keeps its units (float seconds, MiB, bytes), while the manifest has Kubernetes
quantities. `JudgeLimits.from_spec` is the only conversion between the two. Used by the judge and all its clients.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rstar2_train.api.base import ApiModel, amount
from rstar2_train.api.roles import JudgeLimitsSpec

MAX_STDIN_BYTES = 4 << 20
"""Largest standard input of a call."""
MAX_OUTPUT_BYTES = 8 << 20
"""Upper bound of `outputBytes`."""


class JudgeLimits(ApiModel):
    """Limits of one call."""

    wall_seconds: Annotated[float, Field(gt=0, le=600)] = 4
    """Wall-clock time in seconds."""
    memory_mib: Annotated[int, Field(ge=32, le=1_048_576, alias="memoryMiB")] = 512
    """Address space in MiB."""
    output_bytes: Annotated[int, Field(ge=256, le=MAX_OUTPUT_BYTES)] = 65536
    """Bytes of stdout, and of stderr, that are kept; a call that writes more ends with output_limit."""
    processes: Annotated[int, Field(ge=1, le=1024)] = 48
    """Processes and threads, in addition to the main thread."""
    file_bytes: Annotated[int, Field(ge=0, le=1 << 20)] = 0
    """Bytes of files in /tmp/out that are returned; 0: none. Not for cells of a session."""

    @classmethod
    def from_spec(cls, spec: JudgeLimitsSpec) -> JudgeLimits:
        """Return the wire form of a manifest's limits; memory is rounded down to whole MiB."""
        return cls(
            wall_seconds=float(spec.timeout_seconds),
            memory_mib=int(amount(spec.memory)) >> 20,
            output_bytes=int(amount(spec.output)),
            processes=spec.processes,
        )
