"""spec.trainer.dtype: the number format of forward and backward pass.

Weights and moments are always float32. Bfloat16 is faster where the device has instructions for it.

Used by the ranks, by `rstar2 plan` and by the checks before a run.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

from rstar2_train.api.engine_args import engine_dtype

if TYPE_CHECKING:
    from rstar2_train.api.job import JobSpec
    from rstar2_train.api.roles import NumberFormat, Vendor

CPU_INFO = Path("/proc/cpuinfo")
CPU_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""Flags of the instructions for bfloat16: of x86, of x86 with tiles, of Arm."""
NO_INSTRUCTIONS = (
    "spec.trainer.dtype: BFloat16 needs a CPU with instructions for it (avx512_bf16, amx_bf16), which this one lacks: "
    "set Float32 or Auto"
)


@functools.cache
def cpu_has_bfloat16(file: Path = CPU_INFO) -> bool:
    """Return whether this machine's CPU computes with bfloat16; without instructions it is slower than float32."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return False
    flags = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return not CPU_FLAGS.isdisjoint(flags.partition(":")[2].split())


def requested_format(spec: JobSpec) -> NumberFormat:
    """Return the format that a job asks for. Auto remains where the CPU of the rank decides.

    On the CPU, trainer and engines have the same format unless the manifest sets another one: their log-probabilities
    differ least.
    """
    if spec.trainer.dtype != "Auto" or spec.accelerator.vendor != "None":
        return spec.trainer.dtype
    return "Auto" if engine_dtype(spec.rollout, spec.accelerator.vendor) == "bfloat16" else "Float32"


def has_float32_versions(spec: JobSpec) -> bool:
    """Return whether engines get float32 weights also of a model of 16 bits: ranks and engines compute in float32.

    Rounded ones would be other weights than those that the ranks train.
    """
    return requested_format(spec) == "Float32" and engine_dtype(spec.rollout, spec.accelerator.vendor) == "float32"


def computed_formats(spec: JobSpec) -> frozenset[str]:
    """Return the formats in which engines and ranks compute, by their name in config.json. Auto counts as bfloat16."""
    ranks = "float32" if requested_format(spec) == "Float32" else "bfloat16"
    return frozenset({ranks, engine_dtype(spec.rollout, spec.accelerator.vendor)})


def is_bfloat16(dtype: NumberFormat, vendor: Vendor) -> bool:
    """Return whether ranks on this machine compute in bfloat16.

    Raises:
        RuntimeError: for BFloat16 on a CPU without instructions for it.
    """
    if dtype == "Float32":
        return False
    if vendor != "None" or cpu_has_bfloat16():
        return True
    if dtype == "BFloat16":
        raise RuntimeError(NO_INSTRUCTIONS)
    return False
