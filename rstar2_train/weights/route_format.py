"""The experts that a mixture chose for tokens, as bytes: one row per token, with the experts of all layers.

Engine, trajectory and trainer have the same rows. Layers without experts have zeros, as vLLM has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from rstar2_train.capacity.config_file import CONFIG, read_config
from rstar2_train.capacity.model_defaults import with_defaults
from rstar2_train.capacity.model_support import expert_count

_BYTE = 256
"""Most experts whose numbers fit into one byte."""


@dataclass(frozen=True, slots=True)
class RouteFormat:
    """The shape of a row."""

    layers: int
    experts: int
    """Experts per token and layer."""
    number_bytes: int
    """Bytes of the number of an expert: 1, or 2 for more than 256 experts."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self | None:
        """Return the format of a model by its config.json; None if it is no mixture."""
        count = expert_count(config)
        if not count:
            return None
        values = with_defaults(config)
        layers, chosen = int(values["num_hidden_layers"]), int(values["num_experts_per_tok"])
        return cls(layers, chosen, 1 if count <= _BYTE else 2)

    @classmethod
    def of_folder(cls, folder: Path) -> Self | None:
        """Return the format of a model folder; None if it has no mixture, or no config.json."""
        return cls.of(read_config(folder)) if (folder / CONFIG).is_file() else None

    def missing(self, routes: bytes | None, tokens: int) -> int:
        """Return how many of the first `tokens` tokens of a sequence have no experts."""
        return max(0, tokens - len(routes or b"") // self.row_bytes)

    @property
    def row_bytes(self) -> int:
        """Bytes of the experts of one token."""
        return self.layers * self.experts * self.number_bytes

    def encode(self, rows: NDArray[Any]) -> bytes:
        """Return rows [tokens, layers, experts] as bytes."""
        return rows.astype(self._type).tobytes()

    def decode(self, data: bytes) -> NDArray[Any]:
        """Return bytes as rows [tokens, layers, experts]. Raises ValueError for those of another model."""
        if len(data) % self.row_bytes:
            raise ValueError(f"{len(data)} bytes are not the experts of tokens with {self.row_bytes} bytes each")
        return np.frombuffer(data, self._type).reshape(-1, self.layers, self.experts)

    @property
    def _type(self) -> str:
        return f"<u{self.number_bytes}"
