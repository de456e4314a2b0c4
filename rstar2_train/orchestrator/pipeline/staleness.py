"""How old the weights are that sampled a batch: metrics for tracking, and the version that its reward rates. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from rstar2_train.api.stages import Stage
from rstar2_train.orchestrator.initial_policy import version_step
from rstar2_train.rollout.trajectory import Trajectory
from rstar2_train.trainer.types import TokenSequence


def staleness_metrics(trained: Iterable[Iterable[TokenSequence]], *, bound: int) -> dict[str, float]:
    """Return the staleness of the trained tokens: mean, maximum, and the share of each value from 0 to `bound`.

    Return nothing for a batch without a trained token.
    """
    counts = np.zeros(bound + 1, dtype=np.int64)
    for group in trained:
        for sequence in group:
            ages = np.zeros(len(sequence.ids), np.int32) if sequence.staleness is None else sequence.staleness
            counts += np.bincount(ages[sequence.mask], minlength=bound + 1)[: bound + 1]
    total = int(counts.sum())
    if not total:
        return {}
    return {
        "staleness/mean": float(np.arange(bound + 1) @ counts / total),
        "staleness/max": float(np.flatnonzero(counts)[-1]),
        **{f"staleness/lag_{age}_ratio": float(count / total) for age, count in enumerate(counts)},
    }


def sampled_step(stage: Stage, groups: Sequence[Sequence[Trajectory]], *, default: int) -> int:
    """Return the step of the weights that sampled most first turns of a batch; `default` if no version is known.

    The reward of the batch rates these weights.
    """
    turns = (
        next((segment for segment in trajectory.segments if segment.kind == "model"), None)
        for group in groups
        for trajectory in group
    )
    versions = Counter(turn.weight_version for turn in turns if turn is not None)
    steps = {version: version_step(stage, version) for version in versions}
    known = [(count, step) for version, count in versions.items() if (step := steps[version]) is not None]
    return max(known)[1] if known else default
