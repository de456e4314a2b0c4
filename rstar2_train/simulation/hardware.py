"""The cost model of one engine, as data: seconds per decode step and per prefilled token, and the size of its KV cache.

A decode step of B sequences with K tokens of KV cache in total takes `step + sequence * B + token * K` seconds: launch
and weights, arithmetic, and reading the cache. `hardware.json` has models of GPU engines by arithmetic from their
bandwidth; `bench/rollout_engines.py` fits one to real engines.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from pydantic import ConfigDict, Field

from rstar2_train.api.base import ApiModel

MODELS = Path(__file__).with_name("hardware.json")


class HardwareError(ValueError):
    """A hardware model is unknown or invalid."""


class Hardware(ApiModel):
    """One engine."""

    model_config = ApiModel.model_config | ConfigDict(strict=False, frozen=True)

    step_seconds: float = Field(gt=0)
    """Seconds of a decode step without sequences."""
    sequence_seconds: float = Field(ge=0)
    """Further seconds per sequence of the batch."""
    token_seconds: float = Field(ge=0)
    """Further seconds per token of KV cache of the batch."""
    prefill_seconds: float = Field(ge=0)
    """Seconds per prefilled token."""
    request_seconds: float = Field(default=0, ge=0)
    """Seconds from a request to its first step, apart from its prefill."""
    kv_tokens: int = Field(gt=0)
    """Tokens of KV cache."""
    block_tokens: int = Field(default=16, gt=0)
    """Tokens per block."""
    max_sequences: int = Field(default=1024, gt=0)
    """Largest number of sequences of a batch."""
    source: str = ""
    """Origin of the figures."""

    def seconds(self, sequences: float, tokens: float) -> float:
        """Return the seconds of one decode step."""
        return self.step_seconds + self.sequence_seconds * sequences + self.token_seconds * tokens


def load_hardware(name: str) -> Hardware:
    """Return a model of `hardware.json`. Raises HardwareError for an unknown name; the message lists the names."""
    models = json.loads(MODELS.read_text(encoding="utf-8"))
    if name not in models:
        raise HardwareError(f"no hardware model {name!r}: use one of {', '.join(models)}, or the fields of a model")
    return Hardware(**models[name])


def fit_decode(samples: Sequence[tuple[float, float, float]]) -> tuple[float, float, float]:
    """Return (step, sequence, token) seconds that fit (sequences, tokens of KV cache, seconds per step) best.

    Least squares of the relative error; no coefficient is negative. Raises HardwareError for fewer than three samples.
    """
    if len(samples) < 3:
        raise HardwareError(f"{len(samples)} samples: a fit needs at least three")
    data = np.array(samples, dtype=float)
    design = np.column_stack([np.ones(len(data)), data[:, 0], data[:, 1]]) / data[:, 2:]
    active = [0, 1, 2]
    while True:
        solution = np.linalg.lstsq(design[:, active], np.ones(len(data)), rcond=None)[0]
        if (solution >= 0).all() or len(active) == 1:
            break
        active.pop(int(np.argmin(solution)))
    cost = np.zeros(3)
    cost[active] = solution
    return max(float(cost[0]), 1e-6), float(cost[1]), float(cost[2])
