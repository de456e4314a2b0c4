"""The processes that run the rollouts of a stage: their number, and the host memory of each. Pure."""

from __future__ import annotations

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.stages import Stage

TRAJECTORIES_PER_PROCESS = 1000
"""Concurrent trajectories that one process holds."""
PROCESS_BYTES = 2e8
"""Memory of a process without trajectories: Python, tokenizer, HTTP client."""
TOKEN_BYTES = 40
"""Memory per token of an unfinished trajectory: id, log-probability, text, and the bodies in transit."""


def most_concurrent(job: AgenticRLJob, stage: Stage) -> int:
    """Return the largest number of trajectories of a stage that run at the same time."""
    rollout = job.spec.rollout
    admitted = rollout.replicas * rollout.admission.max_in_flight
    if stage.type != "GRPO":
        return admitted
    settings = job.grpo_settings(stage)
    return min(admitted, settings.prompts_per_step * settings.rollouts_per_prompt * (1 + settings.max_staleness))


def process_count(wanted: int | None, *, trajectories: int, cpus: int | None = None) -> int:
    """Return the number of processes that run rollouts; 1: only the orchestrator.

    Args:
        wanted: `rollout.workers`; None: one per 1,000 of `trajectories`.
        trajectories: the largest number of concurrent ones.
        cpus: of the machine; the default is at most one process per CPU but one, which the orchestrator needs.
    """
    if wanted is not None:
        return wanted
    count = -(-trajectories // TRAJECTORIES_PER_PROCESS)
    return max(1, count if cpus is None else min(count, cpus - 1))


def process_bytes(trajectories: float, *, tokens: float) -> float:
    """Return the host memory of a process; `tokens`: of each of its trajectories, prompt included."""
    return PROCESS_BYTES + TOKEN_BYTES * trajectories * tokens
