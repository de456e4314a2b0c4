"""Memory of an engine on accelerators, from the settings of spec.rollout or spec.teacher. Pure."""

from __future__ import annotations

from rstar2_train.api.engine_args import engine_dtype, given_args
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.objectives import TeacherSpec
from rstar2_train.api.roles import RolloutSpec, Vendor
from rstar2_train.capacity.adapter_slots import AdapterSlots
from rstar2_train.capacity.hardware_profile import HardwareProfile
from rstar2_train.capacity.memory import ENGINE_SHARE, EngineMemory, engine_memory
from rstar2_train.capacity.model_shape import ModelShape


def engine_value_bytes(engines: RolloutSpec | TeacherSpec, vendor: Vendor) -> int:
    """Return the bytes per value in which engines compute."""
    return 4 if engine_dtype(engines, vendor) == "float32" else 2


def accelerator_engine(
    job: AgenticRLJob,
    engines: RolloutSpec | TeacherSpec,
    shape: ModelShape,
    profile: HardwareProfile,
    *,
    tokens: int,
    adapters: AdapterSlots | None = None,
) -> EngineMemory:
    """Return the memory of an engine of a job or of its teacher. `tokens`: of the longest sequence."""
    return engine_memory(
        shape,
        device_bytes=profile.memory_bytes,
        tensor_parallel=engines.tensor_parallel,
        sequence_tokens=tokens,
        value_bytes=engine_value_bytes(engines, job.spec.accelerator.vendor),
        adapters=adapters,
        share=float(given_args(engines).get("gpu-memory-utilization") or ENGINE_SHARE),
    )
