"""The arrays of tokens and log-probabilities that a trajectory and a sequence of the trainer have."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

import numpy as np

from rstar2_train.rollout.trajectory import Trajectory
from rstar2_train.trainer.types import TokenSequence


def token_array(ids: Iterable[int]) -> array[int]:
    """Return token ids as int32."""
    return array("i", ids)


def logprob_array(values: Iterable[float]) -> array[float]:
    """Return log-probabilities as float32."""
    return array("f", values)


def token_sequence(
    ids: Sequence[int], mask: Sequence[int], *, advantage: float = 0.0, engine_logprobs: Sequence[float] | None = None
) -> TokenSequence:
    """Return a sequence of the trainer."""
    return TokenSequence(
        np.array(ids, np.int32),
        np.array(mask, bool),
        advantage=advantage,
        engine_logprobs=None if engine_logprobs is None else np.array(engine_logprobs, np.float32),
    )


def response(trajectory: Trajectory) -> tuple[list[int], list[int], list[float]]:
    """Return token ids, mask and engine log-probabilities after the prompt of a rollout's only sequence."""
    (sequence,) = trajectory.sequences()
    start = len(trajectory.prompt_ids)
    assert sequence.engine_logprobs is not None
    values = (sequence.ids, sequence.mask.astype(int), sequence.engine_logprobs)
    ids, mask, logprobs = (each[start:].tolist() for each in values)
    return ids, mask, logprobs
