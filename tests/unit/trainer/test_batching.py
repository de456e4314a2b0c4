"""Distribution of an update: every token once, equal numbers of micro-batches, exact denominators."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar2_train.trainer.batching import MicroBatch, distribute_rows, grpo_updates, sft_rows, update_counts
from rstar2_train.trainer.types import TokenSequence
from tests.support.token_arrays import token_sequence


def rollout(*, prompt: int = 3, mask: list[int], advantage: float = 1.0, first: int = 100) -> TokenSequence:
    return token_sequence(
        [*range(1, prompt + 1), *range(first, first + len(mask))],
        [0] * prompt + mask,
        engine_logprobs=[0.0] * prompt + [-0.5 * n for n in range(len(mask))],
        advantage=advantage,
    )


def tokens(batches: list[MicroBatch]) -> list[tuple[int, float]]:
    return sorted(
        (int(target), float(weight))
        for batch in batches
        for target, weight in zip(batch.targets, batch.sft_weights, strict=True)
        if weight
    )


def test_sft_rows_weights_are_a_token_mean() -> None:
    """All trained tokens of a batch have the same weight; the first token of a sequence is never trained."""
    rows = sft_rows([token_sequence([5, 6, 7], [1, 1, 0]), token_sequence([8, 9], [0, 1])])
    assert [row.sft_weight for row in rows] == [0.5, 0.5]
    ((batch,),) = distribute_rows(rows, ranks=1, tokens_per_micro_batch=64)
    assert batch.targets.tolist() == [6, 9]


@pytest.mark.parametrize(
    ("sequences", "message"),
    [
        ([], "no trained token"),
        ([token_sequence([1, 2], [1, 0])], "no trained token"),
    ],
)
def test_sft_rows_invalid_batch_raises(sequences: list[TokenSequence], message: str) -> None:
    """A batch without a trained token is rejected."""
    with pytest.raises(ValueError, match=message):
        sft_rows(sequences)


@pytest.mark.parametrize(
    ("values", "message"),
    [({"mask": [1, 1]}, "mask has 2"), ({"mask": [1], "engine_logprobs": []}, "engine_logprobs has 0")],
)
def test_token_sequence_of_unequal_lengths_raises(values: dict[str, list[int]], message: str) -> None:
    """Each array of a sequence has its length."""
    with pytest.raises(ValueError, match=message):
        token_sequence([5], **values)


def test_distribute_rows_predicts_targets_from_the_token_before() -> None:
    """Positions, targets and engine log-probabilities belong together."""
    batch = distribute_rows(
        grpo_updates([[rollout(mask=[1, 0, 1])]], updates=1, seed=0)[0][0], ranks=1, tokens_per_micro_batch=64
    )[0][0]
    assert batch.ids.tolist() == [[1, 2, 3, 100, 101, 102]]
    assert batch.targets.tolist() == [100, 102]
    assert batch.positions.tolist() == [2, 4]
    assert batch.engine_logprobs is not None
    assert batch.engine_logprobs.tolist() == [0.0, -1.0]


def test_distribute_rows_positions_are_flat() -> None:
    """Positions index the padded micro-batch as one flat array."""
    batch = distribute_rows(
        sft_rows([token_sequence([1, 2], [0, 1]), token_sequence([3, 4, 5, 6], [0, 0, 0, 1])]),
        ranks=1,
        tokens_per_micro_batch=8,
    )[0][0]
    assert batch.ids.tolist() == [[3, 4, 5, 6], [1, 2, 0, 0]]
    assert batch.positions.tolist() == [2, 4]
    assert batch.targets.tolist() == [6, 2]


def test_update_counts_are_those_of_the_whole_update() -> None:
    """Every micro-batch of every rank has the groups, sequences and trained tokens of its update."""
    groups = [
        [rollout(mask=[1, 1]), rollout(mask=[1, 0, 1])],
        [rollout(mask=[1]), rollout(mask=[0])],  # without a trained token: no sequence of the update
        [rollout(mask=[1] * 8)],
    ]
    (only,) = grpo_updates(groups, updates=1, seed=0)
    shares = distribute_rows([row for group in only for row in group], ranks=2, tokens_per_micro_batch=8, packed=True)
    for batch in (batch for share in shares for batch in share):
        counts = batch.counts
        assert (counts.groups, counts.sequences, counts.tokens) == (3, 4, 13)
        assert counts.group_tokens.tolist() == [4, 1, 8]
        assert batch.row_tokens.sum() == (batch.sft_weights > 0).sum()
    split = grpo_updates(groups, updates=2, seed=0)
    sizes = [update_counts([row for group in update for row in group]) for update in split]
    assert sorted(counts.groups for counts in sizes) == [1, 2]
    assert sum(counts.tokens for counts in sizes) == 13


def test_grpo_updates_distribute_whole_groups_by_seed() -> None:
    """The seed determines the update of a group; groups stay whole, and no group is lost."""
    groups = [[rollout(mask=[1], first=10 * n), rollout(mask=[1], first=10 * n)] for n in range(1, 9)]

    def layout(seed: int) -> list[list[int]]:
        updates = grpo_updates(groups, updates=4, seed=seed)
        assert all(
            group[0].sequence.ids.tolist() == group[1].sequence.ids.tolist() for update in updates for group in update
        )
        return [[int(group[0].sequence.ids[-1]) for group in update] for update in updates]

    assert layout(1) == layout(1)
    assert layout(1) != layout(2)
    assert sorted(n for update in layout(1) for n in update) == [10 * n for n in range(1, 9)]
    assert [len(update) for update in layout(1)] == [2, 2, 2, 2]


def test_grpo_updates_with_fewer_groups_than_updates() -> None:
    """Each group is one update."""
    assert len(grpo_updates([[rollout(mask=[1])]], updates=4, seed=0)) == 1


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([], "no group"),
        ([[]], "group 0 is empty"),
        ([[rollout(mask=[0, 0])]], "no trained token"),
        ([[rollout(prompt=0, mask=[1])]], "prompt is empty"),
    ],
)
def test_grpo_updates_invalid_groups_raise(groups: list[list[TokenSequence]], message: str) -> None:
    """Empty groups and empty prompts are rejected."""
    with pytest.raises(ValueError, match=message):
        grpo_updates(groups, updates=1, seed=0)


@given(st.lists(st.integers(2, 40), min_size=1, max_size=40), st.integers(1, 5), st.integers(2, 200))
def test_distribute_rows_keeps_every_token_once(lengths: list[int], ranks: int, budget: int) -> None:
    """Every trained token is in one micro-batch; all ranks have the same number, within the token budget."""
    sequences = [
        token_sequence([100 * n + k for k in range(length)], [1] * length) for n, length in enumerate(lengths, start=1)
    ]
    rows = sft_rows(sequences)
    shares = distribute_rows(rows, ranks=ranks, tokens_per_micro_batch=budget)
    assert len(shares) == ranks
    assert len({len(share) for share in shares}) == 1
    everything = [batch for share in shares for batch in share]
    weight = np.float32(1 / sum(length - 1 for length in lengths))
    expected = sorted((token, float(weight)) for sequence in sequences for token in sequence.ids[1:])
    assert tokens(everything) == expected
    assert sum(batch.sequences for batch in everything) == len(lengths)
    for batch in everything:
        assert batch.ids.size <= budget or len(batch.ids) == 1
        assert len(batch.targets) >= 1
        flat = batch.ids.ravel()
        real = batch.sft_weights > 0
        assert (flat[batch.positions[real] + 1] == batch.targets[real]).all()


@given(st.lists(st.integers(2, 40), min_size=1, max_size=40), st.integers(1, 5), st.integers(2, 200))
def test_distribute_rows_packs_without_padding(lengths: list[int], ranks: int, budget: int) -> None:
    """A packed micro-batch has its sequences one after another; each target follows its position."""
    sequences = [
        token_sequence([100 * n + k for k in range(length)], [1] * length) for n, length in enumerate(lengths, start=1)
    ]
    shares = distribute_rows(sft_rows(sequences), ranks=ranks, tokens_per_micro_batch=budget, packed=True)
    assert len({len(share) for share in shares}) == 1
    real = [batch for share in shares for batch in share if batch.sequences]
    assert sorted(length for batch in real for length in batch.lengths or ()) == sorted(lengths)
    weight = np.float32(1 / sum(length - 1 for length in lengths))
    assert tokens(real) == sorted((token, float(weight)) for sequence in sequences for token in sequence.ids[1:])
    for batch in real:
        assert batch.ids.shape == (1, sum(batch.lengths or ()))
        assert batch.ids.size <= budget or batch.sequences == 1
        assert (batch.ids[0][batch.positions + 1] == batch.targets).all()


def test_distribute_rows_balances_the_ranks() -> None:
    """The numbers of trained tokens per rank differ by at most 5 %."""
    rows = sft_rows([token_sequence([1] * length, [1] * length) for length in range(2, 102)])
    shares = distribute_rows(rows, ranks=4, tokens_per_micro_batch=512)
    sizes = [sum(len(batch.targets) for batch in share) for share in shares]
    assert max(sizes) - min(sizes) <= 0.05 * max(sizes)
