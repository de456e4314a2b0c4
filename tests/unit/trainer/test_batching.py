"""Sharing out an update: nothing lost, nothing cut, equal numbers of passes, true denominators."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar2_train.trainer.batching import MicroBatch, grpo_updates, sft_rows, share_out
from rstar2_train.trainer.types import TokenizedExample, TrainSequence


def rollout(*, prompt: int = 3, mask: list[int], advantage: float = 1.0, first: int = 100) -> TrainSequence:
    return TrainSequence(
        prompt_ids=list(range(1, prompt + 1)),
        response_ids=list(range(first, first + len(mask))),
        mask=mask,
        engine_logprobs=[-0.5 * n for n in range(len(mask))],
        advantage=advantage,
    )


def tokens(batches: list[MicroBatch]) -> list[tuple[int, float]]:
    return sorted(
        (int(target), float(weight))
        for batch in batches
        for target, weight in zip(batch.targets, batch.weights, strict=True)
        if weight
    )


def test_sft_weights_are_a_mean_over_learned_tokens_and_the_first_token_is_not_one() -> None:
    rows = sft_rows([TokenizedExample([5, 6, 7], [1, 1, 0]), TokenizedExample([8, 9], [0, 1])])
    assert [row.learned.tolist() for row in rows] == [[False, True, False], [False, True]]
    assert [row.weight for row in rows] == [0.5, 0.5]


@pytest.mark.parametrize(
    ("sequences", "message"),
    [
        ([], "no token"),
        ([TokenizedExample([1, 2], [1, 0])], "no token"),
        ([TokenizedExample([1, 2], [1])], "sequence 0: 2 tokens"),
    ],
)
def test_bad_sft_batches_are_refused(sequences: list[TokenizedExample], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sft_rows(sequences)


def test_each_target_is_predicted_from_the_token_before_it() -> None:
    batch = share_out(
        grpo_updates([[rollout(mask=[1, 0, 1])]], updates=1, seed=0)[0][0], ranks=1, tokens_per_micro_batch=64
    )[0][0]
    assert batch.ids.tolist() == [[1, 2, 3, 100, 101, 102]]
    assert batch.targets.tolist() == [100, 102]
    assert batch.positions.tolist() == [2, 4]
    assert batch.engine_logprobs is not None
    assert batch.engine_logprobs.tolist() == [0.0, -1.0]


def test_positions_are_flat_over_padded_rows() -> None:
    batch = share_out(
        sft_rows([TokenizedExample([1, 2], [0, 1]), TokenizedExample([3, 4, 5, 6], [0, 0, 0, 1])]),
        ranks=1,
        tokens_per_micro_batch=8,
    )[0][0]
    assert batch.ids.tolist() == [[3, 4, 5, 6], [1, 2, 0, 0]]
    assert batch.positions.tolist() == [2, 4]
    assert batch.targets.tolist() == [6, 2]


def test_group_weights_have_the_true_denominators_of_their_update() -> None:
    groups = [
        [rollout(mask=[1, 1]), rollout(mask=[1, 0, 1])],
        [rollout(mask=[1]), rollout(mask=[1])],
        [rollout(mask=[1] * 8)],
    ]
    (only,) = grpo_updates(groups, updates=1, seed=0)
    assert [[row.weight for row in group] for group in only] == [[1 / 12] * 2, [1 / 6] * 2, [1 / 24]]
    split = grpo_updates(groups, updates=2, seed=0)
    assert sorted(len(update) for update in split) == [1, 2]
    for update in split:
        for group in update:
            learned = sum(int(row.learned.sum()) for row in group)
            assert group[0].weight == pytest.approx(1 / (learned * len(update)))


def test_groups_are_shared_out_by_seed_and_stay_whole() -> None:
    groups = [[rollout(mask=[1], first=10 * n), rollout(mask=[1], first=10 * n)] for n in range(1, 9)]

    def layout(seed: int) -> list[list[int]]:
        updates = grpo_updates(groups, updates=4, seed=seed)
        assert all(group[0].ids.tolist() == group[1].ids.tolist() for update in updates for group in update)
        return [[int(group[0].ids[-1]) for group in update] for update in updates]

    assert layout(1) == layout(1)
    assert layout(1) != layout(2)
    assert sorted(n for update in layout(1) for n in update) == [10 * n for n in range(1, 9)]
    assert [len(update) for update in layout(1)] == [2, 2, 2, 2]


def test_fewer_groups_than_updates() -> None:
    assert len(grpo_updates([[rollout(mask=[1])]], updates=4, seed=0)) == 1


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([], "no group"),
        ([[]], "group 0 is empty"),
        ([[rollout(mask=[0, 0])]], "no trained token"),
        ([[rollout(prompt=0, mask=[1])]], "prompt is empty"),
        (
            [[TrainSequence(prompt_ids=[1], response_ids=[2], mask=[1, 1], engine_logprobs=[0.0], advantage=1.0)]],
            "mask of 2",
        ),
        (
            [[TrainSequence(prompt_ids=[1], response_ids=[2], mask=[1], engine_logprobs=[], advantage=1.0)]],
            "0 engine log-probs",
        ),
    ],
)
def test_bad_groups_are_refused(groups: list[list[TrainSequence]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        grpo_updates(groups, updates=1, seed=0)


@given(st.lists(st.integers(2, 40), min_size=1, max_size=40), st.integers(1, 5), st.integers(2, 200))
def test_every_token_is_in_exactly_one_micro_batch(lengths: list[int], ranks: int, budget: int) -> None:
    sequences = [
        TokenizedExample([100 * n + k for k in range(length)], [1] * length)
        for n, length in enumerate(lengths, start=1)
    ]
    rows = sft_rows(sequences)
    shares = share_out(rows, ranks=ranks, tokens_per_micro_batch=budget)
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
        real = batch.weights > 0
        assert (flat[batch.positions[real] + 1] == batch.targets[real]).all()


def test_ranks_get_like_shares() -> None:
    rows = sft_rows([TokenizedExample([1] * length, [1] * length) for length in range(2, 102)])
    shares = share_out(rows, ranks=4, tokens_per_micro_batch=512)
    sizes = [sum(len(batch.targets) for batch in share) for share in shares]
    assert max(sizes) - min(sizes) <= 0.05 * max(sizes)
