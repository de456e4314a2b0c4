"""Which policy a stage starts from: what the last training stage before it handed on, or the job's own source."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rstar2_train.api.contracts import StageFailed
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.stages import Stage
from rstar2_train.api.state_dir import JobState


@dataclass(frozen=True)
class InitialPolicy:
    """The policy at the start of a stage."""

    model: Path
    """Hugging Face folder."""
    version: str
    """Weight version that engines serve it under."""
    stage: Stage | None
    """The stage that made it; None: the job's source."""
    checkpoint: Path | None
    """The checkpoint behind it, with the optimiser; None for the job's source."""


def initial_policy(job: AgenticRLJob, stage: Stage, state: JobState) -> InitialPolicy:
    """What `stage` starts from. Raises StageFailed when an earlier training stage has not finished."""
    before = job.spec.stages[: job.spec.stages.index(stage)]
    maker = next((one for one in reversed(before) if one.learns), None)
    if maker is None:
        return InitialPolicy(Path(job.spec.model.source), "source", None, None)
    folder = state.stage(maker.name)
    outcome = folder.outcome()
    if outcome is None or not folder.done or outcome.checkpoint is None:
        raise StageFailed("BadConfiguration", f"stage {maker.name} has not finished; run it first", retryable=False)
    version = final_version(maker, outcome.checkpoint.step)
    return InitialPolicy(folder.model, version, maker, state.root / outcome.checkpoint.path)


def step_version(stage: Stage, step: int) -> str:
    """Weight version after `step` steps of a stage."""
    return f"{stage.name}-step-{step:06d}"


def final_version(stage: Stage, step: int) -> str:
    """Weight version of what a stage handed on, made at `step`."""
    return f"{stage.name}-final-{step:06d}"


def inherits_optimizer(maker: Stage | None, *, reset: bool) -> bool:
    """Whether a GRPO stage goes on with the optimiser of the stage before: only from another GRPO stage."""
    return maker is not None and maker.type == "GRPO" and not reset
