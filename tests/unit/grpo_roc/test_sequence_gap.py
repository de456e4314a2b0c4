"""Rollouts with a large gap, masked or dropped: eq. 6 by loops in float64, compared over micro-batches of two ranks."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from rstar2_train.api.stages import GRPOSettings, ImportanceCorrection
from rstar2_train.grpo_roc.advantage import group_token_weights, kept_group_weights
from rstar2_train.grpo_roc.loss import excluded_by_gap, grpo_loss, kept_group_tokens

LOW, HIGH, CAP, LIMIT = 0.2, 0.28, 2.0, 0.5
SETTINGS = GRPOSettings(clip_low=LOW, clip_high=HIGH, importance_correction=ImportanceCorrection(enabled=True, cap=CAP))
SIZES = (3, 2, 4, 2)


@dataclass
class Rollout:
    """The trained tokens of one rollout, in float64."""

    group: int
    advantage: float
    new: Tensor
    old: Tensor
    engine: Tensor


def rollouts(seed: int, far: set[int]) -> list[Rollout]:
    """Return random rollouts; those with an index in `far` have a mean gap above the limit."""
    draw = torch.Generator().manual_seed(seed)
    made: list[Rollout] = []
    for group in (number for number, size in enumerate(SIZES) for _ in range(size)):
        tokens = int(torch.randint(1, 9, (), generator=draw))
        old = torch.randn(tokens, generator=draw, dtype=torch.float64) - 3
        gap = 0.4 * torch.rand(tokens, generator=draw, dtype=torch.float64)
        gap = gap * torch.randn(tokens, generator=draw, dtype=torch.float64).sign()
        if len(made) in far:
            gap = 2 * gap.sign() + gap
        moved = old + 0.4 * torch.randn(tokens, generator=draw, dtype=torch.float64)
        made.append(Rollout(group, float(torch.randn((), generator=draw)), moved.requires_grad_(), old, old - gap))
    return made


def naive(batch: list[Rollout], *, drop: bool) -> Tensor:
    """Return minus J of docs/algorithm.md, by loops over groups, rollouts and tokens."""
    means = []
    for group in range(len(SIZES)):
        total, tokens = torch.zeros((), dtype=torch.float64), 0
        for rollout in (each for each in batch if each.group == group):
            gaps = [abs(float(old - engine)) for old, engine in zip(rollout.old, rollout.engine, strict=True)]
            far = sum(gaps) / len(gaps) > LIMIT
            if not (drop and far):
                tokens += len(gaps)
            if far:
                continue
            for new, old, engine in zip(rollout.new, rollout.old, rollout.engine, strict=True):
                ratio = torch.exp(new - old)
                bounded = torch.clamp(ratio, 1 - LOW, 1 + HIGH)
                term = torch.minimum(ratio * rollout.advantage, bounded * rollout.advantage)
                total = total + term * min(CAP, float(torch.exp(old - engine)))
        if tokens:
            means.append(total / tokens)
    return -sum(means, torch.zeros((), dtype=torch.float64)) / max(1, len(means))


def sharded(batch: list[Rollout], *, drop: bool) -> tuple[Tensor, float]:
    """Return the sum of the losses of two ranks with two micro-batches each, and the number of excluded tokens."""
    tokens = [sum(len(each.new) for each in batch if each.group == group) for group in range(len(SIZES))]
    by_group = group_token_weights(tokens)
    shares = [batch[start::4] for start in range(4)]
    parts = []
    for share in shares:
        rows = torch.cat([torch.full((len(each.new),), n) for n, each in enumerate(share)])
        groups = torch.tensor([each.group for each in share])[rows]
        weights = torch.tensor(by_group, dtype=torch.float64)[groups]
        gap = torch.cat([each.old - each.engine for each in share]).float()
        excluded = excluded_by_gap(gap, weights > 0, rows, count=len(share), limit=LIMIT)
        parts.append((share, rows, groups, weights, excluded))
    if drop:
        kept = sum(
            (
                kept_group_tokens(excluded, weights > 0, groups, count=len(SIZES))
                for *_, groups, weights, excluded in parts
            ),
            torch.zeros(len(SIZES), dtype=torch.int64),
        )
        kept_weights = torch.tensor(kept_group_weights(kept.tolist()), dtype=torch.float64)
        parts = [
            (share, rows, groups, torch.where(excluded, weights, kept_weights[groups]), excluded)
            for share, rows, groups, weights, excluded in parts
        ]
    losses = [
        grpo_loss(
            logprobs=torch.cat([each.new for each in share]),
            old_logprobs=torch.cat([each.old for each in share]),
            advantages=torch.tensor([each.advantage for each in share], dtype=torch.float64)[rows],
            weights=weights,
            settings=SETTINGS,
            engine_logprobs=torch.cat([each.engine for each in share]),
            excluded=excluded,
        )
        for share, rows, _, weights, excluded in parts
    ]
    excluded_tokens = float(sum(part.sums["excluded"] for part in losses))
    return sum((part.loss for part in losses), torch.zeros((), dtype=torch.float64)), excluded_tokens


@pytest.mark.parametrize("drop", [False, True], ids=["mask", "drop"])
@pytest.mark.parametrize(
    "far",
    [set(), {1, 6}, {3, 4, 7}, set(range(sum(SIZES)))],
    ids=["none", "two rollouts", "a whole group", "all"],
)
def test_sequence_gap_loss_equals_the_equation(drop: bool, far: set[int]) -> None:
    """Value and gradient equal the loops of float64, for any excluded rollouts."""
    expected, actual = rollouts(1, far), rollouts(1, far)
    reference = naive(expected, drop=drop)
    loss, excluded = sharded(actual, drop=drop)
    torch.testing.assert_close(loss, reference)
    assert excluded == sum(len(rollout.new) for number, rollout in enumerate(actual) if number in far)
    loss.backward()
    if reference.requires_grad:
        reference.backward()
    for number, (mine, theirs) in enumerate(zip(actual, expected, strict=True)):
        assert mine.new.grad is not None
        slope = torch.zeros_like(mine.new) if theirs.new.grad is None else theirs.new.grad
        torch.testing.assert_close(mine.new.grad, slope)
        assert number not in far or not mine.new.grad.any()


def test_sequence_gap_mask_and_drop_differ() -> None:
    """The rollouts that remain have more weight if the others are dropped."""
    (masked, _), (dropped, _) = (sharded(rollouts(1, {3, 4, 7}), drop=drop) for drop in (False, True))
    assert masked.item() != pytest.approx(dropped.item(), rel=1e-2)


def test_kept_group_weights_skip_groups_without_tokens() -> None:
    """A group without kept tokens is not in the mean over groups."""
    assert kept_group_weights([4, 0, 2]) == [1 / 8, 0.0, 1 / 4]
    assert kept_group_weights([0, 0]) == [0.0, 0.0]
