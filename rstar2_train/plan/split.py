"""The best division of a job's GPUs between trainer pods and engines."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.stages import Stage
from rstar2_train.capacity.fit import misfits
from rstar2_train.capacity.hardware_profile import HardwareProfile
from rstar2_train.capacity.model_shape import ModelShape
from rstar2_train.plan.rollout_time import Lengths, engine_hardware, rollout_seconds
from rstar2_train.plan.step_time import transfer_time, update_time

SIMULATED_ENGINES = 2
"""Engines of the simulations of the search."""
STALE_ENGINES = 1
"""As SIMULATED_ENGINES, for the longer simulations with maxStaleness 1."""
MOST_SPLITS = 12
"""Divisions that are compared, evenly spaced."""


@dataclass(frozen=True, slots=True)
class Split:
    """One division of the GPUs."""

    trainer_replicas: int
    engines: int
    synchronous: float
    """Seconds of a step with maxStaleness 0."""
    stale: float
    """Seconds of a step with maxStaleness 1; only their least for a split that cannot be the best one."""


def total_gpus(job: AgenticRLJob) -> int:
    """Return the GPUs of trainer and engines."""
    return job.spec.trainer.replicas * job.spec.trainer.gpus_per_replica + engine_gpus(job)


def engine_gpus(job: AgenticRLJob) -> int:
    """Return the GPUs of all engines."""
    return job.spec.rollout.replicas * job.spec.rollout.tensor_parallel


def with_split(job: AgenticRLJob, *, trainer_replicas: int, engines: int) -> AgenticRLJob:
    """Return the job with other numbers of trainer pods and engines."""
    trainer = job.spec.trainer.model_copy(update={"replicas": trainer_replicas})
    rollout = job.spec.rollout.model_copy(update={"replicas": engines})
    return job.model_copy(update={"spec": job.spec.model_copy(update={"trainer": trainer, "rollout": rollout})})


def compare_splits(
    job: AgenticRLJob,
    stage: Stage,
    shape: ModelShape,
    profile: HardwareProfile,
    lengths: Lengths,
    trained: list[int],
) -> list[Split]:
    """Return the divisions of the job's GPUs that fit into memory; empty without GPUs.

    Args:
        job: the job.
        stage: a GRPO stage without a number of trainer pods of its own.
        shape: the model.
        profile: the hardware.
        lengths: of the trajectories.
        trained: tokens of each trained sequence.
    """
    per_replica, parallel = job.spec.trainer.gpus_per_replica, job.spec.rollout.tensor_parallel
    if not per_replica or (stage.trainer is not None and stage.trainer.replicas):
        return []
    most = (total_gpus(job) - parallel) // per_replica
    splits: list[Split] = []
    for replicas in sorted(
        {round(1 + at * (most - 1) / (MOST_SPLITS - 1)) for at in range(MOST_SPLITS)} if most else []
    ):
        engines = (total_gpus(job) - replicas * per_replica) // parallel
        changed = with_split(job, trainer_replicas=replicas, engines=engines)
        if any(not issue.warning for issue in misfits(changed, shape, profile)):
            continue
        hardware = engine_hardware(changed, shape, profile)
        update = update_time(changed, stage, shape, profile, trained).seconds
        transfer = transfer_time(changed, stage, shape, profile, engines=engines).seconds
        rollouts, _, tail = rollout_seconds(
            changed, stage, hardware, lengths, engines=engines, largest=SIMULATED_ENGINES
        )
        synchronous, stale = rollouts + update + transfer, max(rollouts - tail, update + transfer)
        if stale < min((split.stale for split in splits), default=math.inf):  # otherwise it cannot be the best one
            stale, _, _ = rollout_seconds(
                *(changed, stage, hardware, lengths),
                engines=engines,
                max_staleness=1,
                update_seconds=update + transfer,
                largest=STALE_ENGINES,
            )
        splits.append(Split(replicas, engines, synchronous, stale))
    return splits
