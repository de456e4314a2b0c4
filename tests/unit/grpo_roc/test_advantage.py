"""Eq. 7: hand-computed values, and properties of any group."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar2_train.grpo_roc.advantage import shaped_reward, standardised


def test_standardised_rewards_match_hand_computed_values() -> None:
    # mean 3/4, squared deviations 3/16 + 9/16 = 3/4, variance (3/4)/3 = 1/4, std 1/2
    """Three correct rollouts of four: the advantages of eq. 7, computed by hand."""
    assert standardised([1, 1, 1, 0]) == pytest.approx([0.5, 0.5, 0.5, -1.5], rel=1e-5)


@given(st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=32))
def test_standardised_rewards_have_mean_zero_and_unit_spread(rewards: list[float]) -> None:
    """For any group the advantages have mean 0, and standard deviation 1 if the rewards differ."""
    advantages = standardised(rewards)
    assert sum(advantages) == pytest.approx(0, abs=1e-9)
    spread = math.sqrt(sum(value**2 for value in advantages) / (len(rewards) - 1))
    assert spread == pytest.approx(1 if len(set(rewards)) > 1 else 0, abs=1e-4)


@pytest.mark.parametrize("rewards", [[], [1.0], [1.0, 1.0], [0.0] * 5])
def test_standardised_rewards_without_variance_are_zero(rewards: list[float]) -> None:
    """Equal rewards, and a single rollout, have advantage 0."""
    assert standardised(rewards) == [0.0] * len(rewards)


@pytest.mark.parametrize(("length", "expected"), [(1, 1.0), (80, 1.0), (90, 0.75), (100, 0.5), (120, 0.5)])
def test_shaped_reward_falls_in_the_buffer(length: int, expected: float) -> None:
    """The penalty grows linearly over the last fifth of the response, to its maximum (DAPO, eq. 13)."""
    assert shaped_reward(1.0, length=length, most=100, buffer_ratio=0.2, penalty=0.5) == pytest.approx(expected)


def test_shaped_reward_without_a_buffer_is_the_reward() -> None:
    """A ratio of 0 shapes nothing, also at the limit."""
    assert shaped_reward(1.0, length=100, most=100, buffer_ratio=0.0, penalty=1.0) == 1.0
