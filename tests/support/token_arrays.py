"""The arrays of tokens and log-probabilities that a trajectory has."""

from __future__ import annotations

from array import array
from collections.abc import Iterable


def token_array(ids: Iterable[int]) -> array[int]:
    """Return token ids as int32."""
    return array("i", ids)


def logprob_array(values: Iterable[float]) -> array[float]:
    """Return log-probabilities as float32."""
    return array("f", values)
