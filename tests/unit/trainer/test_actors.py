"""The devices of a rank, and the errors that count as a lost device or rank."""

from __future__ import annotations

import pickle

import pytest
import torch

from rstar2_train.capacity.model_support import UnsupportedModel
from rstar2_train.trainer.actors import ModelRefused, RankProcess, _reason, device_variables


@pytest.mark.parametrize(
    ("environ", "ids", "expected"),
    [
        # Ray without amdsmi narrows only the variable of NVIDIA.
        (
            {"HIP_VISIBLE_DEVICES": "0,1", "CUDA_VISIBLE_DEVICES": "1"},
            ["1"],
            {"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "1"},
        ),
        ({"CUDA_VISIBLE_DEVICES": "3"}, ["3"], {"CUDA_VISIBLE_DEVICES": "3"}),
        ({"CUDA_VISIBLE_DEVICES": "GPU-8a"}, ["GPU-8a"], {"CUDA_VISIBLE_DEVICES": "GPU-8a"}),
        ({"HIP_VISIBLE_DEVICES": "2"}, [2], {"HIP_VISIBLE_DEVICES": "2"}),
        ({"CUDA_VISIBLE_DEVICES": ""}, [], {}),
        ({}, ["0"], {}),
    ],
)
def test_device_variables(environ: dict[str, str], ids: list[int | str], expected: dict[str, str]) -> None:
    """Each variable that is set shows the rank only its own device."""
    assert device_variables(environ, ids) == expected


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered"), "lost its device"),
        (torch.AcceleratorError("unspecified launch failure"), "lost its device"),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "lost its device"),
        (RuntimeError("HIP error: invalid device function"), "lost its device"),
        (torch.AcceleratorError("CUDA error: device-side assert triggered"), "None"),
        (torch.AcceleratorError("CUDA error: invalid configuration argument"), "None"),
        (RuntimeError("NCCL communicator was aborted on rank 3"), "lost its device"),
        (torch.OutOfMemoryError("CUDA out of memory"), "has no free device memory"),
        (RuntimeError("Connection reset by peer"), "lost the connection"),
    ],
)
def test_reason_device_and_connection_errors(error: Exception, reason: str) -> None:
    """A broken device restarts the stage and is no defect of the program."""
    assert str(_reason(error)).startswith(reason)


def test_reason_of_a_defect_is_none() -> None:
    """Errors of the program keep their class."""
    assert _reason(RuntimeError("The size of tensor a (3) must match the size of tensor b (4)")) is None


class Refusing:
    """A rank that does not compute its model exactly."""

    rank, ranks = 0, 1

    def load(self) -> None:
        raise UnsupportedModel("logit_scale: 2.0")


def test_call_refused_model_is_not_retried() -> None:
    """The stage ends with the reason, which crosses the border of the process."""
    process = object.__new__(RankProcess)
    process._rank = Refusing()  # type: ignore[assignment]
    with pytest.raises(ModelRefused, match=r"logit_scale: 2.0") as caught:
        process.call("load")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.reason, copy.retryable, str(copy)) == ("BadConfiguration", False, "logit_scale: 2.0")
