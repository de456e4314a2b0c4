"""Eq. 6: hand-computed values, and a comparison with a naive implementation that loops over groups and tokens."""

from __future__ import annotations

import math

import pytest
import torch

from rstar2_train.api.stages import GRPOSettings, ImportanceCorrection
from rstar2_train.grpo_roc.advantage import group_token_weights
from rstar2_train.grpo_roc.gap import GAP_EDGES, gap_quantile
from rstar2_train.grpo_roc.loss import LossParts, excluded_by_gap, grpo_loss

LOW, HIGH = 0.2, 0.28
SETTINGS = GRPOSettings(clip_low=LOW, clip_high=HIGH)


def one_token(
    *, ratio: float, advantage: float, engine_ratio: float | None = None, cap: float | None = None
) -> tuple[LossParts, float]:
    """Return the loss parts of a single token with this ratio, and the gradient of its log-probability."""
    old = torch.tensor([-1.0])
    new = (old + math.log(ratio)).requires_grad_()
    correction = ImportanceCorrection() if cap is None else ImportanceCorrection(enabled=True, cap=cap)
    parts = grpo_loss(
        logprobs=new,
        old_logprobs=old,
        advantages=torch.tensor([advantage]),
        weights=torch.tensor([1.0]),
        settings=SETTINGS.model_copy(update={"importance_correction": correction}),
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
def test_grpo_loss_one_token_matches_hand_computed(
    ratio: float, advantage: float, objective: float, gradient: float, clipped: int
) -> None:
    """Loss, gradient and metrics of one token, inside and outside of the clip range."""
    parts, slope = one_token(ratio=ratio, advantage=advantage)
    assert parts.loss.item() == pytest.approx(-objective, rel=1e-5)
    assert slope == pytest.approx(-gradient, rel=1e-5)
    assert parts.sums["clipped"].item() == clipped
    assert parts.sums["ratio"].item() == pytest.approx(ratio, rel=1e-5)
    assert parts.sums["kl"].item() == pytest.approx(ratio - 1 - math.log(ratio), rel=1e-3, abs=1e-6)


@pytest.mark.parametrize(("engine_ratio", "weight"), [(0.5, 0.5), (1.0, 1.0), (1.5, 1.5), (8.0, 2.0)])
def test_grpo_loss_truncates_the_importance_correction(engine_ratio: float, weight: float) -> None:
    """A token has weight min(cap, p_trainer / p_engine)."""
    parts, slope = one_token(ratio=1.0, advantage=3.0, engine_ratio=engine_ratio, cap=2.0)
    assert slope == pytest.approx(-3.0 * weight, rel=1e-5)
    assert parts.sums["correction"].item() == pytest.approx(weight, rel=1e-5)
    assert parts.maxima["mismatch_max"].item() == pytest.approx(abs(math.log(engine_ratio)), abs=1e-6)


def test_grpo_loss_without_correction_ignores_engine_logprobs() -> None:
    """Without correction the engine's log-probabilities change only the metrics."""
    plain, slope = one_token(ratio=1.0, advantage=3.0)
    measured, same = one_token(ratio=1.0, advantage=3.0, engine_ratio=4.0)
    assert slope == same
    assert plain.loss == measured.loss
    assert measured.sums["mismatch"].item() == pytest.approx(math.log(4), rel=1e-5)


def test_grpo_loss_correction_needs_engine_logprobs() -> None:
    """A correction without the engine's log-probabilities is an error."""
    with pytest.raises(ValueError, match="engine"):
        one_token(ratio=1.0, advantage=1.0, cap=2.0)


def naive(
    logprobs: list[torch.Tensor],
    old: list[torch.Tensor],
    masks: list[list[int]],
    advantages: list[float],
    sizes: list[int],
) -> torch.Tensor:
    """Return eq. 6 literally: the token mean of each group, then the mean over groups."""
    objectives = []
    start = 0
    for size in sizes:
        members = range(start, start + size)
        start += size
        tokens = sum(sum(masks[member]) for member in members)
        total = torch.zeros(())
        for member in members:
            for position, trained in enumerate(masks[member]):
                if trained:
                    ratio = torch.exp(logprobs[member][position] - old[member][position])
                    low = ratio if ratio > 1 - LOW else torch.tensor(1 - LOW)
                    bounded = low if low < 1 + HIGH else torch.tensor(1 + HIGH)
                    first, second = ratio * advantages[member], bounded * advantages[member]
                    total = total + (first if first <= second else second)
        objectives.append(total / tokens)
    return -sum(objectives, torch.zeros(())) / len(sizes)


@pytest.mark.parametrize("seed", range(5))
def test_grpo_loss_matches_a_naive_implementation(seed: int) -> None:
    """Value and gradient over two micro-batches equal loops over groups and tokens."""
    generator = torch.Generator().manual_seed(seed)
    sizes = [3, 5, 2]
    lengths = torch.randint(2, 9, (sum(sizes),), generator=generator).tolist()
    masks = [[1, *torch.randint(0, 2, (length - 1,), generator=generator).tolist()] for length in lengths]
    advantages = torch.randn(len(lengths), generator=generator).tolist()
    old = [torch.randn(length, generator=generator) - 3 for length in lengths]
    moved = [values + 0.4 * torch.randn(len(values), generator=generator) for values in old]

    reference = [values.clone().requires_grad_() for values in moved]
    expected = naive(reference, old, masks, advantages, sizes)
    expected.backward()

    longest = max(lengths)
    new = torch.zeros(len(lengths), longest)
    before = torch.full((len(lengths), longest), float("nan"))  # the content of padding must not matter
    weights = torch.zeros(len(lengths), longest)
    tokens = [sum(sum(masks[n]) for n in range(sum(sizes[:g]), sum(sizes[: g + 1]))) for g in range(len(sizes))]
    by_group = group_token_weights(tokens)
    group_of = [g for g, size in enumerate(sizes) for _ in range(size)]
    for row, length in enumerate(lengths):
        new[row, :length] = moved[row]
        before[row, :length] = old[row]
        weights[row, :length] = torch.tensor(masks[row]) * by_group[group_of[row]]
    new.requires_grad_()
    # In two micro-batches, as in the trainer: the parts sum up.
    total = torch.zeros(())
    clipped = 0.0
    for rows in (slice(0, 4), slice(4, None)):
        parts = grpo_loss(
            logprobs=new[rows],
            old_logprobs=before[rows],
            advantages=torch.tensor(advantages)[rows, None],
            weights=weights[rows],
            settings=SETTINGS,
        )
        total = total + parts.loss
        clipped += parts.sums["clipped"].item()
    total.backward()

    assert total.item() == pytest.approx(expected.item(), rel=1e-5)
    assert clipped > 0
    assert new.grad is not None
    for row, length in enumerate(lengths):
        slope = reference[row].grad
        # None: all of its tokens are clipped or masked.
        torch.testing.assert_close(new.grad[row, :length], torch.zeros(length) if slope is None else slope)
        assert not new.grad[row, length:].any()


def three_tokens(**options: torch.Tensor) -> LossParts:
    """Return the parts of three tokens: gaps log 2, log 0.5 and 0; the third is masked."""
    old = torch.tensor([-1.0, -1.0, -1.0])
    return grpo_loss(
        logprobs=old.clone().requires_grad_(),
        old_logprobs=old,
        advantages=torch.ones(3),
        weights=torch.tensor([0.5, 0.5, 0.0]),
        settings=SETTINGS,
        engine_logprobs=old - torch.tensor([math.log(2), math.log(0.5), 5.0]),
        **options,  # type: ignore[arg-type]
    )


def test_grpo_loss_separates_engine_error_and_drift() -> None:
    """The gap of stale tokens is counted apart; masked tokens are in no metric."""
    sums = three_tokens(stale=torch.tensor([True, False, True])).sums
    assert sums["drift"].item() == pytest.approx(math.log(2))
    assert sums["stale"].item() == 1
    assert sums["mismatch"].item() == pytest.approx(2 * math.log(2))
    assert sums["outside"].item() == 2
    assert sums["weight"].item() == pytest.approx(2.5)
    assert sums["weight_squared"].item() == pytest.approx(4.25)


def test_grpo_loss_histogram_counts_the_trained_tokens() -> None:
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


def test_grpo_loss_excluded_tokens_have_no_gradient() -> None:
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
