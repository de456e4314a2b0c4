"""Forward and backward of one update on one rank, over its micro-batches.

Runs inside the rank processes. All ranks call these functions together, with the same number of micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from rstar2_train.grpo_roc.loss import excluded_by_gap, grpo_loss
from rstar2_train.trainer.batching import MicroBatch
from rstar2_train.trainer.device_tally import DeviceTally
from rstar2_train.trainer.model import Policy, set_last_micro_batch
from rstar2_train.trainer.transfers import DeviceBatch, on_device
from rstar2_train.trainer.types import MetricTally, Objective


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
    objective: Objective,
    old_logprobs: list[Tensor] | None,
) -> MetricTally:
    """Accumulate the gradient of eq. 6 over one update's micro-batches.

    Args:
        policy: the sharded policy.
        batches: this rank's micro-batches of the update.
        device: where to compute.
        objective: the loss's settings.
        old_logprobs: log-probabilities of each micro-batch at the start of the step. None for a single update: its
            weights are those of the start, so the policy's own values, detached, are the same numbers.
    """
    tally = DeviceTally()
    for number, batch in enumerate(_micro_batches(policy, batches, device)):
        logprobs, entropies = _forward(policy, batch, temperature=objective.temperature)
        assert batch.engine_logprobs is not None
        assert batch.rows is not None
        weights = batch.weights
        old = logprobs.detach() if old_logprobs is None else old_logprobs[number]
        excluded = None
        if objective.max_sequence_gap is not None:
            gap = old - batch.engine_logprobs
            excluded = excluded_by_gap(
                gap, weights > 0, batch.rows, count=batch.row_count, limit=objective.max_sequence_gap
            )
        parts = grpo_loss(
            logprobs=logprobs,
            old_logprobs=old,
            advantages=batch.advantages,
            weights=weights,
            clip_low=objective.clip_low,
            clip_high=objective.clip_high,
            engine_logprobs=batch.engine_logprobs,
            correction_cap=objective.correction_cap,
            stale=batch.stale,
            excluded=excluded,
        )
        _backward(parts.loss)
        entropy = torch.where(weights > 0, entropies, 0.0).sum()
        tally.add(parts.sums | {"loss": parts.loss, "entropy": entropy}, parts.maxima, parts.gaps)
    return tally.read()


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
