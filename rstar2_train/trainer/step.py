"""Forward and backward of one update on one rank, over its micro-batches.

Runs inside the rank processes. All ranks call these functions together, with the same number of micro-batches.
"""

from __future__ import annotations

import dataclasses
from typing import cast

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from rstar2_train.grpo_roc.loss import excluded_by_gap, grpo_loss
from rstar2_train.trainer.batching import MicroBatch
from rstar2_train.trainer.model import Policy
from rstar2_train.trainer.types import MetricTally, Objective


def sft_backward(policy: Policy, batches: list[MicroBatch], device: torch.device) -> MetricTally:
    """Accumulate the gradient of the mean negative log-likelihood of a batch's trained tokens.

    Returns:
        sums: loss (this rank's share), tokens, entropy.
    """
    tally = MetricTally()
    for batch in batches:
        logprobs, entropies = _forward(policy, batch, device, temperature=1.0)
        weights = _to(batch.weights, device)
        loss = -(logprobs * weights).sum()
        _backward(loss)
        trained = (weights > 0).float()
        tally.add(_floats({"loss": loss, "tokens": trained.sum(), "entropy": (entropies * trained).sum()}, {}))
    return tally


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
    tally = MetricTally()
    for number, batch in enumerate(batches):
        logprobs, entropies = _forward(policy, batch, device, temperature=objective.temperature)
        assert batch.engine_logprobs is not None
        assert batch.rows is not None
        weights = _to(batch.weights, device)
        old = logprobs.detach() if old_logprobs is None else old_logprobs[number]
        engine = _to(batch.engine_logprobs, device)
        excluded = None
        if objective.max_sequence_gap is not None:
            rows = _to(batch.rows, device)
            excluded = excluded_by_gap(old - engine, weights > 0, rows, limit=objective.max_sequence_gap)
        parts = grpo_loss(
            logprobs=logprobs,
            old_logprobs=old,
            advantages=_to(batch.advantages, device),
            weights=weights,
            clip_low=objective.clip_low,
            clip_high=objective.clip_high,
            engine_logprobs=engine,
            correction_cap=objective.correction_cap,
            stale=None if batch.stale is None else _to(batch.stale, device),
            excluded=excluded,
        )
        _backward(parts.loss)
        entropy = torch.where(weights > 0, entropies, 0.0).sum()
        values = _floats(parts.sums | {"loss": parts.loss, "entropy": entropy}, parts.maxima)
        tally.add(dataclasses.replace(values, gaps=parts.gaps.tolist()))
    return tally


@torch.no_grad()
def start_logprobs(
    policy: Policy, batches: list[MicroBatch], device: torch.device, *, temperature: float
) -> list[Tensor]:
    """Return pi_old of each micro-batch: the trainer's own log-probabilities before the first update of the step."""
    values = [_forward(policy, batch, device, temperature=temperature)[0] for batch in batches]
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


def _forward(policy: Policy, batch: MicroBatch, device: torch.device, *, temperature: float) -> tuple[Tensor, Tensor]:
    result: tuple[Tensor, Tensor] = policy(
        ids=_to(batch.ids, device).long(),
        positions=_to(batch.positions, device),
        targets=_to(batch.targets, device),
        temperature=temperature,
    )
    return result


def _backward(loss: Tensor) -> None:
    # FSDP divides the summed gradient by the number of ranks; the weights already have the global denominators.
    (loss * dist.get_world_size()).backward()


def _to(array: NDArray[np.generic], device: torch.device) -> Tensor:
    # Arrays from Ray are read-only views of its object store, which torch must not alias.
    return torch.tensor(array, device=device)


def _floats(sums: dict[str, Tensor], maxima: dict[str, Tensor]) -> MetricTally:
    # One transfer from the device for all scalars.
    names = [*sums, *maxima]
    values = torch.stack([*sums.values(), *maxima.values()]).detach().double().tolist()
    return MetricTally(
        sums=dict(zip(names[: len(sums)], values[: len(sums)], strict=True)),
        maxima=dict(zip(names[len(sums) :], values[len(sums) :], strict=True)),
    )
