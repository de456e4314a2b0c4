"""Bin packing of sequences into micro-batches."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar2_train.trainer.bins import fill, pack_bins


@given(st.lists(st.integers(1, 120), max_size=60), st.integers(1, 100), st.integers(1, 5))
def test_pack_bins_keeps_each_sequence_once(lengths: list[int], capacity: int, ranks: int) -> None:
    """Every sequence is in one bin; a bin exceeds the capacity only with a single sequence."""
    bins = pack_bins(lengths, capacity=capacity, ranks=ranks)
    assert sorted(index for members in bins for index in members) == list(range(len(lengths)))
    assert all(members for members in bins)
    sizes = [sum(lengths[index] for index in members) for members in bins]
    assert all(size <= capacity or len(members) == 1 for size, members in zip(sizes, bins, strict=True))
    assert sizes == sorted(sizes, reverse=True)


@given(st.lists(st.integers(1, 100), min_size=1, max_size=60))
def test_pack_bins_are_at_least_half_full(lengths: list[int]) -> None:
    """Two bins are never both at most half full: best fit would have joined them."""
    bins = pack_bins(lengths, capacity=100)
    assert sum(sum(lengths[index] for index in members) <= 50 for members in bins) <= 1


def test_pack_bins_spread_small_updates_over_the_ranks() -> None:
    """An update that fits into one bin is shared by all ranks in similar parts."""
    bins = pack_bins([10] * 8, capacity=1000, ranks=4)
    assert [len(members) for members in bins] == [2, 2, 2, 2]


@pytest.mark.parametrize(("response", "budget"), [(8_192, 20_480), (12_288, 20_480), (12_288, 40_960)])
@pytest.mark.parametrize("mean", [0.35, 0.5, 0.65])
def test_pack_bins_fill_micro_batches(response: int, budget: int, mean: float) -> None:
    """The rollouts of a step of the paper (10 % and more of them cut off at the limit) fill 95 % of the budget."""
    draw = random.Random(0)
    lengths = [
        200 + min(response, round(draw.lognormvariate(math.log(mean * response), 0.5)))
        for _ in range(512 * 16 * 7 // 10)
    ]
    bins = pack_bins(lengths, capacity=budget, ranks=24)
    assert fill(lengths, len(bins), capacity=budget) >= 0.95
