"""Moves a rank's memory from its device to the host and back. Meanwhile an engine uses the device.

`orchestrator/device_sharing.py` decides when. Whole storages move: parameters, gradients, buffers, the optimiser's
moments, and the weights published last. The tensors stay the same objects, with storages of size 0 meanwhile, so that
views, FSDP and compiled layers need not know. The host buffers are kept for the next time, because pinned memory is
slow to allocate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from rstar2_train.trainer.model import Policy


class SleepingMemory:
    """The memory of one rank. `sleep` and `wake_up` alternate."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers: dict[int, Tensor] = {}
        """Host memory, by the storage that it is for."""
        self._moved: list[tuple[torch.UntypedStorage, Tensor]] = []

    @property
    def is_asleep(self) -> bool:
        """Whether the memory is on the host."""
        return bool(self._moved)

    def sleep(self, policy: Policy, optimizer: torch.optim.Optimizer, others: Iterable[Tensor] = ()) -> None:
        """Copy the memory to the host and free it on the device. `others`: further tensors on the device."""
        for module in policy.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        storages = {
            storage.data_ptr(): storage for storage in self._storages(chain(_tensors(policy, optimizer), others))
        }
        buffers = {}
        for storage in storages.values():
            key = storage._cdata
            buffer = self._buffers.get(key)
            if buffer is None or buffer.numel() != storage.nbytes():
                pinned = self._device.type != "cpu"
                buffer = torch.empty(storage.nbytes(), dtype=torch.uint8, pin_memory=pinned)
            buffers[key] = buffer.copy_(_as_bytes(storage))
            self._moved.append((storage, buffer))
        for storage, _ in self._moved:
            storage.resize_(0)
        self._buffers = buffers
        if self._device.type != "cpu":
            torch.cuda.empty_cache()

    def wake_up(self) -> None:
        """Copy the memory back to the device; no effect if it is there."""
        for storage, buffer in self._moved:
            storage.resize_(buffer.numel())
            _as_bytes(storage).copy_(buffer)
        self._moved = []

    def _storages(self, tensors: Iterable[Tensor]) -> Iterator[torch.UntypedStorage]:
        for tensor in tensors:
            storage = tensor.untyped_storage()
            # On the CPU, the storage of a tensor that NumPy has seen cannot be freed.
            if tensor.device.type == self._device.type and storage.nbytes() and storage.resizable():
                yield storage


def _tensors(policy: Policy, optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    """Yield all local tensors of a rank."""
    for parameter in policy.parameters():
        yield from (_local(tensor) for tensor in (parameter, parameter.grad) if tensor is not None)
    yield from (_local(buffer) for buffer in policy.buffers())
    for state in optimizer.state.values():
        yield from (_local(value) for value in state.values() if isinstance(value, Tensor))


def _local(tensor: Tensor) -> Tensor:
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def _as_bytes(storage: torch.UntypedStorage) -> Tensor:
    """Return a storage as [bytes] uint8, without a copy."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
