"""Devices of a machine: discovery from tools and environment, and the devices of trainer and engines."""

import json
from collections.abc import Sequence

import pytest

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.stages import Stage
from rstar2_train.capacity.model_shape import read_shape
from rstar2_train.launch.local.devices import Device, DevicesError, assign, assign_engine, visible_devices

SMI = "".join(f"{at}, GPU-{at}{at}{at}{at}, 143771\n" for at in range(4))
ROCM = json.dumps({f"card{at}": {"VRAM Total Memory (B)": str(192 * 10**9)} for at in (2, 0, 1, 10)} | {"system": {}})


def devices(count: int, *, gigabytes: float = 80) -> list[Device]:
    """Return numbered devices."""
    return [Device(str(at), memory_bytes=gigabytes * 1e9) for at in range(count)]


def job(*, ranks: int = 1, engines: int = 1, parallel: int = 1, vendor: str = "NVIDIA", **trainer: int) -> AgenticRLJob:
    """Return a job with one GRPO stage."""
    resource = {"NVIDIA": {"resource": "nvidia.com/gpu"}, "AMD": {"resource": "amd.com/gpu"}}.get(vendor, {})
    return AgenticRLJob.model_validate(
        {
            "metadata": {"name": "devices"},
            "spec": {
                "model": {"source": "hf://Qwen/Qwen3-0.6B"},
                "accelerator": {"vendor": vendor, **resource},
                "trainer": {"replicas": 1, "gpusPerReplica": ranks, **trainer},
                "rollout": {"replicas": engines, "tensorParallel": parallel},
                "stages": [{"name": "rl", "type": "GRPO", "grpo": {"data": "d", "steps": 1}}],
            },
        }
    )


@pytest.mark.parametrize(
    ("variable", "ids"),
    [(None, "0123"), ("2,0", "20"), ("GPU-3333,1", "31"), ("", ""), ("-1", ""), ("1,7,2", "1"), (" 3 , 2", "32")],
)
def test_devices_cuda_variable_selects(variable: str | None, ids: str) -> None:
    """Numbers and UUIDs select devices in their order; like CUDA, the first unknown entry ends the list."""
    environ = {} if variable is None else {"CUDA_VISIBLE_DEVICES": variable}
    chosen = visible_devices("NVIDIA", environ, query=lambda command: SMI)
    assert "".join(each.id for each in chosen) == ids
    assert all(each.memory_bytes == 143771 * 2**20 for each in chosen)


@pytest.mark.parametrize(
    ("environ", "ids"),
    [
        ({}, "0123"),
        ({"ROCR_VISIBLE_DEVICES": "2,3"}, "01"),
        ({"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "1"}, "1"),
        ({"CUDA_VISIBLE_DEVICES": "3"}, "3"),
        ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "3"}, "0"),
    ],
)
def test_devices_amd_variables_are_nested(environ: dict[str, str], ids: str) -> None:
    """HIP numbers the devices that ROCR_VISIBLE_DEVICES leaves."""
    chosen = visible_devices("AMD", environ, query=lambda command: ROCM)
    assert "".join(each.id for each in chosen) == ids


def test_devices_missing_tool_is_an_error() -> None:
    """A machine without the vendor's tool, or with another output, names the command."""

    def missing(command: Sequence[str]) -> str:
        raise FileNotFoundError(f"no {command[0]}")

    with pytest.raises(DevicesError, match=r"nvidia-smi .* failed: no nvidia-smi"):
        visible_devices("NVIDIA", {}, query=missing)
    with pytest.raises(DevicesError, match="rocm-smi"):
        visible_devices("AMD", {}, query=lambda command: "not JSON")


@pytest.mark.parametrize(
    ("ranks", "engines", "parallel", "count"), [(1, 1, 1, 2), (4, 2, 2, 8), (3, 5, 1, 8), (2, 1, 4, 6)]
)
def test_devices_processes_are_disjoint(ranks: int, engines: int, parallel: int, count: int) -> None:
    """Every process has devices of its own, as many as it needs."""
    assigned = assign(job(ranks=ranks, engines=engines, parallel=parallel), devices(count), shape=None)
    used = [*assigned.trainer, *(each for engine in assigned.engines for each in engine)]
    assert len(used) == len(set(used)) == ranks + engines * parallel
    assert len(assigned.trainer) == ranks and [len(each) for each in assigned.engines] == [parallel] * engines
    assert assigned.engine_share is None


def distilled(**teacher: int) -> AgenticRLJob:
    """Return a job with engines of a teacher, whose only stage has it."""
    made = job(ranks=2, engines=1).model_dump(by_alias=True, exclude_none=True)
    made["spec"]["teacher"] = teacher
    made["spec"]["stages"][0]["grpo"]["objective"] = {"type": "Distillation", "teacher": {"source": "/models/big"}}
    return AgenticRLJob.model_validate(made)


def test_devices_of_a_teacher_come_last() -> None:
    """Its engines have devices only if a stage to run has such a teacher."""
    made = distilled(replicas=2, tensorParallel=2)
    assigned = assign(made, devices(8), shape=None)
    assert (assigned.trainer, assigned.engines) == (("0", "1"), (("2",),))
    assert assigned.teacher == (("3", "4"), ("5", "6"))
    assert assigned.teacher_environment(1)["CUDA_VISIBLE_DEVICES"] == "5,6"
    assert assign(made, devices(3), shape=None, pending=[]).teacher == ()


def test_devices_environment_shows_only_its_own() -> None:
    """The variables of a child have its devices, with both names on AMD; an empty value hides all."""
    nvidia = assign(job(ranks=2, engines=1, parallel=2), devices(4), shape=None)
    assert nvidia.trainer_environment()["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert nvidia.engine_environment(0) == {"CUDA_VISIBLE_DEVICES": "2,3", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    amd = assign(job(vendor="AMD"), devices(2), shape=None)
    assert amd.engine_environment(0) == {"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "1"}
    benchmark = {"name": "b", "data": "d"}
    measure = Stage.model_validate({"name": "m", "type": "Evaluate", "evaluate": {"benchmarks": [benchmark]}})
    sampling = assign(job(), devices(1), shape=None, pending=[measure])
    assert sampling.trainer_environment()["CUDA_VISIBLE_DEVICES"] == "" and sampling.engines == (("0",),)
    cpu = assign(job(ranks=0, vendor="None"), [], shape=None)
    assert cpu.trainer_environment() == {} == cpu.engine_environment(0)


def test_devices_one_device_is_shared() -> None:
    """On one device the engine gets the memory that the trainer's peak leaves: less for larger micro-batches."""
    shape = read_shape("Qwen3-0.6B")
    small = assign(job(tokensPerMicroBatch=12288), devices(1), shape=shape)
    large = assign(job(tokensPerMicroBatch=32768), devices(1), shape=shape)
    assert small.trainer == ("0",) and small.engines == (("0",),)
    assert small.engine_share is not None and large.engine_share is not None
    assert 0.1 < large.engine_share < small.engine_share < 0.8
    for shared in (small, large):
        assert shared.trainer_share is not None and shared.engine_share is not None
        assert shared.trainer_share + shared.engine_share < 0.98
        assert shared.trainer_environment()["RSTAR2_DEVICE_SHARE"] == str(shared.trainer_share)


@pytest.mark.parametrize(
    ("made", "count", "message"),
    [
        (
            job(ranks=8, engines=4),
            8,
            "set spec.trainer.replicas to 1, spec.trainer.gpusPerReplica to 4 and spec",
        ),
        (job(ranks=1, engines=1, parallel=4), 4, "spec.rollout.tensorParallel to 2 or less"),
        (job(ranks=2, engines=1), 1, "this machine has 1 device, but the job needs spec.trainer 2"),
        (job(), 0, "no device is visible"),
        (distilled(replicas=2), 4, "this machine has 2 devices besides the 2 of spec.teacher, but the job needs"),
        (distilled(replicas=4), 4, "spec.teacher needs 4 besides those of .* remove spec.teacher"),
    ],
)
def test_devices_shortage_names_the_fields(made: AgenticRLJob, count: int, message: str) -> None:
    """Too few devices are an error with the fields to change."""
    with pytest.raises(DevicesError, match=message):
        assign(made, devices(count), shape=None)


def test_devices_one_device_is_time_shared() -> None:
    """If the trainer leaves little, both get nearly the whole device, by time-sharing, unless a stage overlaps them."""
    shape = read_shape("Qwen3-0.6B")
    made = job(tokensPerMicroBatch=8192)
    assert not assign(made, devices(1, gigabytes=80), shape=shape).time_shared
    shared = assign(made, devices(1, gigabytes=20), shape=shape)
    assert shared.time_shared and shared.trainer == ("0",) and shared.engines == (("0",),)
    assert shared.engine_share is not None and shared.engine_share > 0.8
    assert "share GPU 0 by time-sharing" in shared.shared_use()
    overlapping = made.model_copy(deep=True)
    overlapping.spec.grpo.max_staleness = 1
    with pytest.raises(DevicesError, match=r"set grpo\.maxStaleness to 0, so that they time-share it"):
        assign(overlapping, devices(1, gigabytes=20), shape=shape)


def test_devices_without_sampling_stages_are_the_trainers() -> None:
    """If only stages without engines are pending, no engine runs that could share the device or sleep."""
    shape = read_shape("Qwen3-0.6B")
    made = job(tokensPerMicroBatch=8192)
    sft = Stage.model_validate({"name": "sft", "type": "SFT", "sft": {"data": "d", "epochs": 1}})
    made.spec.stages.append(sft)
    assert assign(made, devices(1, gigabytes=24), shape=shape).time_shared
    alone = assign(made, devices(1, gigabytes=24), shape=shape, pending=[sft])
    assert (alone.trainer, alone.engines, alone.time_shared, alone.shared_use()) == (("0",), (), False, "")
    assert "RSTAR2_DEVICE_SHARE" not in alone.trainer_environment()
    assert assign(made, devices(1), shape=None, pending=[]).trainer == ()


def test_devices_shared_device_too_small_is_an_error() -> None:
    """A trainer that does not fit the device cannot time-share it either."""
    with pytest.raises(DevicesError, match=r"spec\.trainer\.tokensPerMicroBatch: the trainer needs"):
        assign(job(), devices(1, gigabytes=8), shape=read_shape("Qwen3-0.6B"))
    with pytest.raises(DevicesError, match="unknown: use a second device"):
        assign(job(), devices(1), shape=None)


def test_devices_single_engine_takes_the_first() -> None:
    """rstar2 serve starts one engine, on the first devices."""
    assert assign_engine("NVIDIA", devices(4), tensor_parallel=2).engines == (("0", "1"),)
    with pytest.raises(DevicesError, match=r"spec\.rollout\.tensorParallel is 4, but this machine has 2 devices"):
        assign_engine("NVIDIA", devices(2), tensor_parallel=4)
