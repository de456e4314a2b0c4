"""The adapters that an engine of a job holds at the same time: their number and the largest rank. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from rstar2_train.api.job import AgenticRLJob


@dataclass(frozen=True, slots=True)
class AdapterSlots:
    """The memory of an engine for adapters."""

    rank: int
    """Largest rank of an adapter."""
    count: int
    """Adapters in memory at the same time."""


def adapter_slots(job: AgenticRLJob) -> AdapterSlots | None:
    """Return the slots of the engines of a job; None: no GRPO stage of it trains an adapter.

    One adapter is served, one is loaded. The others are for requests of older versions, at most `maxStaleness` of them.
    """
    adapters = [
        (lora.rank, job.grpo_settings(stage).max_staleness)
        for stage in job.spec.stages
        if stage.type == "GRPO" and (lora := job.lora(stage)) is not None
    ]
    if not adapters:
        return None
    return AdapterSlots(rank=max(rank for rank, _ in adapters), count=max(lag for _, lag in adapters) + 2)
