"""Distributes the sequences of an update over ranks and micro-batches. Pure; NumPy arrays, no torch.

Every rank must run the same number of forward passes, because each one is a set of collectives: ranks with fewer
micro-batches run padding with weight 0. Sequences are never truncated or dropped to even the numbers out.
"""

from __future__ import annotations

import random
from collections.abc import Sequence, Sized
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rstar2_train.grpo_roc.advantage import group_token_weights
from rstar2_train.trainer.bins import pack_bins
from rstar2_train.trainer.types import TokenizedExample, TrainSequence


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRow:
    """One sequence of an update, before packing. Arrays have the length of the sequence."""

    ids: NDArray[np.int32]
    learned: NDArray[np.bool_]
    """Whether the token is trained; never the first token."""
    weight: float
    """Weight of each trained token in the update."""
    advantage: float = 0.0
    engine_logprobs: NDArray[np.float32] | None = None
    stale: NDArray[np.bool_] | None = None
    """Whether older weights than those of the update sampled the token; None: no token."""
    group: int = 0
    """Number of its group in the update, from 0."""


@dataclass(slots=True)
class MicroBatch:
    """The input of one rank's forward pass, padded or packed. Causal attention needs no mask in either form.

    The per-token arrays have only the trained tokens, sequence by sequence.
    """

    ids: NDArray[np.int32]
    """Padded: [sequences, longest] token ids; padding is 0, on the right, and no trained token attends to it.
    Packed: [1, tokens], the sequences one after another."""
    positions: NDArray[np.int64]
    """[trained] flat index in `ids` of the position that predicts each trained token."""
    targets: NDArray[np.int64]
    """[trained] the predicted token."""
    weights: NDArray[np.float32]
    advantages: NDArray[np.float32]
    engine_logprobs: NDArray[np.float32] | None = None
    stale: NDArray[np.bool_] | None = None
    """[trained] whether older weights sampled the token; None: no token of the batch."""
    rows: NDArray[np.int64] | None = None
    """[trained] sequence of each trained token, from 0."""
    groups: NDArray[np.int64] | None = None
    """[trained] group of each trained token, from 0 in the update."""
    group_count: int = 1
    """Groups of the update, over all ranks."""
    sequences: int = field(default=0)
    """Number of sequences without padding rows."""
    lengths: tuple[int, ...] | None = None
    """Packed: the length of each sequence. Attention does not cross their borders. None: padded."""


def sft_rows(sequences: Sequence[TokenizedExample]) -> list[BatchRow]:
    """Return rows whose weights make the loss the mean over all trained tokens of the batch.

    Raises:
        ValueError: for an empty batch, a mask of another length, or a batch without a trained token.
    """
    masks = []
    for index, sequence in enumerate(sequences):
        masks.append(_mask(f"sequence {index}", sequence.ids, sequence.mask))
        masks[-1][:1] = False
    tokens = sum(int(mask.sum()) for mask in masks)
    if not tokens:
        raise ValueError("the batch has no trained token: check the masks")
    return [
        BatchRow(ids=np.asarray(sequence.ids, dtype=np.int32), learned=mask, weight=1.0 / tokens)
        for sequence, mask in zip(sequences, masks, strict=True)
    ]


def grpo_updates(groups: Sequence[Sequence[TrainSequence]], *, updates: int, seed: int) -> list[list[list[BatchRow]]]:
    """Distribute the groups of a step over its updates; weights have the exact denominators of each update.

    Groups stay whole. `seed` determines the update of each group. With fewer groups than updates, each group is one
    update.

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


def distribute_rows(
    rows: Sequence[BatchRow], *, ranks: int, tokens_per_micro_batch: int, packed: bool = False
) -> list[list[MicroBatch]]:
    """Return the micro-batches of each rank, the same number for all, with shares of similar size.

    Args:
        rows: the sequences of an update.
        ranks: number of ranks.
        tokens_per_micro_batch: largest size of a micro-batch, padding included; a longer sequence has its own.
        packed: put sequences one after another, by bin packing (`bins`). Otherwise rows of similar length are padded.
    """
    share = _packed_shares if packed else _padded_shares
    split = share(rows, ranks, tokens_per_micro_batch)
    count = max(len(batches) for batches in split)
    engine = bool(rows) and rows[0].engine_logprobs is not None
    padding = _padding_row(engine=engine)
    groups = 1 + max((row.group for row in rows), default=0)
    return [
        [_join(batch, packed=packed, group_count=groups) for batch in batches]
        + [_join([padding], sequences=0, packed=packed, group_count=groups)] * (count - len(batches))
        for batches in split
    ]


def _padded_shares(rows: Sequence[BatchRow], ranks: int, budget: int) -> list[list[list[BatchRow]]]:
    """Deal rows sorted by length to the ranks, and split each share where its padded size would exceed the budget."""
    order = sorted(rows, key=lambda row: len(row.ids), reverse=True)
    shares: list[list[BatchRow]] = [[] for _ in range(ranks)]
    for position, row in enumerate(order):
        shares[_dealt(position, ranks)].append(row)
    return [_split(share, budget) for share in shares]


def _packed_shares(rows: Sequence[BatchRow], ranks: int, budget: int) -> list[list[list[BatchRow]]]:
    """Deal full bins to the ranks: the bins of one turn, which the ranks run together, have similar sizes."""
    shares: list[list[list[BatchRow]]] = [[] for _ in range(ranks)]
    for position, members in enumerate(pack_bins([len(row.ids) for row in rows], capacity=budget, ranks=ranks)):
        shares[_dealt(position, ranks)].append([rows[index] for index in members])
    return shares


def _dealt(position: int, ranks: int) -> int:
    """Return the rank of an item, dealt in alternating direction, so that the shares are similar."""
    turn, rank = divmod(position, ranks)
    return rank if turn % 2 == 0 else ranks - 1 - rank


def _update(groups: list[tuple[int, Sequence[TrainSequence]]]) -> list[list[BatchRow]]:
    masks = []
    for index, group in groups:
        if not group:
            raise ValueError(f"group {index} is empty")
        masks.append([_response_mask(f"group {index}, rollout {n}", rollout) for n, rollout in enumerate(group)])
    weights = group_token_weights([sum(int(mask.sum()) for mask in group) for group in masks])
    return [
        [_rollout_row(rollout, mask, weight, number) for rollout, mask in zip(group, group_masks, strict=True)]
        for number, ((_, group), group_masks, weight) in enumerate(zip(groups, masks, weights, strict=True))
    ]


def _rollout_row(rollout: TrainSequence, mask: NDArray[np.bool_], weight: float, group: int) -> BatchRow:
    prompt = len(rollout.prompt_ids)
    engine = np.zeros(len(mask), dtype=np.float32)
    engine[prompt:] = rollout.engine_logprobs
    stale = None
    if any(rollout.staleness):
        stale = np.zeros(len(mask), dtype=bool)
        stale[prompt:] = np.asarray(rollout.staleness) > 0
    return BatchRow(
        ids=np.concatenate([np.asarray(part, dtype=np.int32) for part in (rollout.prompt_ids, rollout.response_ids)]),
        learned=mask,
        weight=weight,
        advantage=rollout.advantage,
        engine_logprobs=engine,
        stale=stale,
        group=group,
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


def _mask(where: str, ids: Sized, mask: Sequence[int] | NDArray[np.bool_]) -> NDArray[np.bool_]:
    if len(ids) != len(mask):
        raise ValueError(f"{where}: {len(ids)} tokens, but a mask of {len(mask)}")
    return np.array(mask, dtype=bool)


def _split(share: list[BatchRow], budget: int) -> list[list[BatchRow]]:
    batches: list[list[BatchRow]] = []
    for row in share:  # longest first: the first row of a batch determines its width
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


def _join(rows: list[BatchRow], *, sequences: int | None = None, packed: bool, group_count: int) -> MicroBatch:
    lengths = [len(row.ids) for row in rows]
    if packed:
        ids = np.concatenate([row.ids for row in rows])[None]
        starts = np.cumsum([0, *lengths[:-1]])
    else:
        ids = np.zeros((len(rows), max(lengths)), dtype=np.int32)
        for number, row in enumerate(rows):
            ids[number, : len(row.ids)] = row.ids
        starts = np.arange(len(rows)) * max(lengths)
    counts = [int(row.learned.sum()) for row in rows]
    positions = [start + np.flatnonzero(row.learned) - 1 for start, row in zip(starts, rows, strict=True)]
    engine = [row.engine_logprobs[row.learned] for row in rows if row.engine_logprobs is not None]
    stale = None
    if any(row.stale is not None for row in rows):
        none = [np.zeros(count, dtype=bool) for count in counts]
        stale = np.concatenate(
            [fresh if row.stale is None else row.stale[row.learned] for row, fresh in zip(rows, none, strict=True)]
        )
    return MicroBatch(
        ids=ids,
        positions=np.concatenate(positions),
        targets=np.concatenate([row.ids[row.learned] for row in rows]).astype(np.int64),
        weights=np.repeat(np.array([row.weight for row in rows], dtype=np.float32), counts),
        advantages=np.repeat(np.array([row.advantage for row in rows], dtype=np.float32), counts),
        engine_logprobs=np.concatenate(engine) if engine else None,
        stale=stale,
        rows=np.repeat(np.arange(len(rows), dtype=np.int64), counts) if engine else None,
        groups=np.repeat(np.array([row.group for row in rows], dtype=np.int64), counts) if engine else None,
        group_count=group_count,
        sequences=len(rows) if sequences is None else sequences,
        lengths=tuple(lengths) if packed else None,
    )
