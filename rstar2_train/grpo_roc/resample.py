"""Resample-on-Correct: which rollouts of a group train the policy (paper §2.2.3).

Twice as many rollouts are sampled as are trained on. Failures are kept as they come, so that the policy goes on seeing
every way to fail; of the successes, those with clean traces are preferred. Stands between the verdicts and the
advantages. Pure: the same arguments give the same selection on every machine. Imports only the standard library.
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
"""Added to p_total before it is inverted: the paper's weight 1/p_total has no value for a flawless trace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutStats:
    """The properties of one rollout that resampling uses."""

    reward: float
    """1 if the answer is correct, else 0 (eq. 3)."""
    penalty: float = 0.0
    """p_total = p_err + p_format, in [0, 2] (eqs. 4 and 5)."""
    failed: bool = False
    """Lost to infrastructure: excluded from the group, whatever the other fields hold."""

    @property
    def positive(self) -> bool:
        """Whether the answer is correct."""
        return self.reward > 0


@dataclass(frozen=True, slots=True)
class RolloutSelection:
    """What became of a group."""

    kept: list[int]
    """Indices of the rollouts selected, ascending: min(G, survivors) of them."""
    reasons: list[str]
    """One for each rollout. kept: negative | positive; untrained: all correct | all wrong | alone (selected, but the
    group has no variance); dropped: negative | penalty (a positive that was not drawn) | uniform | infrastructure."""
    trainable: bool
    """Whether the selected rewards differ; a group without variance has no advantage to learn from."""


def resample(
    stats: Sequence[RolloutStats], *, keep: int, mode: Mode = "Paper", min_per_class: int = 0, seed: Seed
) -> RolloutSelection:
    """Select `keep` (G) of the rollouts of one prompt.

    Of L rollouts that infrastructure spared, all are kept when L <= G; else `class_counts` says how many failures and
    successes, and they are drawn without replacement: failures uniformly; successes with weight 1/(p_total + DELTA)
    (Paper), by lowest p_total (Rank), or uniformly (Uniform, where the counts too are those of a plain draw of G).

    Args:
        stats: the group's rollouts, in the order of their sample index.
        keep: G, the rollouts a group trains on, at least 1.
        mode: how successes are drawn.
        min_per_class: keep at least so many of either class, where it has them; at most G/2.
        seed: run seed, step and prompt id (or one number); the same seed draws the same on every machine.

    Raises:
        ValueError: when keep or min_per_class is impossible.
    """
    _check(keep=keep, min_per_class=min_per_class)
    alive = [index for index, rollout in enumerate(stats) if not rollout.failed]
    negatives = [index for index in alive if not stats[index].positive]
    positives = [index for index in alive if stats[index].positive]
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
    return RolloutSelection(
        kept=kept, reasons=_reasons(stats, set(kept), mode, len(rewards) > 1), trainable=len(rewards) > 1
    )


def class_counts(
    *, negatives: int, positives: int, keep: int, min_per_class: int = 0, wanted_negatives: int | None = None
) -> tuple[int, int]:
    """How many failures and successes to keep of a group with more than `keep` rollouts; always `keep` together.

    The paper halves both classes of 2G rollouts; with L survivors, floor(negatives * G / L) failures are kept and
    successes fill up to G. Then each class is raised to its minimum at the other's cost. Integers throughout: rounding
    never makes the sum miss G.

    Args:
        negatives: failures in the group.
        positives: successes in the group.
        keep: G.
        min_per_class: least number of either class, where it has them.
        wanted_negatives: start from this count of failures in place of the paper's.
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
    """A 64-bit number from a seed, the same in every process (Python's own hash of a string is not)."""
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
            chosen_by = "uniform" if mode == "Uniform" else "penalty" if rollout.positive else "negative"
            reasons.append(f"dropped: {chosen_by}")
        elif trainable:
            reasons.append("kept: positive" if rollout.positive else "kept: negative")
        elif len(kept) == 1:
            reasons.append("untrained: alone")
        else:
            reasons.append("untrained: all correct" if rollout.positive else "untrained: all wrong")
    return reasons
