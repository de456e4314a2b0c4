"""The GPUs of this machine, and which of them the trainer and each engine of a job use.

    preflight -> visible_devices (environment, nvidia-smi or rocm-smi) -> assign (pure) -> Services -> environment of
    each child

The launcher does not import torch. A variable such as CUDA_VISIBLE_DEVICES of this process limits the devices; each
child gets the part that is its own.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.roles import Vendor
from rstar2_train.api.stages import Stage
from rstar2_train.capacity.fit import ranks_of, trainer_step
from rstar2_train.capacity.layout import DEVICE_SHARE
from rstar2_train.capacity.memory import ENGINE_SHARE, trainer_memory
from rstar2_train.capacity.model_shape import ModelShape

QUERIES: Mapping[Vendor, tuple[str, ...]] = {
    "NVIDIA": ("nvidia-smi", "--query-gpu=index,uuid,memory.total", "--format=csv,noheader,nounits"),
    "AMD": ("rocm-smi", "--showmeminfo", "vram", "--json"),
}
"""Command that lists the devices of a vendor."""
QUERY_SECONDS = 30.0
CONTEXT_BYTES = 2e9
"""Memory of the drivers' contexts of two processes on one device."""
PEAK_MARGIN = 1.15
"""Memory of the trainer / peak of the memory model: its error, and fragmentation."""
LEAST_ENGINE_SHARE = 0.1
"""Share of a shared device below which an engine is not started."""
GOOD_ENGINE_SHARE = 0.3
"""Share of a shared device below which trainer and engine time-share it, if they can."""


class DevicesError(Exception):
    """The devices of this machine do not suffice for a job. The message names the fields."""


def vendor(dev: Path = Path("/dev")) -> Vendor:
    """Return the vendor of the accelerator that this machine's device files show."""
    if (dev / "nvidiactl").exists():
        return "NVIDIA"
    return "AMD" if (dev / "kfd").exists() else "None"


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU."""

    id: str
    """Its number in the variable that selects it."""
    uuid: str = ""
    memory_bytes: float = 0.0
    """0: unknown."""


@dataclass(frozen=True, slots=True)
class DeviceAssignment:
    """The devices of each process; without devices, the processes use the CPU."""

    vendor: Vendor = "None"
    trainer: tuple[str, ...] = ()
    engines: tuple[tuple[str, ...], ...] = ()
    teacher: tuple[tuple[str, ...], ...] = ()
    """Those of each engine of the teacher."""
    time_shared: bool = False
    """Whether trainer and engine time-share one device: each of them leaves it to the other one."""
    engine_share: float | None = None
    """Share of the device's memory for the engine, if trainer and engine share one device."""
    trainer_share: float | None = None
    """Share of the device's memory for the trainer, if they share one device."""

    def shared_use(self) -> str:
        """Return how trainer and engine share a device, as a sentence; empty if they do not."""
        if self.engine_share is None:
            return ""
        device = f"The trainer and the engine share GPU {self.trainer[0]}"
        if self.time_shared:
            return f"{device} by time-sharing: one uses it, the other one waits in host memory."
        trainer, engine = f"{self.trainer_share:.0%}", f"{self.engine_share:.0%}"
        return f"{device}: {trainer} of its memory for the trainer, {engine} for the engine."

    def trainer_environment(self) -> dict[str, str]:
        """Return the variables of the orchestrator, whose ranks divide its devices."""
        share = {} if self.trainer_share is None else {DEVICE_SHARE: str(self.trainer_share)}
        return _environment(self.vendor, self.trainer) | share

    def engine_environment(self, index: int) -> dict[str, str]:
        """Return the variables of an engine."""
        return _environment(self.vendor, self.engines[index] if self.engines else ())

    def teacher_environment(self, index: int) -> dict[str, str]:
        """Return the variables of an engine of the teacher."""
        return _environment(self.vendor, self.teacher[index] if self.teacher else ())


def visible_devices(
    vendor: Vendor, environ: Mapping[str, str], *, query: Callable[[Sequence[str]], str] | None = None
) -> list[Device]:
    """Return the devices of a vendor that this process may use.

    Args:
        vendor: AMD or NVIDIA.
        environ: CUDA_VISIBLE_DEVICES; on AMD ROCR_VISIBLE_DEVICES, then HIP_VISIBLE_DEVICES of the remaining ones.
        query: runs a command and returns its output; raises OSError if there is no such command.

    Raises:
        DevicesError: if the vendor's tool fails.
    """
    command = QUERIES[vendor]
    try:
        output = (query or _run)(command)
        devices = _parse_amd(output) if vendor == "AMD" else _parse_nvidia(output)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise DevicesError(f"{' '.join(command)} failed: {error}. Check the driver and the PATH.") from error
    if vendor == "NVIDIA":
        return _selected(devices, environ.get("CUDA_VISIBLE_DEVICES"))
    chosen = _selected(devices, environ.get("ROCR_VISIBLE_DEVICES"))
    # HIP numbers the devices that ROCr shows.
    numbered = [replace(device, id=str(at)) for at, device in enumerate(chosen)]
    return _selected(numbered, environ.get("HIP_VISIBLE_DEVICES", environ.get("CUDA_VISIBLE_DEVICES")))


def assign(
    job: AgenticRLJob,
    devices: Sequence[Device],
    *,
    shape: ModelShape | None,
    pending: Sequence[Stage] | None = None,
) -> DeviceAssignment:
    """Return the devices of the trainer's ranks and of each engine: ranks, engines, teacher's engines.

    A job with one rank and one engine may share a single device. The engine gets the memory that the trainer's peak
    leaves. If that is little, and no stage samples while it trains (maxStaleness 0), they time-share it.

    Args:
        job: the job; its engines and learning stages determine the number of devices.
        devices: of this machine.
        shape: the model, for the division of a shared device; None if it is unknown.
        pending: the stages to run; default: all of the job. Without engines the trainer shares no device.

    Raises:
        DevicesError: if the devices do not suffice; the message names the fields and values that fit.
    """
    vendor = job.spec.accelerator.vendor
    if vendor == "None":
        return DeviceAssignment()
    stages = job.spec.stages if pending is None else pending
    learning = [stage for stage in stages if stage.learns]
    samples = any(stage.needs_engines for stage in stages)
    ranks = max((ranks_of(job, stage) for stage in learning), default=0)
    parallel = job.spec.rollout.tensor_parallel
    engines = job.spec.rollout.replicas if samples else 0
    teacher = job.spec.teacher if any(map(job.served_teacher, stages)) else None
    teachers = teacher.gpus if teacher is not None else 0
    ids = _ids(vendor, devices)
    rest = len(ids) - teachers
    if ranks + engines * parallel <= rest:
        sampling, rating = ids[ranks : ranks + engines * parallel], ids[ranks + engines * parallel :][:teachers]
        of_teacher = _groups(rating, teacher.tensor_parallel) if teacher is not None else ()
        return DeviceAssignment(vendor, tuple(ids[:ranks]), _groups(sampling, parallel), of_teacher)
    if len(ids) == ranks == engines == parallel == 1 and not teachers:
        return _share(job, devices[0], shape, ids[0], learning)
    if teachers and rest < 2:
        raise DevicesError(
            f"this machine has {len(ids)} device{'s' * (len(ids) > 1)}, but spec.teacher needs {teachers} besides "
            "those of spec.trainer and spec.rollout: remove spec.teacher, so that the ranks hold the teacher"
        )
    raise DevicesError(_shortage(job, rest, ranks=ranks, engines=engines, teachers=teachers))


def _groups(ids: Sequence[str], size: int) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(ids[at : at + size]) for at in range(0, len(ids), size))


def assign_engine(vendor: Vendor, devices: Sequence[Device], *, tensor_parallel: int) -> DeviceAssignment:
    """Return the devices of a single engine without a trainer. Raises DevicesError if there are too few."""
    if vendor == "None":
        return DeviceAssignment()
    ids = _ids(vendor, devices)
    if tensor_parallel > len(ids):
        raise DevicesError(
            f"spec.rollout.tensorParallel is {tensor_parallel}, but this machine has {len(ids)} "
            f"device{'s' * (len(ids) > 1)}: set it to {len(ids)} or less"
        )
    return DeviceAssignment(vendor, (), (tuple(ids[:tensor_parallel]),))


def _ids(vendor: Vendor, devices: Sequence[Device]) -> list[str]:
    if not devices:
        raise DevicesError(
            f"spec.accelerator.vendor is {vendor}, but no device is visible: check CUDA_VISIBLE_DEVICES, "
            "HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES, or set vendor: None to use the CPU"
        )
    return [device.id for device in devices]


def _share(
    job: AgenticRLJob, device: Device, shape: ModelShape | None, number: str, learning: Sequence[Stage]
) -> DeviceAssignment:
    """Return the use of a single device by one rank and one engine, at the same time or by time-sharing."""
    if shape is None or not device.memory_bytes:
        raise DevicesError(
            "spec.trainer and spec.rollout would share the only device, but the size of its memory or of the model is "
            "unknown: use a second device"
        )
    peak = max(trainer_memory(shape, trainer_step(job, stage, shape)).total for stage in learning)
    trainer, contexts = PEAK_MARGIN * peak / device.memory_bytes, CONTEXT_BYTES / device.memory_bytes
    engine = round(1 - trainer - contexts, 3)
    shared = DeviceAssignment(job.spec.accelerator.vendor, (number,), ((number,),))
    overlaps = any(job.grpo_settings(stage).max_staleness for stage in learning if stage.type == "GRPO")
    if engine < GOOD_ENGINE_SHARE and trainer + contexts <= 1 and not overlaps:
        whole = round(1 - contexts, 3)
        return replace(shared, time_shared=True, engine_share=min(whole, ENGINE_SHARE), trainer_share=whole)
    if engine < LEAST_ENGINE_SHARE:
        turns = "set grpo.maxStaleness to 0, so that they time-share it, " if trainer + contexts <= 1 else ""
        raise DevicesError(
            f"spec.trainer.tokensPerMicroBatch: the trainer needs {peak / 1e9:.1f} GB of the "
            f"{device.memory_bytes / 1e9:.1f} GB of the only device, too much to share it with an engine: {turns}lower "
            "tokensPerMicroBatch and the stages' maxResponseTokens, use a smaller model, or a second device"
        )
    return replace(shared, engine_share=min(engine, ENGINE_SHARE), trainer_share=round(trainer, 3))


def _shortage(job: AgenticRLJob, available: int, *, ranks: int, engines: int, teachers: int) -> str:
    """Return the shortage of devices and the remedy. `available`: without those of the teacher."""
    trainer, rollout = job.spec.trainer, job.spec.rollout
    parts = []
    if ranks:
        parts.append(f"spec.trainer {ranks} (replicas {trainer.replicas} x gpusPerReplica {trainer.gpus_per_replica})")
    if engines:
        parts.append(
            f"spec.rollout {engines * rollout.tensor_parallel} (replicas {rollout.replicas} x tensorParallel "
            f"{rollout.tensor_parallel})"
        )
    besides = f" besides the {teachers} of spec.teacher" if teachers else ""
    message = (
        f"this machine has {available} device{'s' * (available > 1)}{besides}, but the job needs {' and '.join(parts)}"
    )
    for_engines = available if not ranks else available - max(1, available // 2)
    fitting = for_engines // rollout.tensor_parallel
    if engines and not fitting:
        return f"{message}: set spec.rollout.tensorParallel to {max(1, for_engines)} or less"
    advice = [f"spec.rollout.replicas to {fitting}"] * bool(engines)
    if ranks:
        rest = available - fitting * rollout.tensor_parallel * bool(engines)
        advice = [f"spec.trainer.replicas to 1, spec.trainer.gpusPerReplica to {rest}", *advice]
    return f"{message}: set {' and '.join(advice)}"


def _environment(vendor: Vendor, ids: Sequence[str]) -> dict[str, str]:
    """Return the variables that show a process only its devices; an empty value hides all."""
    if vendor == "None":
        return {}
    value = ",".join(ids)
    if vendor == "NVIDIA":
        # nvidia-smi numbers the devices in the order of the bus, CUDA by default in that of their speed.
        return {"CUDA_VISIBLE_DEVICES": value, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    # vLLM and Ray read both; they must be equal.
    return {"HIP_VISIBLE_DEVICES": value, "CUDA_VISIBLE_DEVICES": value}


def _selected(devices: Sequence[Device], variable: str | None) -> list[Device]:
    """Return the devices in the order of a *_VISIBLE_DEVICES variable; like CUDA, stop at the first unknown entry."""
    if variable is None:
        return list(devices)
    chosen: list[Device] = []
    for entry in (part.strip() for part in variable.split(",")):
        matches = [device for device in devices if entry and (device.id == entry or device.uuid.startswith(entry))]
        if not matches:
            break
        chosen.append(matches[0])
    return chosen


def _parse_nvidia(output: str) -> list[Device]:
    devices = []
    for line in output.splitlines():
        if line.strip():
            index, uuid, mebibytes = (part.strip() for part in line.split(","))
            known = mebibytes.isdecimal()  # some devices with unified memory have no figure
            devices.append(Device(index, uuid, float(mebibytes) * 2**20 if known else 0.0))
    return devices


def _parse_amd(output: str) -> list[Device]:
    cards = {name: card for name, card in json.loads(output).items() if name.startswith("card")}
    ordered = sorted(cards, key=lambda name: int(name.removeprefix("card")))
    return [
        Device(str(at), memory_bytes=float(cards[name].get("VRAM Total Memory (B)", 0)))
        for at, name in enumerate(ordered)
    ]


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=QUERY_SECONDS)
    return done.stdout
