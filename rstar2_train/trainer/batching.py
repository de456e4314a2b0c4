"""Distributes the sequences of an update over ranks and micro-batches. Pure; NumPy arrays, no torch.

Every rank must run the same number of forward passes, because each one is a set of collectives: ranks with fewer
micro-batches run padding with weight 0. Sequences are never truncated or dropped to even the numbers out.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rstar2_train.grpo_roc.tokens import Counts
from rstar2_train.trainer.bins import pack_bins
from rstar2_train.trainer.types import TokenSequence


@dataclass(frozen=True, slots=True)
class BatchRow:
    """One sequence of an update, before packing."""

    sequence: TokenSequence
    sft_weight: float = 1.0
    """Weight of each trained token in the mean of SFT; 0: padding. Objectives derive their own from the counts."""
    group: int = 0
    """Number of its group in the update, from 0."""

    def __len__(self) -> int:
        """Return the number of its tokens."""
        return len(self.sequence.ids)


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
    sft_weights: NDArray[np.float32]
    """[trained] `BatchRow.sft_weight`; 0: padding, which does not train."""
    advantages: NDArray[np.float32]
    rows: NDArray[np.int64]
    """[trained] sequence of each trained token, from 0."""
    row_tokens: NDArray[np.int64]
    """[sequences] trained tokens of each sequence; 0: padding."""
    groups: NDArray[np.int64]
    """[trained] group of each trained token, from 0 in the update."""
    counts: Counts[NDArray[np.int64]]
    engine_logprobs: NDArray[np.float32] | None = None
    reference_logprobs: NDArray[np.float32] | None = None
    """[trained] by a teacher behind an endpoint; None: not from there."""
    stale: NDArray[np.bool_] | None = None
    """[trained] whether older weights sampled the token; None: no token of the batch."""
    sequences: int = field(default=0)
    """Number of sequences without padding rows."""
    lengths: tuple[int, ...] | None = None
    """Packed: the length of each sequence. Attention does not cross their borders. None: padded."""
    routes: tuple[bytes, ...] | None = None
    """`TokenSequence.routes` of each sequence, empty for padding; None: no sequence has them."""


def sft_rows(sequences: Sequence[TokenSequence]) -> list[BatchRow]:
    """Return rows whose weights make the loss the mean over all trained tokens of the batch.

    Raises:
        ValueError: for an empty batch, or a batch without a trained token.
    """
    tokens = sum(map(_trained_tokens, sequences))
    if not tokens:
        raise ValueError("the batch has no trained token: check the masks")
    return [BatchRow(sequence, sft_weight=1.0 / tokens) for sequence in sequences]


def grpo_updates(groups: Sequence[Sequence[TokenSequence]], *, updates: int, seed: int) -> list[list[list[BatchRow]]]:
    """Distribute the groups of a step over its updates.

    Groups stay whole. `seed` determines the update of each group. With fewer groups than updates, each group is one
    update.

    Returns:
        For each update, its groups as rows.

    Raises:
        ValueError: for no group, a group without a trained token, or an empty prompt.
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
    # A rollout whose budget was used up before its first token has nothing to train.
    trained = [row for row in rows if _trained_tokens(row.sequence)]
    split = share(trained, ranks, tokens_per_micro_batch)
    count = max(1, *(len(batches) for batches in split))
    padding = _padding_row(rows[0].sequence if rows else None)
    counts = update_counts(rows)
    return [
        [_join(batch, packed=packed, counts=counts) for batch in batches]
        + [_join([padding], sequences=0, packed=packed, counts=counts)] * (count - len(batches))
        for batches in split
    ]


def update_counts(rows: Sequence[BatchRow]) -> Counts[NDArray[np.int64]]:
    """Return the denominators of an update, before its sequences are split over micro-batches and ranks."""
    by_group = np.zeros(1 + max((row.group for row in rows), default=0), dtype=np.int64)
    sequences = 0
    for row in rows:
        tokens = _trained_tokens(row.sequence)
        by_group[row.group] += tokens
        sequences += tokens > 0
    return Counts(int((by_group > 0).sum()), sequences, int(by_group.sum()), by_group)


def _padded_shares(rows: Sequence[BatchRow], ranks: int, budget: int) -> list[list[list[BatchRow]]]:
    """Deal rows sorted by length to the ranks, and split each share where its padded size would exceed the budget."""
    order = sorted(rows, key=len, reverse=True)
    shares: list[list[BatchRow]] = [[] for _ in range(ranks)]
    for position, row in enumerate(order):
        shares[_snake_rank(position, ranks)].append(row)
    return [_split(share, budget) for share in shares]


def _packed_shares(rows: Sequence[BatchRow], ranks: int, budget: int) -> list[list[list[BatchRow]]]:
    """Deal full bins to the ranks: the bins of one turn, which the ranks run together, have similar sizes."""
    shares: list[list[list[BatchRow]]] = [[] for _ in range(ranks)]
    for position, members in enumerate(pack_bins([len(row) for row in rows], capacity=budget, ranks=ranks)):
        shares[_snake_rank(position, ranks)].append([rows[index] for index in members])
    return shares


def _snake_rank(position: int, ranks: int) -> int:
    """Return the rank of an item, dealt in alternating direction, so that the shares are similar."""
    turn, rank = divmod(position, ranks)
    return rank if turn % 2 == 0 else ranks - 1 - rank


def _update(groups: list[tuple[int, Sequence[TokenSequence]]]) -> list[list[BatchRow]]:
    for index, group in groups:
        if not group:
            raise ValueError(f"group {index} is empty")
        for number, rollout in enumerate(group):
            if rollout.mask[:1].any():
                raise ValueError(f"group {index}, rollout {number}: the prompt is empty")
        if not any(map(_trained_tokens, group)):
            raise ValueError(f"group {index} has no trained token")
    return [[BatchRow(rollout, group=number) for rollout in group] for number, (_, group) in enumerate(groups)]


def _trained_tokens(sequence: TokenSequence) -> int:
    return int(sequence.mask[1:].sum())


def _split(share: list[BatchRow], budget: int) -> list[list[BatchRow]]:
    batches: list[list[BatchRow]] = []
    for row in share:  # longest first: the first row of a batch determines its width
        if batches and (len(batches[-1]) + 1) * len(batches[-1][0]) <= budget:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


def _padding_row(like: TokenSequence | None) -> BatchRow:
    """Return a row that does not train, with the log-probabilities that the other rows have."""
    zeros, mask = np.zeros(2, dtype=np.float32), np.array([False, True])
    padding = TokenSequence(
        np.zeros(2, dtype=np.int32),
        mask,
        engine_logprobs=None if like is None or like.engine_logprobs is None else zeros,
        reference_logprobs=None if like is None or like.reference_logprobs is None else zeros,
    )
    return BatchRow(padding, sft_weight=0.0)


def _join(
    rows: list[BatchRow], *, sequences: int | None = None, packed: bool, counts: Counts[NDArray[np.int64]]
) -> MicroBatch:
    members = [row.sequence for row in rows]
    lengths = [len(row) for row in rows]
    if packed:
        ids = np.concatenate([member.ids for member in members])[None]
        starts = np.cumsum([0, *lengths[:-1]])
    else:
        ids = np.zeros((len(rows), max(lengths)), dtype=np.int32)
        for number, member in enumerate(members):
            ids[number, : len(member.ids)] = member.ids
        starts = np.arange(len(rows)) * max(lengths)
    trained = [np.flatnonzero(member.mask[1:]) + 1 for member in members]
    learned = [len(places) for places in trained]
    return MicroBatch(
        ids=ids,
        positions=np.concatenate([start + places - 1 for start, places in zip(starts, trained, strict=True)]),
        targets=np.concatenate([member.ids[places] for member, places in zip(members, trained, strict=True)]).astype(
            np.int64
        ),
        sft_weights=np.repeat(np.array([row.sft_weight for row in rows], dtype=np.float32), learned),
        advantages=np.repeat(np.array([member.advantage for member in members], dtype=np.float32), learned),
        engine_logprobs=_joined([member.engine_logprobs for member in members], trained),
        reference_logprobs=_joined([member.reference_logprobs for member in members], trained),
        stale=_stale(members, trained),
        rows=np.repeat(np.arange(len(rows), dtype=np.int64), learned),
        row_tokens=np.array(
            [count if row.sft_weight else 0 for row, count in zip(rows, learned, strict=True)], np.int64
        ),
        groups=np.repeat(np.array([row.group for row in rows], dtype=np.int64), learned),
        counts=counts,
        sequences=len(rows) if sequences is None else sequences,
        lengths=tuple(lengths) if packed else None,
        routes=tuple(member.routes or b"" for member in members) if any(member.routes for member in members) else None,
    )


def _joined(values: list[NDArray[np.float32] | None], trained: list[NDArray[np.intp]]) -> NDArray[np.float32] | None:
    """Return the values of the trained tokens of all sequences; None if no sequence has values."""
    parts = [own[places] for own, places in zip(values, trained, strict=True) if own is not None]
    return np.concatenate(parts) if parts else None


def _stale(members: list[TokenSequence], trained: list[NDArray[np.intp]]) -> NDArray[np.bool_] | None:
    """Return whether older weights than those of the update sampled each trained token; None: no token."""
    if all(member.staleness is None for member in members):
        return None
    return np.concatenate(
        [
            np.zeros(len(places), dtype=bool) if member.staleness is None else member.staleness[places] > 0
            for member, places in zip(members, trained, strict=True)
        ]
    )
