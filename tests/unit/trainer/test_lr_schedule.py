"""Learning rates: hand-computed values and properties."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar2_train.trainer.lr_schedule import cosine, warmup


def test_warmup_is_linear_then_constant() -> None:
    """The rate rises linearly to the peak and stays there; without warm-up it starts at the peak."""
    rates = [warmup(step, peak=1e-6, warmup_steps=4) for step in range(6)]
    assert rates == pytest.approx([0.25e-6, 0.5e-6, 0.75e-6, 1e-6, 1e-6, 1e-6])
    assert warmup(0, peak=2.0, warmup_steps=0) == 2.0


def test_cosine_matches_hand_computed_rates() -> None:
    """The rates equal values computed by hand."""
    rates = [cosine(step, peak=1.0, total_steps=7, warmup_steps=2, min_ratio=0.2) for step in range(9)]
    # warm-up 1/2, 1; then 5 steps from the peak at step 2 to the minimum at step 6, with the middle at step 4
    assert rates[:3] == pytest.approx([0.5, 1.0, 1.0])
    assert rates[4] == pytest.approx(0.6)
    assert rates[6:] == pytest.approx([0.2, 0.2, 0.2])


@given(st.integers(1, 200), st.integers(0, 200), st.floats(0, 1))
def test_cosine_rises_then_falls_within_bounds(total: int, warmup_steps: int, ratio: float) -> None:
    """The rate rises during the warm-up, then falls, and stays between its bounds."""
    rates = [cosine(s, peak=1.0, total_steps=total, warmup_steps=warmup_steps, min_ratio=ratio) for s in range(total)]
    assert all(0 < rate <= 1 or ratio == 0 for rate in rates)
    after = rates[warmup_steps:]
    assert after == sorted(after, reverse=True)
    assert rates[:warmup_steps] == sorted(rates[:warmup_steps])


def test_schedule_invalid_steps_raise() -> None:
    """Negative steps and an empty schedule are rejected."""
    with pytest.raises(ValueError, match="negative"):
        warmup(-1, peak=1.0, warmup_steps=2)
    with pytest.raises(ValueError, match="total_steps"):
        cosine(0, peak=1.0, total_steps=0, warmup_steps=0)
