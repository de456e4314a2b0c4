"""Forward and backward of one update on one rank, over its micro-batches.

Runs inside the rank processes. All ranks call these functions together, with the same number of micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from rstar2_train.grpo_roc.advantage import kept_group_weights
from rstar2_train.grpo_roc.loss import excluded_by_gap, grpo_loss, kept_group_tokens
from rstar2_train.trainer.batching import MicroBatch
from rstar2_train.trainer.device_tally import DeviceTally
from rstar2_train.trainer.model import Policy, set_last_micro_batch
from rstar2_train.trainer.transfers import DeviceBatch, on_device
from rstar2_train.trainer.types import MetricTally

if TYPE_CHECKING:
    from rstar2_train.api.stages import GRPOSettings


@dataclass(slots=True)
class UpdateStart:
    """Values of one update's micro-batches by the policy at the start of the step."""

    old_logprobs: list[Tensor]
    """pi_old."""
    excluded: list[Tensor | None] = field(default_factory=list)
    """Whether each token belongs to a rollout whose gap is too large; None: no token."""
    group_weights: Tensor | None = None
    """Weight of a kept token by its group, if excluded rollouts are dropped."""


def sft_backward(policy: Policy, batches: list[MicroBatch], device: torch.device) -> MetricTally:
    """Accumulate the gradient of the mean negative log-likelihood of a batch's trained tokens.

    Returns:
        sums: loss (this rank's share), tokens, entropy.
    """
    tally = DeviceTally()
    for batch in _micro_batches(policy, batches, device):
        logprobs, entropies = _forward(policy, batch, temperature=1.0)
        loss = -(logprobs * batch.weights).sum()
        _backward(loss)
        trained = (batch.weights > 0).float()
        tally.add({"loss": loss, "tokens": trained.sum(), "entropy": (entropies * trained).sum()}, {})
    return tally.read()


def grpo_backward(
    policy: Policy,
    batches: list[MicroBatch],
    device: torch.device,
    *,
    settings: GRPOSettings,
    start: UpdateStart | None,
) -> MetricTally:
    """Accumulate the gradient of eq. 6 over one update's micro-batches.

    Args:
        policy: the sharded policy.
        batches: this rank's micro-batches of the update.
        device: where to compute.
        settings: clip range, temperature and importance correction.
        start: values of the start of the step (`step_start`). None for a single update that drops no rollout: its
            weights are those of the start, so the policy's own values, detached, are the same numbers.
    """
    tally = DeviceTally()
    for number, batch in enumerate(_micro_batches(policy, batches, device)):
        logprobs, entropies = _forward(policy, batch, temperature=settings.temperature)
        weights = batch.weights
        if start is None:
            old = logprobs.detach()
            excluded = _excluded(batch, old, limit=settings.importance_correction.max_sequence_gap)
        else:
            old, excluded = start.old_logprobs[number], start.excluded[number]
            if start.group_weights is not None:
                assert batch.groups is not None
                assert excluded is not None
                # A dropped token keeps its weight, by which the metrics include it: its loss is 0.
                weights = torch.where((weights > 0) & ~excluded, start.group_weights[batch.groups], weights)
        parts = grpo_loss(
            logprobs=logprobs,
            old_logprobs=old,
            advantages=batch.advantages,
            weights=weights,
            settings=settings,
            engine_logprobs=batch.engine_logprobs,
            stale=batch.stale,
            excluded=excluded,
        )
        _backward(parts.loss)
        entropy = torch.where(weights > 0, entropies, 0.0).sum()
        tally.add(parts.sums | {"loss": parts.loss, "entropy": entropy}, parts.maxima, parts.gaps)
    return tally.read()


@torch.no_grad()
def step_start(
    policy: Policy, updates: list[list[MicroBatch]], device: torch.device, *, settings: GRPOSettings
) -> list[UpdateStart]:
    """Return the values of each update at the start of the step. Collective.

    If rollouts are dropped, the ranks add up the kept tokens of each group once, for all updates of the step.
    """
    starts, kept = [], []
    for batches in updates:
        start = UpdateStart(start_logprobs(policy, batches, device, temperature=settings.temperature))
        tokens = torch.zeros(batches[0].group_count, dtype=torch.int64, device=device)
        for batch, old in zip(on_device(batches, device), start.old_logprobs, strict=True):
            excluded = _excluded(batch, old, limit=settings.importance_correction.max_sequence_gap)
            start.excluded.append(excluded)
            if settings.importance_correction.drops_sequences:
                assert batch.groups is not None
                assert excluded is not None
                tokens += kept_group_tokens(excluded, batch.weights > 0, batch.groups, count=len(tokens))
        starts.append(start)
        kept.append(tokens)
    if settings.importance_correction.drops_sequences:
        totals = torch.cat(kept).cpu()
        dist.all_reduce(totals)
        for start, counts in zip(starts, totals.split([len(tokens) for tokens in kept]), strict=True):
            start.group_weights = torch.tensor(kept_group_weights(counts.tolist()), device=device)
    return starts


@torch.no_grad()
def start_logprobs(
    policy: Policy, batches: list[MicroBatch], device: torch.device, *, temperature: float
) -> list[Tensor]:
    """Return pi_old of each micro-batch: the trainer's own log-probabilities before the first update of the step."""
    values = [_forward(policy, batch, temperature=temperature)[0] for batch in on_device(batches, device)]
    # Without a backward pass the root's parameters would stay gathered after the forward pass.
    cast(FSDPModule, policy).reshard()
    return values


@torch.no_grad()
def row_logprobs(policy: Policy, rows: list[list[int]], device: torch.device) -> list[list[float]]:
    """Return the log-probability of each token of each row after its first. Collective: all ranks score all rows.

    Args:
        policy: the sharded policy.
        rows: token ids; all rows have the same length, at least 2.
        device: where to compute.
    """
    ids = torch.tensor(rows, device=device)
    positions = torch.arange(ids.numel(), device=device).view(ids.shape)[:, :-1].reshape(-1)
    logprobs, _ = policy(ids=ids, positions=positions, targets=ids[:, 1:].reshape(-1))
    cast(FSDPModule, policy).reshard()
    values: list[list[float]] = logprobs.view(len(rows), -1).double().tolist()
    return values


def _excluded(batch: DeviceBatch, old: Tensor, *, limit: float | None) -> Tensor | None:
    """Return whether each token belongs to a rollout whose gap is too large; None without a limit."""
    if limit is None:
        return None
    assert batch.engine_logprobs is not None
    assert batch.rows is not None
    gap = old - batch.engine_logprobs
    return excluded_by_gap(gap, batch.weights > 0, batch.rows, count=batch.row_count, limit=limit)


def _micro_batches(policy: Policy, batches: list[MicroBatch], device: torch.device) -> Iterator[DeviceBatch]:
    """Yield the micro-batches on the device, and prepare the reductions of each backward pass."""
    for number, batch in enumerate(on_device(batches, device), start=1):
        set_last_micro_batch(policy, number == len(batches))
        yield batch


def _forward(policy: Policy, batch: DeviceBatch, *, temperature: float) -> tuple[Tensor, Tensor]:
    result: tuple[Tensor, Tensor] = policy(
        ids=batch.ids,
        positions=batch.positions,
        targets=batch.targets,
        temperature=temperature,
        lengths=batch.lengths,
    )
    return result


def _backward(loss: Tensor) -> None:
    # FSDP divides the summed gradient by the number of ranks; the weights already have the global denominators.
    (loss * dist.get_world_size()).backward()
