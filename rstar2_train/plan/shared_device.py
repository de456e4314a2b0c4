"""One device for the trainer and an engine: their shares of its memory, and the cost of their turns. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.stages import Stage
from rstar2_train.capacity.fit import chosen_step, engine_of, gigabytes, sequence_tokens, transport_of
from rstar2_train.capacity.hardware_profile import HardwareProfile
from rstar2_train.capacity.memory import snapshot_bytes, trainer_memory
from rstar2_train.capacity.model_shape import ModelShape
from rstar2_train.plan.row import Row

HOST_LINK = 50e9
"""Bytes per second between the memory of the host and of a device: an assumption, for PCIe 5 with 16 lanes."""
SECTION = "Shared device"


@dataclass(frozen=True, slots=True)
class SharedDevice:
    """The use of one device by the trainer and one engine."""

    time_shared: bool
    """Whether one of them waits in host memory; otherwise both are on the device at the same time."""
    trainer_share: float
    """Share of the device's memory for the trainer."""
    engine_share: float
    """Share of the device's memory for the engine."""

    @property
    def text(self) -> str:
        """The use, as a part of a sentence."""
        return "by time-sharing" if self.time_shared else "at the same time"

    def engine_job(self, job: AgenticRLJob) -> AgenticRLJob:
        """Return the job whose engine has its share of the device, unless the job sets one."""
        arguments = job.spec.rollout.engine_args
        if any(name.lstrip("-").replace("_", "-") == "gpu-memory-utilization" for name in arguments):
            return job
        arguments = {**arguments, "gpu-memory-utilization": self.engine_share}
        rollout = job.spec.rollout.model_copy(update={"engine_args": arguments})
        return job.model_copy(update={"spec": job.spec.model_copy(update={"rollout": rollout})})

    def trainer_profile(self, profile: HardwareProfile) -> HardwareProfile:
        """Return the profile of a device with the memory of the trainer's share."""
        return profile.model_copy(update={"memory_bytes": self.trainer_share * profile.memory_bytes})


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedDeviceMemory:
    """Bytes of trainer and engine on one device, and of their copies in host memory."""

    trainer: float
    """On the device, at the peak of the training step."""
    engine: float
    """On the device, with the KV cache."""
    trainer_asleep: float
    """Of the trainer on the host: weights, moments, the weights published last, and the reference. The buffers stay."""
    engine_asleep: float
    """Of the engine on the host while the trainer works: its weights. The KV cache is discarded."""
    host_copy: float
    """Of the weights, from which the engine loads with Delta and Collective."""
    checkpoint: float
    """Copy from which a checkpoint is written."""
    offloaded: float
    """Weights, gradients and moments that `trainer.offload` leaves on the host."""

    @property
    def host(self) -> float:
        """All bytes on the host."""
        return self.trainer_asleep + self.engine_asleep + self.host_copy + self.checkpoint + self.offloaded

    @property
    def moved(self) -> float:
        """Bytes between host and device per step: each of the two leaves once and returns once."""
        return 2 * (self.trainer_asleep + self.engine_asleep)

    @property
    def seconds(self) -> float:
        """Seconds of the turns of a step."""
        return self.moved / HOST_LINK


def turn_memory(
    job: AgenticRLJob, stage: Stage, shape: ModelShape, profile: HardwareProfile, shared: SharedDevice
) -> SharedDeviceMemory:
    """Return the memory of a learning stage on a shared device. `profile`: of the whole device."""
    step = chosen_step(job, stage, shape, shared.trainer_profile(profile))
    memory = trainer_memory(shape, step)
    engine = engine_of(shared.engine_job(job), shape, profile, tokens=sequence_tokens(job, stage))
    reads_files = transport_of(job, stage, stored=shape.stored_bytes) in ("Delta", "Collective")
    trainer_asleep = memory.weights + memory.optimizer + memory.published + memory.reference
    return SharedDeviceMemory(
        trainer=memory.total,
        engine=shared.engine_share * profile.memory_bytes,
        trainer_asleep=trainer_asleep if shared.time_shared else 0.0,
        engine_asleep=engine.weights if shared.time_shared else 0.0,
        host_copy=engine.weights if reads_files else 0.0,
        checkpoint=snapshot_bytes(shape, ranks=step.ranks, adapter=step.adapter),
        offloaded=memory.offloaded,
    )


def shared_rows(memory: SharedDeviceMemory, shared: SharedDevice) -> Iterator[Row]:
    """Yield the rows of a shared device."""
    parts = f"{gigabytes(memory.trainer)} of the trainer, {gigabytes(memory.engine)} of the engine"
    at_most = max(memory.trainer, memory.engine) if shared.time_shared else memory.trainer + memory.engine
    text = "larger" if shared.time_shared else "sum"
    yield Row(SECTION, "deviceBytes", "device, at most", "bytes", at_most, f"{text} of {parts}")
    if shared.time_shared:
        yield Row(
            *(SECTION, "sleepingTrainer", "host: trainer", "bytes", memory.trainer_asleep),
            "weights, moments and the weights published last; torch may round each pinned tensor up to a power of two",
        )
        yield Row(
            *(SECTION, "sleepingEngine", "host: engine", "bytes", memory.engine_asleep),
            "weights, while the trainer has the device; the KV cache is discarded",
        )
    yield Row(
        *(SECTION, "hostCopy", "host: weights of Delta", "bytes", memory.host_copy),
        "copy of the weights that the engine loads from; none with Folder",
    )
    yield Row(
        *(SECTION, "hostBytes", "host, total", "bytes", memory.host),
        f"sum of the copies, {gigabytes(memory.checkpoint)} for a checkpoint and {gigabytes(memory.offloaded)} of "
        "trainer.offload; without processes and judge",
    )


def switch_row(memory: SharedDeviceMemory) -> Row:
    """Return the row of the switches of a step."""
    return Row(
        *("Step", "switchSeconds", "switches of the device", "seconds", memory.seconds),
        f"{gigabytes(memory.moved)} / {gigabytes(HOST_LINK)} per second: trainer "
        f"{gigabytes(memory.trainer_asleep)} and engine {gigabytes(memory.engine_asleep)}, each to the host and back",
    )
