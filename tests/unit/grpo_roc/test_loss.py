"""The loss of a micro-batch: hand-computed values of eq. 6, its bits, and the metrics."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rstar2_train.api.stages import GRPOSettings, ImportanceCorrection
from rstar2_train.grpo_roc.advantage import standardised
from rstar2_train.grpo_roc.gap import GAP_EDGES, gap_quantile
from rstar2_train.grpo_roc.loss import LossParts, excluded_by_gap, k3, policy_loss
from rstar2_train.grpo_roc.tokens import Counts, Tokens

SETTINGS = GRPOSettings()
RECORDED = [
    *("-0x1.f28c600000000p-4", "0x1.75e9480000000p-3", "0x1.75e9480000000p-3"),
    *("-0x1.75e9480000000p-3", "0x1.186ef60000000p-2"),
]


def flat(
    new: Tensor,
    old: Tensor,
    advantages: Tensor,
    *,
    trained: Tensor | None = None,
    groups: Tensor | None = None,
) -> Tokens:
    """Return the tokens of one micro-batch, each a sequence of its own, which is the whole update."""
    trained = torch.ones(len(new), dtype=torch.bool) if trained is None else trained
    groups = torch.zeros(len(new), dtype=torch.int64) if groups is None else groups
    by_group = groups[trained].bincount()
    return Tokens(
        logprobs=new,
        old_logprobs=old,
        advantages=advantages,
        trained=trained,
        sequences=torch.arange(len(new)),
        groups=groups,
        sequence_tokens=trained.long(),
        counts=Counts(len(by_group), int(trained.sum()), int(trained.sum()), by_group),
    )


def one_token(
    *, ratio: float, advantage: float, engine_ratio: float | None = None, cap: float | None = None
) -> tuple[LossParts, float]:
    """Return the loss parts of a single token with this ratio, and the gradient of its log-probability."""
    old = torch.tensor([-1.0])
    new = (old + math.log(ratio)).requires_grad_()
    correction = ImportanceCorrection() if cap is None else ImportanceCorrection(enabled=True, cap=cap)
    parts = policy_loss(
        flat(new, old, torch.tensor([advantage])),
        SETTINGS.model_copy(update={"importance_correction": correction}),
        engine_logprobs=None if engine_ratio is None else old - math.log(engine_ratio),
    )
    parts.loss.backward()
    assert new.grad is not None
    return parts, new.grad.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "objective", "gradient", "clipped"),
    [
        (1.0, 2.0, 2.0, 2.0, 0),  # on policy
        (1.2, 1.0, 1.2, 1.2, 0),  # inside the range
        (1.5, 1.0, 1.28, 0.0, 1),  # above: clip-higher
        (1.5, -1.0, -1.5, -1.5, 0),  # above with a negative advantage: not clipped, as eq. 6 takes the minimum
        (0.5, 1.0, 0.5, 0.5, 0),  # below with a positive advantage: not clipped
        (0.5, -1.0, -0.8, 0.0, 1),  # below: clip-low
    ],
)
def test_policy_loss_one_token_matches_hand_computed(
    ratio: float, advantage: float, objective: float, gradient: float, clipped: int
) -> None:
    """Loss, gradient and metrics of one token, inside and outside of the clip range."""
    parts, slope = one_token(ratio=ratio, advantage=advantage)
    assert parts.loss.item() == pytest.approx(-objective, rel=1e-5)
    assert slope == pytest.approx(-gradient, rel=1e-5)
    assert parts.sums["clipped"].item() == clipped
    assert parts.sums["ratio"].item() == pytest.approx(ratio, rel=1e-5)
    assert parts.sums["kl"].item() == pytest.approx(ratio - 1 - math.log(ratio), rel=1e-5)


@pytest.mark.parametrize(("engine_ratio", "weight"), [(0.5, 0.5), (1.0, 1.0), (1.5, 1.5), (8.0, 2.0)])
def test_policy_loss_truncates_the_importance_correction(engine_ratio: float, weight: float) -> None:
    """A token has weight min(cap, p_trainer / p_engine)."""
    parts, slope = one_token(ratio=1.0, advantage=3.0, engine_ratio=engine_ratio, cap=2.0)
    assert slope == pytest.approx(-3.0 * weight, rel=1e-5)
    assert parts.sums["correction"].item() == pytest.approx(weight, rel=1e-5)
    assert parts.maxima["mismatch_max"].item() == pytest.approx(abs(math.log(engine_ratio)), abs=1e-6)


def test_policy_loss_without_correction_ignores_engine_logprobs() -> None:
    """Without correction the engine's log-probabilities change only the metrics."""
    plain, slope = one_token(ratio=1.0, advantage=3.0)
    measured, same = one_token(ratio=1.0, advantage=3.0, engine_ratio=4.0)
    assert slope == same
    assert plain.loss == measured.loss
    assert measured.sums["mismatch"].item() == pytest.approx(math.log(4), rel=1e-5)


def test_policy_loss_correction_needs_engine_logprobs() -> None:
    """A correction without the engine's log-probabilities is an error."""
    with pytest.raises(ValueError, match="engine"):
        one_token(ratio=1.0, advantage=1.0, cap=2.0)


def test_policy_loss_default_has_recorded_bits() -> None:
    """The gradient on policy, recorded when eq. 6 was the only objective."""
    new = torch.zeros(5).requires_grad_()
    advantages = torch.tensor([standardised([1, 0, 0, 1, 1])[number] for number in (0, 1, 1, 3, 2)])
    groups = torch.tensor([0, 0, 0, 1, 1])
    policy_loss(flat(new, torch.zeros(5), advantages, groups=groups), GRPOSettings()).loss.backward()
    assert new.grad is not None
    assert [value.hex() for value in new.grad.tolist()] == RECORDED


def three_tokens(**options: Tensor) -> LossParts:
    """Return the parts of three tokens: gaps log 2, log 0.5 and 0; the third is masked."""
    old = torch.tensor([-1.0, -1.0, -1.0])
    tokens = flat(old.clone().requires_grad_(), old, torch.ones(3), trained=torch.tensor([True, True, False]))
    engine = old - torch.tensor([math.log(2), math.log(0.5), 5.0])
    return policy_loss(tokens, SETTINGS, engine_logprobs=engine, **options)


def test_policy_loss_separates_engine_error_and_drift() -> None:
    """The gap of stale tokens is counted apart; masked tokens are in no metric."""
    sums = three_tokens(stale=torch.tensor([True, False, True])).sums
    assert sums["drift"].item() == pytest.approx(math.log(2))
    assert sums["stale"].item() == 1
    assert sums["mismatch"].item() == pytest.approx(2 * math.log(2))
    assert sums["outside"].item() == 2
    assert sums["weight"].item() == pytest.approx(2.5)
    assert sums["weight_squared"].item() == pytest.approx(4.25)


def test_policy_loss_histogram_counts_the_trained_tokens() -> None:
    """The bins of the gap sum to the number of trained tokens, and a quantile is within a bin of the exact value."""
    counts = three_tokens().gaps.tolist()
    assert sum(counts) == 2
    assert gap_quantile(counts, 0.5) == pytest.approx(math.log(2), rel=0.08)


def test_gap_quantile_is_the_edge_of_its_bin() -> None:
    """A share of exactly the first bins ends in them; gaps above the largest edge count as the largest."""
    counts = [0.0] * (len(GAP_EDGES) + 1)
    counts[3], counts[10], counts[-1] = 50, 49, 1
    assert gap_quantile(counts, 0.5) == GAP_EDGES[3]
    assert gap_quantile(counts, 0.99) == GAP_EDGES[10]
    assert gap_quantile(counts, 1.0) == GAP_EDGES[-1]


def test_policy_loss_excluded_tokens_have_no_gradient() -> None:
    """An excluded token stays in the metrics, and has weight 0 in the loss."""
    parts = three_tokens(excluded=torch.tensor([True, False, False]))
    assert parts.loss.item() == pytest.approx(-0.5)
    assert parts.sums["excluded"].item() == 1
    assert parts.sums["tokens"].item() == 2


def test_excluded_by_gap_takes_the_mean_of_a_sequence() -> None:
    """A sequence is excluded as a whole; masked tokens do not count in its mean."""
    gap = torch.tensor([0.3, -0.3, 9.0, 0.0, 0.1, 0.4])
    trained = torch.tensor([True, True, False, True, True, True])
    rows = torch.tensor([0, 0, 0, 1, 1, 2])
    excluded = excluded_by_gap(gap, trained, rows, count=3, limit=0.2)
    assert excluded.tolist() == [True, True, True, False, False, True]


@pytest.mark.parametrize("mean", [0.1, 0.1 * (1 + 1e-5)])
def test_excluded_by_gap_counts_a_long_sequence_exactly(mean: float) -> None:
    """A mean that is 1e-5 above the limit is above it; the sum of 60,000 gaps in float32 is wrong by 6e-5."""
    gap, limit = torch.full((60_000,), mean), torch.tensor(0.1).item()
    excluded = excluded_by_gap(
        gap, torch.ones(60_000, dtype=torch.bool), torch.zeros(60_000, dtype=torch.int64), count=1, limit=limit
    )
    assert bool(excluded.any()) == (mean > 0.1)


@pytest.mark.parametrize("size", [1e-6, 1e-4, 1e-2, 1.0, 20.0])
def test_k3_has_its_digits_near_0_and_is_never_negative(size: float) -> None:
    """Next to x it is of the size of a rounding of float32."""
    x = torch.tensor([size, -size])
    wide = x.double()
    series = wide**2 / 2 + wide**3 / 6 + wide**4 / 24
    torch.testing.assert_close(k3(x).double(), series if size < 0.1 else wide.exp() - 1 - wide, rtol=1e-6, atol=0.0)


def test_sequence_mean_counts_rollouts_that_leave_the_loss() -> None:
    """A rollout that is dropped for its gap has no denominator; its mean is still a mean, which cannot overflow."""
    ones = torch.ones(6, dtype=torch.bool)
    values = torch.tensor([0.5, 1.5, 2.0, 60.0, 60.0, 60.0])
    tokens = Tokens(
        logprobs=values,
        old_logprobs=torch.zeros(6),
        advantages=torch.ones(6),
        trained=ones,
        sequences=torch.tensor([0, 0, 0, 1, 1, 1]),
        groups=torch.zeros(6, dtype=torch.int64),
        sequence_tokens=torch.tensor([3, 0]),
        counts=Counts(1, 1, 3, torch.tensor([3])),
    )
    torch.testing.assert_close(tokens.sequence_mean(values), torch.tensor([4 / 3] * 3 + [60.0] * 3))
    assert tokens.sequence_mean(tokens.log_ratio).exp().isfinite().all()
