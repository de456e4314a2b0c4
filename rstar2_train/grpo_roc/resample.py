"""Resample-on-Correct: selects the rollouts of a group that train the policy (paper §2.2.3).

The group has twice as many rollouts as train. Wrong rollouts are drawn uniformly, so that the policy still learns from
every kind of failure. Of the correct rollouts, those with clean traces are preferred. Runs after the verdicts and
before the advantages. Pure: the same arguments give the same selection on every machine. Imports only the standard
library.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Mode = Literal["Paper", "Rank", "Uniform"]
Seed = int | tuple[int | str, ...]

DELTA = 0.05
"""Added to p_total before the inversion: the paper's weight 1/p_total is undefined for a trace without penalty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutStats:
    """The properties of one rollout that resampling uses."""

    reward: float
    """1 if the answer is correct, else 0 (eq. 3); or a score in [0, 1]."""
    correct: bool
    """Whether the answer is correct."""
    penalty: float = 0.0
    """p_total = p_err + p_format, in [0, 2] (eqs. 4 and 5)."""
    failed: bool = False
    """Lost to infrastructure: excluded from the group; the other fields are ignored."""


@dataclass(frozen=True, slots=True)
class RolloutSelection:
    """The selection of one group."""

    kept: list[int]
    """Indices of the selected rollouts, ascending: min(G, rollouts that are not lost) of them."""
    reasons: list[str]
    """One reason per rollout. kept: negative | positive; untrained: all correct | all wrong | alone (selected, but the
    group has no variance); dropped: negative | penalty (a positive that was not drawn) | uniform | infrastructure."""
    trainable: bool
    """Whether the selected rollouts train: if their rewards differ, as all advantages are 0 without variance, or if
    equal rewards train."""


def resample(
    stats: Sequence[RolloutStats],
    *,
    keep: int,
    mode: Mode = "Paper",
    min_per_class: int = 0,
    equal_rewards_train: bool = False,
    seed: Seed,
) -> RolloutSelection:
    """Select `keep` (G) of the rollouts of one prompt.

    Of L rollouts that are not lost, all are kept if L <= G. Otherwise `class_counts` gives the numbers of wrong and
    correct rollouts, and they are drawn without replacement: wrong ones uniformly; correct ones with weight
    1/(p_total + DELTA) (Paper), by lowest p_total (Rank), or uniformly (Uniform; then the counts too are those of a
    plain draw of G).

    Args:
        stats: the group's rollouts, in the order of their sample index.
        keep: G, the number of rollouts that train, at least 1.
        mode: how correct rollouts are drawn.
        min_per_class: smallest number of each class, if the class has it; at most G/2.
        equal_rewards_train: whether the objective has a term without the reward: of a teacher.
        seed: run seed, step and prompt id (or one number); the same seed gives the same draw on every machine.

    Raises:
        ValueError: for an impossible keep or min_per_class.
    """
    _check(keep=keep, min_per_class=min_per_class)
    alive = [index for index, rollout in enumerate(stats) if not rollout.failed]
    negatives = [index for index in alive if not stats[index].correct]
    positives = [index for index in alive if stats[index].correct]
    if len(alive) <= keep:
        kept = alive
    else:
        rng = random.Random(stable_hash(seed))
        if mode == "Uniform":
            drawn = set(rng.sample(alive, keep))
            drawn_negatives = sum(index in drawn for index in negatives)
        else:
            drawn_negatives = len(negatives) * keep // len(alive)
        negative_count, positive_count = class_counts(
            negatives=len(negatives),
            positives=len(positives),
            keep=keep,
            min_per_class=min_per_class,
            wanted_negatives=drawn_negatives,
        )
        kept = sorted(
            rng.sample(negatives, negative_count) + _draw_positives(stats, positives, positive_count, mode, rng)
        )
    rewards = {stats[index].reward for index in kept}
    trainable = len(rewards) > 1 or (equal_rewards_train and bool(kept))
    return RolloutSelection(kept=kept, reasons=_reasons(stats, set(kept), mode, trainable), trainable=trainable)


def class_counts(
    *, negatives: int, positives: int, keep: int, min_per_class: int = 0, wanted_negatives: int | None = None
) -> tuple[int, int]:
    """Return the numbers of wrong and correct rollouts to keep; their sum is `keep` for a group that is larger.

    The paper halves both classes of 2G rollouts. With L rollouts, floor(negatives * G / L) wrong ones are kept, and
    correct ones fill up to G. Then each class is raised to its minimum at the cost of the other. All numbers are
    integers: the sum is always exactly G.

    Args:
        negatives: wrong rollouts in the group.
        positives: correct rollouts in the group.
        keep: G.
        min_per_class: smallest number of each class, if the class has it.
        wanted_negatives: number of wrong rollouts to start from instead of the paper's.
    """
    _check(keep=keep, min_per_class=min_per_class)
    total = negatives + positives
    if total <= keep:
        return negatives, positives
    wanted = negatives * keep // total if wanted_negatives is None else wanted_negatives
    least = max(min(min_per_class, negatives), keep - positives)
    most = min(keep - min(min_per_class, positives), negatives)
    count = min(max(wanted, least), most)
    return count, keep - count


def stable_hash(seed: Seed) -> int:
    """Return a 64-bit number for a seed, the same in every process; Python's own hash of a string differs."""
    text = json.dumps(seed if isinstance(seed, int) else list(seed))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def _check(*, keep: int, min_per_class: int) -> None:
    if keep < 1:
        raise ValueError(f"keep must be at least 1, not {keep}")
    if not 0 <= 2 * min_per_class <= keep:
        raise ValueError(f"min_per_class must be between 0 and keep/2 = {keep // 2}, not {min_per_class}")


def _draw_positives(
    stats: Sequence[RolloutStats], positives: list[int], count: int, mode: Mode, rng: random.Random
) -> list[int]:
    if mode == "Uniform":
        return rng.sample(positives, count)
    if mode == "Rank":
        return sorted(positives, key=lambda index: (stats[index].penalty, index))[:count]
    # Efraimidis and Spirakis: the `count` largest u^(1/w) are a weighted draw without replacement. In logarithms,
    # log(u) * (p_total + DELTA), so that nothing underflows; 1 - random() is in (0, 1], whose logarithm is finite.
    keys = {index: math.log(1.0 - rng.random()) * (stats[index].penalty + DELTA) for index in positives}
    return sorted(positives, key=lambda index: keys[index], reverse=True)[:count]


def _reasons(stats: Sequence[RolloutStats], kept: set[int], mode: Mode, trainable: bool) -> list[str]:
    reasons = []
    for index, rollout in enumerate(stats):
        if rollout.failed:
            reasons.append("dropped: infrastructure")
        elif index not in kept:
            chosen_by = "uniform" if mode == "Uniform" else "penalty" if rollout.correct else "negative"
            reasons.append(f"dropped: {chosen_by}")
        elif trainable:
            reasons.append("kept: positive" if rollout.correct else "kept: negative")
        elif len(kept) == 1:
            reasons.append("untrained: alone")
        else:
            reasons.append("untrained: all correct" if rollout.correct else "untrained: all wrong")
    return reasons
