"""Deletes what killed attempts left behind: temporary folders of weights and models, temporary Parquet files.

A killed attempt leaves gigabytes per publication or export. Only one attempt of a job writes at a time, and it runs
this before it writes.
"""

from __future__ import annotations

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.state_dir import JobState
from rstar2_train.orchestrator.weight_transports import VERSIONS
from rstar2_train.trainer.checkpoint import remove_asides


def remove_leftovers(job: AgenticRLJob, state: JobState) -> None:
    """Delete the temporary files and folders of all stages, and those of the weight versions."""
    stages = [state.stage(stage.name) for stage in job.spec.stages]
    for directory in (state.weights, state.weights / VERSIONS, *(stage.root for stage in stages)):
        remove_asides(directory)
    for stage in stages:
        evaluation = stage.evaluation_trajectories
        for path in [*stage.trajectories.glob(".*.parquet.*"), *evaluation.parent.glob(f".{evaluation.name}.*")]:
            path.unlink(missing_ok=True)
