"""The order of the draws is a function of seed, name and step."""

from __future__ import annotations

import pytest

from rstar2_train.data.sampler import PromptSampler


@pytest.mark.parametrize(("size", "batch"), [(12, 4), (13, 4), (4, 4), (3, 4), (1, 1)])
def test_sampler_epoch_draws_distinct_items(size: int, batch: int) -> None:
    """Within an epoch, no item is drawn twice."""
    order = PromptSampler(size=size, batch=batch, seed=3)
    for epoch in range(3):
        drawn = [
            item for step in range(order.batches_per_epoch) for item in order.at(epoch * order.batches_per_epoch + step)
        ]
        assert len(drawn) == len(set(drawn)) == min(size, batch) * order.batches_per_epoch
        assert set(drawn) <= set(range(size))


def test_sampler_draws_every_item_within_epochs() -> None:
    """Later epochs draw the items that one epoch omits."""
    order = PromptSampler(size=13, batch=4, seed=0)
    assert {item for step in range(60) for item in order.at(step)} == set(range(13))


def test_sampler_at_same_step_draws_same_items() -> None:
    """The draw depends on the step only, so a resumed stage draws the same items."""
    first = PromptSampler(size=100, batch=16, seed=1, name="rl-1")
    drawn = [first.at(step) for step in range(20)]
    second = PromptSampler(size=100, batch=16, seed=1, name="rl-1")
    assert [second.at(step) for step in reversed(range(20))] == drawn[::-1]


def test_sampler_order_depends_on_seed_name_and_epoch() -> None:
    """Seed, name and epoch each change the order."""
    base = PromptSampler(size=100, batch=100, seed=1, name="rl-1")
    orders = [
        base.at(0),
        base.at(1),
        PromptSampler(100, 100, 2, "rl-1").at(0),
        PromptSampler(100, 100, 1, "rl-2").at(0),
    ]
    assert len({tuple(order) for order in orders}) == len(orders)


def test_sampler_without_items_or_negative_step_raises() -> None:
    """No items, or a negative step, is an error."""
    with pytest.raises(ValueError, match="batches of 4 from 0 items"):
        PromptSampler(size=0, batch=4, seed=0)
    with pytest.raises(ValueError, match="step is -1"):
        PromptSampler(size=4, batch=4, seed=0).at(-1)
