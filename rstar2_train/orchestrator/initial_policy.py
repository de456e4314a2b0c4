"""The policy that a stage starts from: the result of the last training stage before it, or the job's model source."""

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
    """Hugging Face model folder."""
    base: Path
    """Model folder that the ranks load. Another one than `model` if the stage continues an adapter: the base of it."""
    version: str
    """Weight version under which engines serve it."""
    stage: Stage | None
    """Stage that trained it; None: the job's model source."""
    checkpoint: Path | None
    """Checkpoint of these weights, with the optimiser; None for the job's model source, and if this stage or the one
    before trains an adapter that the other does not: then the model folder is the whole state."""

    @property
    def continues_adapter(self) -> bool:
        """Whether the checkpoint has the adapter of the stage before, which is continued on its base."""
        return self.base != self.model


def initial_policy(job: AgenticRLJob, stage: Stage, state: JobState) -> InitialPolicy:
    """Return the policy that `stage` starts from. Raises StageFailed if the training stage before it is unfinished."""
    source = job.trained_before(stage)
    if source is None:
        model = Path(job.spec.model.source)
        return InitialPolicy(model, model, "source", None, None)
    folder = state.stage(source.name)
    outcome = folder.outcome()
    if outcome is None or not folder.done or outcome.checkpoint is None:
        message = f"stage {source.name}, which stage {stage.name} starts from, has not finished: run it first"
        raise StageFailed("BadConfiguration", message, retryable=False)
    version = final_version(source, outcome.checkpoint.step)
    checkpoint = state.root / outcome.checkpoint.path
    if job.continued(stage) is not None:
        return InitialPolicy(folder.model, initial_policy(job, source, state).base, version, source, checkpoint)
    whole = job.lora(source) is None and job.lora(stage) is None
    return InitialPolicy(folder.model, folder.model, version, source, checkpoint if whole else None)


def reference_model(job: AgenticRLJob, stage: Stage, source: InitialPolicy) -> Path | None:
    """Return the model folder of a stage's reference policy, its teacher or that of its KL term; None: none."""
    settings = job.grpo_settings(stage) if stage.type == "GRPO" else None
    if settings is None or not settings.has_reference:
        return None
    teacher = settings.objective.teacher
    if teacher is not None and teacher.source is not None:
        return Path(teacher.source)
    reference = settings.reference_kl
    assert reference is not None
    return {"Initial": Path(job.spec.model.source), "Stage": source.model, "Source": Path(reference.source or "")}[
        reference.model
    ]


def step_version(stage: Stage, step: int) -> str:
    """Return the weight version after `step` steps of a stage."""
    return f"{stage.name}-step-{step:06d}"


def version_step(stage: Stage, version: str) -> int | None:
    """Return the number of steps of a weight version of `step_version`; None for any other version."""
    prefix, _, number = version.rpartition("-step-")
    return int(number) if prefix == stage.name and number.isdigit() else None


def final_version(stage: Stage, step: int) -> str:
    """Return the weight version of a stage's final model, which is that of `step`."""
    return f"{stage.name}-final-{step:06d}"


def inherits_optimizer(source: InitialPolicy, *, reset: bool) -> bool:
    """Return whether a GRPO stage takes over the optimiser of the stage before: only that of another GRPO stage."""
    return source.checkpoint is not None and source.stage is not None and source.stage.type == "GRPO" and not reset
