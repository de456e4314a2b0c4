"""Eq. 7: hand-computed values, and properties of any group."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar2_train.grpo_roc.advantage import group_advantages, group_token_weights


def test_group_advantages_match_hand_computed_values() -> None:
    # mean 3/4, squared deviations 3/16 + 9/16 = 3/4, variance (3/4)/3 = 1/4, std 1/2
    """Three correct rollouts of four: the advantages of eq. 7, computed by hand."""
    assert group_advantages([1, 1, 1, 0]) == pytest.approx([0.5, 0.5, 0.5, -1.5], rel=1e-5)


@given(st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=32))
def test_group_advantages_have_mean_zero_and_unit_spread(rewards: list[float]) -> None:
    """For any group the advantages have mean 0, and standard deviation 1 if the rewards differ."""
    advantages = group_advantages(rewards)
    assert sum(advantages) == pytest.approx(0, abs=1e-9)
    spread = math.sqrt(sum(value**2 for value in advantages) / (len(rewards) - 1))
    assert spread == pytest.approx(1 if len(set(rewards)) > 1 else 0, abs=1e-4)


@pytest.mark.parametrize("rewards", [[], [1.0], [1.0, 1.0], [0.0] * 5])
def test_group_advantages_without_variance_are_zero(rewards: list[float]) -> None:
    """Equal rewards, and a single rollout, have advantage 0."""
    assert group_advantages(rewards) == [0.0] * len(rewards)


def test_group_token_weights_match_eq_6() -> None:
    """The weight is a token mean inside the group and a mean over groups."""
    assert group_token_weights([10, 40]) == pytest.approx([1 / 20, 1 / 80])


def test_group_token_weights_empty_group_raises() -> None:
    """A group without a trained token is rejected."""
    with pytest.raises(ValueError, match="no trained token"):
        group_token_weights([3, 0])
