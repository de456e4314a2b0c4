"""The order in which data is drawn: a function of seed, name and step."""

from __future__ import annotations

import pytest

from rstar2_train.data.sampler import PromptSampler


@pytest.mark.parametrize(("size", "batch"), [(12, 4), (13, 4), (4, 4), (3, 4), (1, 1)])
def test_an_epoch_draws_distinct_items(size: int, batch: int) -> None:
    order = PromptSampler(size=size, batch=batch, seed=3)
    for epoch in range(3):
        drawn = [
            item for step in range(order.batches_per_epoch) for item in order.at(epoch * order.batches_per_epoch + step)
        ]
        assert len(drawn) == len(set(drawn)) == min(size, batch) * order.batches_per_epoch
        assert set(drawn) <= set(range(size))


def test_what_an_epoch_leaves_out_comes_back() -> None:
    order = PromptSampler(size=13, batch=4, seed=0)
    assert {item for step in range(60) for item in order.at(step)} == set(range(13))


def test_the_step_alone_decides_so_a_resumed_run_draws_the_same() -> None:
    first = PromptSampler(size=100, batch=16, seed=1, name="rl-1")
    drawn = [first.at(step) for step in range(20)]
    again = PromptSampler(size=100, batch=16, seed=1, name="rl-1")
    assert [again.at(step) for step in reversed(range(20))] == drawn[::-1]


def test_seed_name_and_epoch_each_change_the_order() -> None:
    base = PromptSampler(size=100, batch=100, seed=1, name="rl-1")
    orders = [
        base.at(0),
        base.at(1),
        PromptSampler(100, 100, 2, "rl-1").at(0),
        PromptSampler(100, 100, 1, "rl-2").at(0),
    ]
    assert len({tuple(order) for order in orders}) == len(orders)


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match="batches of 4 from 0 items"):
        PromptSampler(size=0, batch=4, seed=0)
    with pytest.raises(ValueError, match="step -1"):
        PromptSampler(size=4, batch=4, seed=0).at(-1)
