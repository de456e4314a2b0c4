"""A group over NCCL or RCCL: bytes pass through a buffer on the GPU, and every wait has a deadline.

A hung member cannot be waited out on the device. At the deadline the communicator is aborted, which also ends its
kernel, and the caller gets the RuntimeError that gloo would raise.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from rstar2_train.weights.experimental.group_library import GroupMember
from rstar2_train.weights.experimental.nccl import CUDA_NAMES, ROCM_NAMES, Communicator, NcclFailed, NcclLibrary, load

log = logging.getLogger(__name__)

BUFFER_BYTES = 32 * 2**20
"""Bytes on the GPU per group. Rank 0 has one per engine at the same time."""
POLL_SECONDS = 0.0002


class BufferQueue(Protocol):
    """A buffer on a device, and the queue of the operations on it."""

    @property
    def pointer(self) -> int:
        """Address of the buffer."""
        ...

    @property
    def stream(self) -> int:
        """Handle of the queue."""
        ...

    def upload(self, part: Tensor) -> None:
        """Copy bytes from the host to the start of the buffer."""
        ...

    def download(self, part: Tensor) -> None:
        """Copy the start of the buffer to the host, and wait for it."""
        ...

    def is_idle(self) -> bool:
        """Return whether all operations have ended."""
        ...


class GpuQueue:
    """A buffer on a GPU, and a stream of its own."""

    def __init__(self, device: torch.device, size: int) -> None:
        """`size`: of the buffer, in bytes. The device becomes the current one of this thread, as NCCL requires."""
        torch.cuda.set_device(device)
        self._stream = torch.cuda.Stream(device)
        with torch.cuda.stream(self._stream):
            self._buffer = torch.empty(size, dtype=torch.uint8, device=device)

    @property
    def pointer(self) -> int:
        """Address of the buffer."""
        return self._buffer.data_ptr()

    @property
    def stream(self) -> int:
        """Handle of the stream."""
        return int(self._stream.cuda_stream)

    def upload(self, part: Tensor) -> None:
        """Copy bytes from the host to the start of the buffer."""
        with torch.cuda.stream(self._stream):
            self._buffer[: part.numel()].copy_(part)

    def download(self, part: Tensor) -> None:
        """Copy the start of the buffer to the host, and wait for it."""
        with torch.cuda.stream(self._stream):
            part.copy_(self._buffer[: part.numel()])

    def is_idle(self) -> bool:
        """Return whether all operations have ended."""
        return bool(self._stream.query())


class NcclGroup:
    """The group, seen from one member."""

    def __init__(
        self, library: NcclLibrary, unique_id: bytes, queue: BufferQueue, *, rank: int, members: int, seconds: float
    ) -> None:
        """Join the group; wait for the others.

        Args:
            library: of this member.
            unique_id: of the group, from rank 0.
            queue: of this member's device, with a buffer of BUFFER_BYTES.
            rank: 0 for the trainer.
            members: 1 + the workers of the engine.
            seconds: deadline of the join, and of each block of a broadcast.

        Raises:
            RuntimeError: if a member is missing at the deadline, or the library fails.
        """
        self._rank, self._seconds, self._queue = rank, seconds, queue
        self._communicator: Communicator | None = Communicator(library, unique_id, rank=rank, members=members)
        self._wait(self._communicator.is_ready, deadline=time.monotonic() + seconds)

    def broadcast(self, block: Tensor) -> None:
        """Send (rank 0) or receive a flat CPU tensor of bytes. Raises RuntimeError after the deadline or a failure."""
        deadline = time.monotonic() + self._seconds
        for part in block.split(BUFFER_BYTES):
            self._broadcast(part, deadline)

    def _broadcast(self, part: Tensor, deadline: float) -> None:
        communicator, queue = self._communicator, self._queue
        if communicator is None:
            raise NcclFailed("the group is closed")
        if self._rank == 0:
            queue.upload(part)
        try:
            communicator.broadcast(queue.pointer, part.numel(), stream=queue.stream)
        except NcclFailed:
            self.abort()
            raise
        self._wait(lambda: communicator.is_ready() and queue.is_idle(), deadline=deadline)
        if self._rank:
            queue.download(part)

    def close(self) -> None:
        """Leave the group when the last bytes are sent. A failure is only logged: the receiver verifies its bytes."""
        communicator = self._communicator
        if communicator is None:
            return
        try:
            communicator.finalize()
            self._wait(communicator.is_ready, deadline=time.monotonic() + self._seconds)
            self._communicator = None
            communicator.destroy()
        except RuntimeError as error:
            log.warning("the end of a transfer over NCCL or RCCL failed: %s", error)
            self.abort()

    def _wait(self, is_done: Callable[[], bool], *, deadline: float) -> None:
        """Wait until `is_done`. Aborts the communicator and raises RuntimeError at the deadline or after a failure."""
        try:
            while not is_done():
                if time.monotonic() > deadline:
                    raise NcclFailed(f"a member of the group did not answer within {self._seconds:g} s")
                time.sleep(POLL_SECONDS)
        except RuntimeError:
            self.abort()
            raise

    def abort(self) -> None:
        """Leave the group immediately; end the operations in progress, also on the device."""
        communicator, self._communicator = self._communicator, None
        if communicator is not None:
            with contextlib.suppress(NcclFailed):  # the failure before it is the one to report
                communicator.abort()


def find_library(device: torch.device | None) -> tuple[NcclLibrary | None, GroupMember]:
    """Return the library of a member and its description; None with the reason if the member must use gloo.

    Args:
        device: of the member; None or a CPU without a GPU.
    """
    if device is None or device.type != "cuda":
        return None, GroupMember("", "", "it has no GPU")
    is_rocm = torch.version.hip is not None
    try:
        library = load(ROCM_NAMES if is_rocm else CUDA_NAMES, name="RCCL" if is_rocm else "NCCL")
    except NcclFailed as error:
        return None, GroupMember("", "", str(error))
    gpu = torch.cuda.get_device_properties(device)
    place = (getattr(gpu, name, "") for name in ("uuid", "pci_domain_id", "pci_bus_id", "pci_device_id"))
    return library, GroupMember(library.name, " ".join(map(str, place)))
