"""The bindings of NCCL and RCCL, with the real library: up to the join, which needs a GPU."""

import os
import subprocess
import sys

import pytest
import torch

from rstar2_train.weights.experimental.nccl import CUDA_NAMES, ROCM_NAMES, NcclFailed, load
from rstar2_train.weights.experimental.nccl_group import find_library

NAMES, NAME = (ROCM_NAMES, "RCCL") if torch.version.hip else (CUDA_NAMES, "NCCL")
JOIN = """
import torch
from rstar2_train.weights.experimental.nccl import Communicator, NcclFailed, load
library = load({names!r}, name={name!r})
try:
    Communicator(library, library.unique_id(), rank=0, members=1)
except NcclFailed as error:
    print(error)
"""


def test_nccl_library_is_found() -> None:
    """The library that torch brings is found; it states its version, and each group has an id of its own."""
    library = load(NAMES, name=NAME)
    assert library.name.startswith(f"{NAME} 2.")
    assert len(library.unique_id()) == 128
    assert library.unique_id() != library.unique_id()


def test_nccl_missing_library_names_files() -> None:
    """Without a library the error has the loader's reason for each name."""
    with pytest.raises(NcclFailed, match=r"libabsent\.so.*; .*librabsent\.so"):
        load(("libabsent.so", "librabsent.so"), name="NCCL")


def test_nccl_old_library_is_rejected() -> None:
    """A library without the functions of 2.14 is not used."""
    with pytest.raises(NcclFailed, match=r"NCCL is older than 2\.14: it has no ncclGetVersion"):
        load(("libc.so.6",), name="NCCL")


def test_nccl_join_without_gpu_fails() -> None:
    """Without a GPU the library refuses to join, with its own text."""
    hidden = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-c", JOIN.format(names=NAMES, name=NAME)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **hidden}, check=True)
    assert done.stdout.startswith("ncclCommInitRankConfig: ")


@pytest.mark.parametrize("device", [None, torch.device("cpu")])
def test_find_library_without_gpu(device: torch.device | None) -> None:
    """A member on a CPU uses gloo, also if the library is installed."""
    library, member = find_library(device)
    assert library is None
    assert (member.library, member.reason) == ("", "it has no GPU")
