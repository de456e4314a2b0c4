"""Seconds of an update and of the transfer of weights to the engines, by arithmetic from a profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.stages import Stage
from rstar2_train.capacity.fit import adapter_of, chosen_step, is_packed, ranks_of, transport_of, version_value_bytes
from rstar2_train.capacity.hardware_profile import HardwareProfile
from rstar2_train.capacity.memory import FLOAT32, trained_parameters
from rstar2_train.capacity.model_shape import ModelShape
from rstar2_train.trainer.batching import BatchRow, MicroBatch, distribute_rows
from rstar2_train.trainer.types import TokenSequence

DELTA_SHARE = 0.01
"""Changed share of bfloat16 weights per version (docs/weights.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateTime:
    """The seconds of one update, and their parts."""

    micro_batches: int
    """Micro-batches per rank."""
    fill: float
    """Tokens of the sequences / (micro-batches x tokensPerMicroBatch)."""
    tokens: int
    """Tokens of all ranks, without padding."""
    flops: float
    """Operations per rank, recomputation included."""
    compute: float
    """Seconds of arithmetic."""
    link_bytes: float
    """Bytes that leave each node (with one node: each device) for gathers and reductions."""
    link_rate: float
    """Bytes per second of that link."""
    link_name: str
    """Name of that link."""

    @property
    def communication(self) -> float:
        """Seconds of gathers and reductions."""
        return self.link_bytes / self.link_rate

    @property
    def seconds(self) -> float:
        """Seconds of the update: arithmetic hides communication, or the reverse."""
        return max(self.compute, self.communication)


def update_time(
    job: AgenticRLJob, stage: Stage, shape: ModelShape, profile: HardwareProfile, lengths: Sequence[int]
) -> UpdateTime:
    """Return the time of the update of a stage. `lengths`: tokens of each trained sequence, prompt included."""
    ranks, step = ranks_of(job, stage), chosen_step(job, stage, shape, profile)
    budget = job.spec.trainer.tokens_per_micro_batch or step.tokens
    share = sorted(lengths, reverse=True)[::ranks] or [2]
    rows = [BatchRow(TokenSequence(np.zeros(n, np.int32), np.arange(n) == n - 1), sft_weight=0.0) for n in share]
    batches = distribute_rows(rows, ranks=1, tokens_per_micro_batch=budget, packed=is_packed(job))[0]
    recomputed = step.checkpointed_layers / shape.layers
    if step.adapter is None:
        passes = 3 + recomputed
    else:  # a frozen weight has no gradient: only its input has one
        passes = 2 + recomputed + (3 + recomputed) * step.adapter.parameters / shape.active_parameters
    settings = job.grpo_settings(stage) if stage.type == "GRPO" else None
    updates = settings.updates_per_step if settings else 1
    if settings and (updates > 1 or settings.importance_correction.drops_sequences):
        passes += 1  # log-probabilities at the start of the step
    flops = sum(passes * shape.forward_flops(batch.ids.size, _squares(batch)) for batch in batches)
    if step.reference is not None:
        flops += sum(step.reference.forward_flops(batch.ids.size, _squares(batch)) for batch in batches)
    nodes = job.replicas(stage)
    rate, name = link_rate(job, profile, nodes=nodes)
    copies, trained = ranks // step.ranks, trained_parameters(shape, step.adapter)
    if copies > 1:  # nodes exchange the sums of their gradients once per update
        link_bytes = updates * 2 * FLOAT32 * trained * (copies - 1) / copies
    else:
        gathered = 2 * step.value_bytes * shape.parameters
        link_bytes = len(batches) * (gathered + FLOAT32 * trained) * (ranks - 1) / ranks
    return UpdateTime(
        micro_batches=len(batches),
        fill=sum(share) / (len(batches) * budget),
        tokens=sum(lengths),
        flops=flops,
        compute=flops / profile.train_flops
        + len(batches) * profile.micro_batch_seconds
        + updates * profile.update_seconds,
        link_bytes=link_bytes,
        link_rate=rate,
        link_name=name,
    )


def _squares(batch: MicroBatch) -> float:
    """Return the sum of the squared lengths over which attention runs, padding included."""
    rows, longest = batch.ids.shape
    return sum(n * n for n in batch.lengths or (longest,) * rows)


def link_rate(job: AgenticRLJob, profile: HardwareProfile, *, nodes: int) -> tuple[float, str]:
    """Return the bytes per second of the slowest link of a gather over all ranks, and its name."""
    if nodes == 1:
        return profile.node_link, "links within the node"
    rdma = job.spec.accelerator.rdma
    if rdma is None:
        return profile.network, "network of a node, without RDMA"
    return rdma.count * profile.rdma_device, f"{rdma.count} RDMA device{'s' * (rdma.count > 1)} per pod"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferTime:
    """The transfer of a weight version to all engines."""

    transport: str
    written: float
    """Bytes written to storage."""
    read: float
    """Bytes read from storage by all engines, or by trainer rank 0."""
    sent: float
    """Bytes that trainer rank 0 sends over the network."""
    seconds: float


def transfer_time(
    job: AgenticRLJob, stage: Stage, shape: ModelShape, profile: HardwareProfile, *, engines: int
) -> TransferTime:
    """Return the time from the end of an update until every engine has its weights."""
    rollout, on_cpu = job.spec.rollout, job.spec.accelerator.vendor == "None"
    whole = float(shape.parameters * version_value_bytes(job, stored=shape.stored_bytes))
    transport = transport_of(job, stage, stored=shape.stored_bytes)
    adapter = adapter_of(job, stage, shape)
    share = DELTA_SHARE + (1 - DELTA_SHARE) / rollout.weight_snapshot_every
    written = whole if transport == "Folder" else whole * share
    if adapter is not None:
        written = float(FLOAT32 * adapter.parameters)
    if transport == "Collective":  # rank 0 reads the files, and sends them to each engine
        rate, _ = link_rate(job, profile, nodes=1 if on_cpu else 2)
        read, sent = written, written * engines
    else:
        rate, read, sent = profile.network, written * engines, 0.0
    seconds = (written + read) / profile.storage + sent / rate
    return TransferTime(transport=transport, written=written, read=read, sent=sent, seconds=seconds)
