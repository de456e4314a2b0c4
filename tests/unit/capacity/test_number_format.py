"""spec.trainer.dtype: what a job asks for, and what a CPU does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.capacity import number_format
from rstar2_train.capacity.fit import engine_of, trainer_value_bytes, transport_of, version_value_bytes
from rstar2_train.capacity.hardware_profile import largest_device
from rstar2_train.capacity.model_shape import read_shape
from rstar2_train.capacity.number_format import cpu_has_bfloat16, has_float32_versions, is_bfloat16
from rstar2_train.launch.local import preflight
from rstar2_train.trainer.types import TrainConfig
from tests.support.simulated_cluster import manifest

X86 = "processor\t: 0\nflags\t\t: fpu sse2 avx512f {}\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (X86.format("avx512_bf16"), True),
        (X86.format("amx_bf16 amx_tile"), True),
        (X86.format("avx512_vnni"), False),
        ("processor\t: 0\nFeatures\t: fp asimd bf16 i8mm\n", True),
        ("", False),
    ],
)
def test_cpu_has_bfloat16_by_its_flags(text: str, expected: bool, tmp_path: Path) -> None:
    """The flags of x86 and of Arm; a machine that shows none has none."""
    (tmp_path / "cpuinfo").write_text(text)
    assert cpu_has_bfloat16(tmp_path / "cpuinfo") is expected
    assert not cpu_has_bfloat16(tmp_path / "absent")


def job(vendor: str, dtype: str, engine: dict[str, Any]) -> AgenticRLJob:
    body = manifest("g")
    body["spec"]["accelerator"] = {"vendor": vendor}
    body["spec"]["trainer"] |= {"dtype": dtype} | ({"gpusPerReplica": 0} if vendor == "None" else {})
    body["spec"].setdefault("rollout", {})["engineArgs"] = engine
    return AgenticRLJob.model_validate(body)


@pytest.mark.parametrize("instructions", [False, True])
@pytest.mark.parametrize(
    ("vendor", "dtype", "engine", "expected"),
    [
        ("AMD", "Auto", {}, "bfloat16"),
        ("AMD", "Float32", {}, "float32"),
        ("None", "Auto", {}, "float32"),
        ("None", "Auto", {"dtype": "float32"}, "float32"),
        ("None", "Auto", {"dtype": "bfloat16"}, "as the CPU"),
        ("None", "Auto", {"--dtype": "bfloat16"}, "as the CPU"),
        ("None", "BFloat16", {}, "bfloat16 or refused"),
        ("None", "Float32", {"dtype": "bfloat16"}, "float32"),
    ],
)
def test_trainer_format(
    vendor: str, dtype: str, engine: dict[str, Any], expected: str, instructions: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the CPU, Auto follows the engines; BFloat16 without instructions is refused before the run."""
    monkeypatch.setattr(number_format, "cpu_has_bfloat16", lambda: instructions)
    spec = job(vendor, dtype, engine).spec
    requested = TrainConfig.from_spec(spec).dtype
    wide = expected == "float32" or (expected == "as the CPU" and not instructions)
    assert trainer_value_bytes(job(vendor, dtype, engine)) == (4 if wide else 2)
    if expected == "bfloat16 or refused" and not instructions:
        with pytest.raises(RuntimeError, match=r"spec\.trainer\.dtype: BFloat16 needs a CPU .* set Float32 or Auto"):
            is_bfloat16(requested, spec.accelerator.vendor)
        with pytest.raises(preflight.PreflightError, match=r"spec\.trainer\.dtype"):
            preflight.assign_devices(job(vendor, dtype, engine))
    else:
        assert is_bfloat16(requested, spec.accelerator.vendor) is not wide


@pytest.mark.parametrize(
    ("vendor", "dtype", "engine", "wide"),
    [
        ("None", "Auto", {}, True),
        ("None", "Float32", {"dtype": "bfloat16"}, False),
        ("None", "Auto", {"dtype": "float16"}, False),
        ("AMD", "Float32", {"dtype": "float32"}, True),
        ("AMD", "Float32", {}, False),
        ("AMD", "Auto", {"dtype": "float32"}, False),
    ],
)
def test_versions_are_float32_if_ranks_and_engines_are(
    vendor: str, dtype: str, engine: dict[str, Any], wide: bool
) -> None:
    """The engines sample from the weights that the ranks train, also if config.json has 16 bits."""
    it = job(vendor, dtype, engine)
    assert has_float32_versions(it.spec) is TrainConfig.from_spec(it.spec).float32_versions is wide
    assert version_value_bytes(it) == (4 if wide or vendor == "None" else 2)
    assert version_value_bytes(it, stored=2) == (4 if wide else 2) and version_value_bytes(it, stored=4) == 4


def test_plan_counts_float32_engines_and_versions() -> None:
    """The weights of an engine have four bytes, and Auto publishes folders."""
    shape, profile = read_shape("Qwen3-8B"), largest_device("AMD")
    weights, transports = [], []
    for engine in ({}, {"dtype": "float32"}):
        it = job("AMD", "Float32", engine)
        it.spec.rollout.weight_transport = "Auto"
        weights.append(engine_of(it, shape, profile, tokens=4096).weights)
        transports += [transport_of(it, it.spec.stages[0], stored=stored) for stored in (None, 4)]
    assert weights[1] == 2 * weights[0] and transports == ["Delta", "Folder", "Folder", "Folder"]


@pytest.mark.parametrize(
    ("vendor", "dtype", "engine", "version", "tolerance"),
    [
        ("None", "Auto", {}, "float32", 1e-3),
        ("None", "Float32", {"dtype": "bfloat16"}, "float32", 0.1),
        ("None", "Float32", {"dtype": "float16"}, "float32", 0.05),
        ("None", "BFloat16", {"dtype": "float32"}, "float32", 0.1),
        ("AMD", "Auto", {}, "float32", 0.1),
        ("AMD", "Float32", {"dtype": "float32"}, "float32", 1e-3),
        ("AMD", "Float32", {"dtype": "float32"}, "float16", 0.05),
    ],
)
def test_probe_tolerance_is_that_of_the_coarsest_format(
    vendor: str, dtype: str, engine: dict[str, Any], version: str, tolerance: float
) -> None:
    """Float32 versions in a 16-bit engine differ from float32 ranks by rounding, which is no fault of an update."""
    assert TrainConfig.from_spec(job(vendor, dtype, engine).spec).probe_tolerance(version) == tolerance
