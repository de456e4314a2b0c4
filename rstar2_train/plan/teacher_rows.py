"""The rows of the engines of spec.teacher: their memory, and the time in which they rate the tokens of a step. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rstar2_train.api.issue import Issue
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.stages import Stage
from rstar2_train.capacity.engine_settings import accelerator_engine
from rstar2_train.capacity.fit import gigabytes, rated_tokens
from rstar2_train.capacity.hardware_profile import HardwareProfile
from rstar2_train.capacity.memory import EngineMemory
from rstar2_train.capacity.model_shape import ModelShape, local_shape
from rstar2_train.plan.row import Row


def teacher_gpus(job: AgenticRLJob) -> int:
    """Return the GPUs of all engines of the teacher."""
    return job.spec.teacher.gpus if job.spec.teacher is not None else 0


def teacher_rows(job: AgenticRLJob, stage: Stage, profile: HardwareProfile, rated: Sequence[int]) -> Iterator[Row]:
    """Yield the rows of a stage; none if no engine serves its teacher. `rated`: tokens of each rated sequence."""
    served = _served(job, stage, profile)
    if served is None:
        return
    shape, memory = served
    section, gpus = "Teacher's engine, per device", teacher_gpus(job)
    yield Row(
        *(section, "teacherWeights", "weights", "bytes", memory.weights),
        f"{shape.parameters:,} parameters / tensorParallel",
    )
    yield Row(
        *(section, "teacherTokens", "KV cache, tokens", "count", memory.kv_tokens),
        f"a sequence has at most {memory.sequence_tokens:,}",
    )
    flops = shape.forward_flops(sum(rated), sum(length * length for length in rated))
    yield Row(
        *(section, "teacherSeconds", "rating of a step", "seconds", flops / (gpus * profile.engine_flops)),
        f"one forward pass of {sum(rated):,} tokens on {gpus} GPUs; it is in addition to the step with maxStaleness 0",
    )


def teacher_misfits(job: AgenticRLJob, profile: HardwareProfile) -> Iterator[Issue]:
    """Yield an issue for each stage whose teacher does not fit its engines."""
    for stage in job.spec.stages:
        served = _served(job, stage, profile)
        if served is not None and not served[1].slots:
            message = (
                f"the teacher of stage {stage.name} needs {gigabytes(served[1].weights)} per GPU for its weights, so "
                f"the KV cache on a {profile.device} has less than the {served[1].sequence_tokens:,} tokens of a "
                "sequence: use more GPUs per engine"
            )
            yield Issue("spec.teacher.tensorParallel", message, None)


def _served(job: AgenticRLJob, stage: Stage, profile: HardwareProfile) -> tuple[ModelShape, EngineMemory] | None:
    """Return the teacher that engines serve in a stage, and the memory of one; None without one, and on the CPU.

    A teacher whose shape is not known has none either.
    """
    source, spec = job.served_teacher(stage), job.spec.teacher
    if source is None or spec is None or job.spec.accelerator.vendor == "None":
        return None
    if (shape := local_shape(source)) is None:
        return None
    return shape, accelerator_engine(job, spec, shape, profile, tokens=rated_tokens(job, stage))
