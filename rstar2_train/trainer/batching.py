"""Shares the sequences of an update out over ranks and micro-batches. Pure; NumPy arrays, no torch.

Every rank must run the same number of forward passes, for each is a set of collectives: ranks with less to do run
padding of zero weight. Sequences are never cut or dropped to make numbers even.
"""

from __future__ import annotations

import random
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rstar2_train.grpo_roc.advantage import group_token_weights
from rstar2_train.trainer.types import TokenizedExample, TrainSequence


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRow:
    """One sequence of an update, ready to be packed. Arrays have the length of the sequence."""

    ids: NDArray[np.int32]
    learned: NDArray[np.bool_]
    """Tokens whose log-probability counts; never the first."""
    weight: float
    """Weight of each of its learned tokens in the update."""
    advantage: float = 0.0
    engine_logprobs: NDArray[np.float32] | None = None


@dataclass(slots=True)
class MicroBatch:
    """What one rank holds in one forward pass: padded on the right, so that causal attention needs no mask.

    The per-token arrays list the learned tokens only, row by row.
    """

    ids: NDArray[np.int32]
    """[rows, longest]; padding is 0, and no learned token can see it."""
    positions: NDArray[np.int64]
    """[learned] flat index in [rows, longest] of the position that predicts each learned token."""
    targets: NDArray[np.int64]
    """[learned] the token predicted there."""
    weights: NDArray[np.float32]
    advantages: NDArray[np.float32]
    engine_logprobs: NDArray[np.float32] | None = None
    sequences: int = field(default=0)
    """Real sequences in it."""


def sft_rows(sequences: Items[TokenizedExample]) -> list[BatchRow]:
    """Rows whose weights make the loss the mean over all learned tokens of the batch.

    Raises:
        ValueError: for an empty batch, a mask of another length, or nothing to learn at all.
    """
    masks = []
    for index, sequence in enumerate(sequences):
        masks.append(_mask(f"sequence {index}", sequence.ids, sequence.mask))
        masks[-1][:1] = False
    tokens = sum(int(mask.sum()) for mask in masks)
    if not tokens:
        raise ValueError("the batch has no token to learn: check the masks")
    return [
        BatchRow(ids=np.asarray(sequence.ids, dtype=np.int32), learned=mask, weight=1.0 / tokens)
        for sequence, mask in zip(sequences, masks, strict=True)
    ]


def grpo_updates(groups: Items[Items[TrainSequence]], *, updates: int, seed: int) -> list[list[list[BatchRow]]]:
    """The groups of a step, shared out over its updates; weights have the true denominators of each update.

    Groups stay whole. Which group falls into which update is drawn from `seed`; with fewer groups than updates there
    are as many updates as groups.

    Returns:
        For each update, its groups as rows.

    Raises:
        ValueError: for no group, an empty group or prompt, or lengths that differ.
    """
    if not groups:
        raise ValueError("no group to train on: every group was dropped")
    order = list(range(len(groups)))
    updates = min(updates, len(order))
    if updates > 1:
        random.Random(seed).shuffle(order)
    shares = [order[share::updates] for share in range(updates)]
    return [_update([(index, groups[index]) for index in share]) for share in shares]


def share_out(rows: Items[BatchRow], *, ranks: int, tokens_per_micro_batch: int) -> list[list[MicroBatch]]:
    """The micro-batches of each rank: equally many for all, sequences of like length together.

    Rows sorted by length are dealt out back and forth, so that ranks get like shares; each rank cuts its share where
    the padded size would exceed the budget.
    """
    order = sorted(rows, key=lambda row: len(row.ids), reverse=True)
    hands: list[list[BatchRow]] = [[] for _ in range(ranks)]
    for position, row in enumerate(order):
        turn, place = divmod(position, ranks)
        hands[place if turn % 2 == 0 else ranks - 1 - place].append(row)
    cut = [_cut(hand, tokens_per_micro_batch) for hand in hands]
    count = max(len(batches) for batches in cut)
    engine = bool(order) and order[0].engine_logprobs is not None
    padding = _padding_row(engine=engine)
    return [
        [_pack(batch) for batch in batches] + [_pack([padding], sequences=0)] * (count - len(batches))
        for batches in cut
    ]


def _update(groups: list[tuple[int, Items[TrainSequence]]]) -> list[list[BatchRow]]:
    masks = []
    for index, group in groups:
        if not group:
            raise ValueError(f"group {index} is empty")
        masks.append([_response_mask(f"group {index}, rollout {n}", rollout) for n, rollout in enumerate(group)])
    weights = group_token_weights([sum(int(mask.sum()) for mask in group) for group in masks])
    return [
        [_rollout_row(rollout, mask, weight) for rollout, mask in zip(group, group_masks, strict=True)]
        for (_, group), group_masks, weight in zip(groups, masks, weights, strict=True)
    ]


def _rollout_row(rollout: TrainSequence, mask: NDArray[np.bool_], weight: float) -> BatchRow:
    prompt = len(rollout.prompt_ids)
    engine = np.zeros(len(mask), dtype=np.float32)
    engine[prompt:] = rollout.engine_logprobs
    return BatchRow(
        ids=np.concatenate([np.asarray(part, dtype=np.int32) for part in (rollout.prompt_ids, rollout.response_ids)]),
        learned=mask,
        weight=weight,
        advantage=rollout.advantage,
        engine_logprobs=engine,
    )


def _response_mask(where: str, rollout: TrainSequence) -> NDArray[np.bool_]:
    if not rollout.prompt_ids:
        raise ValueError(f"{where}: the prompt is empty")
    if len(rollout.engine_logprobs) != len(rollout.response_ids):
        raise ValueError(
            f"{where}: {len(rollout.response_ids)} response tokens, {len(rollout.engine_logprobs)} engine log-probs"
        )
    mask = _mask(where, rollout.response_ids, rollout.mask)
    return np.concatenate([np.zeros(len(rollout.prompt_ids), dtype=bool), mask])


def _mask(where: str, ids: Items[int], mask: Items[int]) -> NDArray[np.bool_]:
    if len(ids) != len(mask):
        raise ValueError(f"{where}: {len(ids)} tokens, but a mask of {len(mask)}")
    return np.array(mask, dtype=bool)


def _cut(hand: list[BatchRow], budget: int) -> list[list[BatchRow]]:
    batches: list[list[BatchRow]] = []
    for row in hand:  # longest first: the first row of a batch says how wide it is
        if batches and (len(batches[-1]) + 1) * len(batches[-1][0].ids) <= budget:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


def _padding_row(*, engine: bool) -> BatchRow:
    return BatchRow(
        ids=np.zeros(2, dtype=np.int32),
        learned=np.array([False, True]),
        weight=0.0,
        engine_logprobs=np.zeros(2, dtype=np.float32) if engine else None,
    )


def _pack(rows: list[BatchRow], *, sequences: int | None = None) -> MicroBatch:
    longest = max(len(row.ids) for row in rows)
    ids = np.zeros((len(rows), longest), dtype=np.int32)
    for number, row in enumerate(rows):
        ids[number, : len(row.ids)] = row.ids
    counts = [int(row.learned.sum()) for row in rows]
    positions = [number * longest + np.flatnonzero(row.learned) - 1 for number, row in enumerate(rows)]
    engine = [row.engine_logprobs[row.learned] for row in rows if row.engine_logprobs is not None]
    return MicroBatch(
        ids=ids,
        positions=np.concatenate(positions),
        targets=np.concatenate([row.ids[row.learned] for row in rows]).astype(np.int64),
        weights=np.repeat(np.array([row.weight for row in rows], dtype=np.float32), counts),
        advantages=np.repeat(np.array([row.advantage for row in rows], dtype=np.float32), counts),
        engine_logprobs=np.concatenate(engine) if engine else None,
        sequences=len(rows) if sequences is None else sequences,
    )
