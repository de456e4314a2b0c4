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

from rstar2_train.grpo_roc.loss import excluded_by_gap, k3, policy_loss
from rstar2_train.grpo_roc.tokens import Counts
from rstar2_train.trainer.batching import MicroBatch
from rstar2_train.trainer.device_tally import DeviceTally
from rstar2_train.trainer.lora import BasePolicy
from rstar2_train.trainer.model import Policy, set_last_micro_batch
from rstar2_train.trainer.objective_input import kept_counts, kept_sums, objective_tokens
from rstar2_train.trainer.routing import Routing, routing_of
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
    counts: Counts[Tensor] | None = None
    """Denominators of the kept rollouts, if excluded ones are dropped."""


OWN_EXPERTS_EVERY = 10
"""Steps between two measurements of the gap to the engine without the replay of its experts."""


def sft_backward(policy: Policy, batches: list[MicroBatch], device: torch.device) -> MetricTally:
    """Accumulate the gradient of the mean negative log-likelihood of a batch's trained tokens.

    Returns:
        sums: loss (this rank's share), tokens, entropy.
    """
    tally = DeviceTally()
    for batch in _micro_batches(policy, batches, device):
        logprobs, entropies = _forward(policy, batch, temperature=1.0)
        loss = -(logprobs * batch.sft_weights).sum()
        _backward(loss)
        trained = batch.trained.float()
        tally.add({"loss": loss, "tokens": trained.sum(), "entropy": (entropies * trained).sum()}, {})
    return tally.read()


def grpo_backward(
    policy: Policy,
    batches: list[MicroBatch],
    device: torch.device,
    *,
    settings: GRPOSettings,
    start: UpdateStart | None,
    reference: Policy | BasePolicy | None = None,
    own_experts: bool = False,
) -> MetricTally:
    """Accumulate the gradient of the objective over one update's micro-batches.

    Args:
        policy: the sharded policy.
        batches: this rank's micro-batches of the update.
        device: where to compute.
        settings: objective, temperature and importance correction.
        start: values of the start of the step (`step_start`). None for a single update that drops no rollout: its
            weights are those of the start, so the policy's own values, detached, are the same numbers.
        reference: reference policy, if the ranks hold one: of the KL term, or the teacher. A teacher behind an endpoint
            has rated the tokens of the micro-batches already.
        own_experts: measure the gap to the engine also without the replay of its experts, in the first micro-batch.
    """
    tally = DeviceTally()
    for number, batch in enumerate(_micro_batches(policy, batches, device)):
        reference_logprobs = batch.reference_logprobs
        if reference is not None:
            with torch.no_grad():
                # Another model has its own experts.
                reference_logprobs, _ = _forward(reference, batch, temperature=settings.temperature)
            cast(FSDPModule, reference).reshard()
        routing = _routing(policy, batch)
        if own_experts and number == 0 and policy.routes is not None:
            tally.add(_own_experts(policy, batch, temperature=settings.temperature), {})
        logprobs, entropies = _forward(policy, batch, temperature=settings.temperature, routing=routing)
        if start is None:
            old, counts = logprobs.detach(), None
            excluded = _excluded(batch, old, limit=settings.importance_correction.max_sequence_gap)
        else:
            old, excluded, counts = start.old_logprobs[number], start.excluded[number], start.counts
        dropped = excluded if counts is not None else None
        tokens = objective_tokens(batch, logprobs, old, dropped, counts, reference_logprobs)
        parts = policy_loss(
            tokens,
            settings,
            engine_logprobs=batch.engine_logprobs,
            stale=batch.stale,
            excluded=excluded,
        )
        _backward(parts.loss)
        entropy = torch.where(tokens.trained, entropies, 0.0).sum()
        sums = parts.sums | {"loss": parts.loss, "entropy": entropy}
        if routing is not None:
            sums |= _replay_metrics(routing, batch, old)
        tally.add(sums, parts.maxima, parts.gaps)
    return tally.read()


@torch.no_grad()
def step_start(
    policy: Policy, updates: list[list[MicroBatch]], device: torch.device, *, settings: GRPOSettings
) -> list[UpdateStart]:
    """Return the values of each update at the start of the step. Collective.

    If rollouts are dropped, the ranks add up the kept tokens of each group, and the kept sequences, once for all
    updates of the step.
    """
    starts, kept = [], []
    drops = settings.importance_correction.drops_sequences
    for batches in updates:
        start = UpdateStart(start_logprobs(policy, batches, device, temperature=settings.temperature))
        sums = torch.zeros(len(batches[0].counts.group_tokens) + 1, dtype=torch.int64, device=device)
        for batch, old in zip(on_device(batches, device), start.old_logprobs, strict=True):
            excluded = _excluded(batch, old, limit=settings.importance_correction.max_sequence_gap)
            start.excluded.append(excluded)
            if drops:
                assert excluded is not None
                sums += kept_sums(batch, excluded)
        starts.append(start)
        kept.append(sums)
    if drops:
        totals = torch.cat(kept).cpu()
        dist.all_reduce(totals)
        for start, sums in zip(starts, totals.split([len(sums) for sums in kept]), strict=True):
            start.counts = kept_counts(sums, device)
    return starts


@torch.no_grad()
def start_logprobs(
    policy: Policy, batches: list[MicroBatch], device: torch.device, *, temperature: float
) -> list[Tensor]:
    """Return pi_old of each micro-batch: the trainer's own log-probabilities before the first update of the step."""
    values = [
        _forward(policy, batch, temperature=temperature, routing=_routing(policy, batch))[0]
        for batch in on_device(batches, device)
    ]
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
    gap = old - batch.engine_logprobs
    return excluded_by_gap(gap, batch.trained, batch.rows, count=len(batch.row_tokens), limit=limit)


def _micro_batches(policy: Policy, batches: list[MicroBatch], device: torch.device) -> Iterator[DeviceBatch]:
    """Yield the micro-batches on the device, and prepare the reductions of each backward pass."""
    for number, batch in enumerate(on_device(batches, device), start=1):
        set_last_micro_batch(policy, number == len(batches))
        yield batch


def _routing(policy: Policy, batch: DeviceBatch) -> Routing | None:
    """Return the experts that the engine chose; None if the batch has none."""
    if batch.routes is None or policy.routes is None:
        return None
    return routing_of(batch.routes, policy.routes, batch.ids, batch.lengths)


def _replay_metrics(routing: Routing, batch: DeviceBatch, old: Tensor) -> dict[str, Tensor]:
    """Return the replayed choices, those that the trainer's own routers would not make, and KL(engine || trainer)."""
    return {
        "experts": torch.stack([*routing.compared.values()]).sum(),
        "experts_differing": torch.stack([*routing.differing.values()]).sum(),
        "engine_kl": _engine_kl(batch, old),
    }


@torch.no_grad()
def _own_experts(policy: Policy, batch: DeviceBatch, *, temperature: float) -> dict[str, Tensor]:
    """Return KL(engine || trainer) and tokens of a micro-batch that the trainer computes with its own experts."""
    values, _ = _forward(policy, batch, temperature=temperature)
    cast(FSDPModule, policy).reshard()
    return {"own_experts_kl": _engine_kl(batch, values), "own_experts_tokens": batch.trained.sum()}


def _engine_kl(batch: DeviceBatch, logprobs: Tensor) -> Tensor:
    """Return the k3 estimate of KL(engine || trainer), summed over the trained tokens, which the engine sampled."""
    assert batch.engine_logprobs is not None
    gap = torch.where(batch.trained, logprobs.detach() - batch.engine_logprobs, 0.0)
    return k3(gap).sum()


def _forward(
    policy: Policy | BasePolicy, batch: DeviceBatch, *, temperature: float, routing: Routing | None = None
) -> tuple[Tensor, Tensor]:
    result: tuple[Tensor, Tensor] = policy(
        ids=batch.ids,
        positions=batch.positions,
        targets=batch.targets,
        temperature=temperature,
        lengths=batch.lengths,
        routing=routing,
    )
    return result


def _backward(loss: Tensor) -> None:
    # FSDP divides the summed gradient by the number of ranks; the weights already have the global denominators.
    (loss * dist.get_world_size()).backward()
