"""Faults of a group over NCCL, with a C library that stands in for it: real ones need two GPUs.

Shown here: the agreement, the blocks, the deadlines and the calls of the library. Not shown: NCCL on a GPU.
"""

from __future__ import annotations

import ctypes
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rstar2_train.weights.experimental import nccl_group, tensor_group
from rstar2_train.weights.experimental.group_library import GroupMember
from rstar2_train.weights.experimental.nccl import NcclLibrary
from rstar2_train.weights.experimental.tensor_group import TensorGroup, client_store, listen, server_store

HOST = "127.0.0.1"
SOURCE = Path(__file__).parents[2] / "support" / "fake_nccl.cpp"
CONTENT = torch.arange(250, dtype=torch.uint8)
GPU = torch.device("cuda", 0)


class HostQueue:
    """A queue on host memory, whose operations the fake library ends."""

    library: ctypes.CDLL
    streams: dict[int, int]
    """Number of the stream by thread."""

    def __init__(self, device: torch.device, size: int) -> None:
        self.buffer = torch.zeros(size, dtype=torch.uint8)
        self.stream = self.streams[threading.get_ident()]
        self.pointer = self.buffer.data_ptr()

    def upload(self, part: torch.Tensor) -> None:
        self.buffer[: part.numel()].copy_(part)

    def download(self, part: torch.Tensor) -> None:
        part.copy_(self.buffer[: part.numel()])

    def is_idle(self) -> bool:
        return bool(self.library.fake_idle(self.stream))


class HungClock:
    """The clock of the members, whose deadlines pass as soon as both hang, and not before."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library, self._all_hang, self._ahead = library, False, threading.local()

    def monotonic(self) -> float:
        return float(getattr(self._ahead, "seconds", 0.0))

    def sleep(self, seconds: float) -> None:
        """Wait, as a member that has set its deadline does."""
        self._all_hang = self._all_hang or self._library.fake_hung() == 2
        self._ahead.seconds = 1000.0 if self._all_hang else 0.0
        time.sleep(seconds)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provide the compiled library."""
    target = tmp_path_factory.mktemp("nccl") / "libfake.so"
    subprocess.run(["g++", "-std=c++17", "-shared", "-fPIC", "-o", target, SOURCE], check=True)
    return target


@pytest.fixture
def fake(built: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ctypes.CDLL]:
    """Provide the library, which every member finds; blocks are of 100 bytes in parts of 40."""
    library = ctypes.CDLL(str(built))
    library.fake_reset(2, -1, -1)
    numbers = iter(range(100))

    def find_library(device: torch.device | None) -> tuple[NcclLibrary, GroupMember]:
        return NcclLibrary(library, name="NCCL"), GroupMember("NCCL 2.29.7", f"GPU-{next(numbers)}")

    monkeypatch.setattr(tensor_group, "find_library", find_library)
    monkeypatch.setattr(tensor_group, "GpuQueue", HostQueue)
    monkeypatch.setattr(tensor_group, "BLOCK_BYTES", 100)
    monkeypatch.setattr(nccl_group, "BUFFER_BYTES", 40)
    monkeypatch.setattr(nccl_group, "time", HungClock(library))
    monkeypatch.setattr(HostQueue, "library", library, raising=False)
    monkeypatch.setattr(HostQueue, "streams", {}, raising=False)
    yield library


def transfer(*, seconds: float) -> tuple[bytes, dict[int, str]]:
    """Send CONTENT from the trainer to one worker; return its bytes, and the error of each member that failed."""
    listener = listen(HOST)
    port = listener.getsockname()[1]
    received = torch.zeros(250, dtype=torch.uint8)
    errors: dict[int, str] = {}

    def member(rank: int) -> None:
        HostQueue.streams[threading.get_ident()] = 1 + rank
        try:
            if rank:
                store = client_store(HOST, port, members=2, seconds=60)
            else:
                store = server_store(listener, members=2, seconds=60)
            with TensorGroup(store, rank=rank, members=2, address=HOST, seconds=seconds, device=GPU) as group:
                assert group.library.name == "NCCL 2.29.7"
                group.broadcast(received if rank else CONTENT.clone())
        except RuntimeError as error:
            errors[rank] = str(error)

    threads = [threading.Thread(target=member, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    return received.numpy().tobytes(), errors


def test_nccl_group_splits_blocks_and_leaves(fake: ctypes.CDLL) -> None:
    """Content of several blocks and parts arrives; both members finalize and destroy their communicator."""
    received, errors = transfer(seconds=60)
    assert errors == {}
    assert received == CONTENT.numpy().tobytes()
    assert (fake.fake_aborts(), fake.fake_destroys()) == (0, 2)


def test_nccl_group_hung_broadcast_ends_at_deadline(fake: ctypes.CDLL) -> None:
    """A broadcast that never ends is aborted in both members, with a RuntimeError; the parts before it arrived."""
    fake.fake_reset(2, 4, -1)  # the second part of the second block
    received, errors = transfer(seconds=60)
    assert errors == dict.fromkeys((0, 1), "a member of the group did not answer within 60 s")
    assert received == CONTENT[:140].numpy().tobytes() + bytes(110)
    assert (fake.fake_aborts(), fake.fake_destroys()) == (2, 0)


def test_nccl_group_absent_member_ends_the_join(fake: ctypes.CDLL) -> None:
    """A join that waits for another member is aborted at the deadline."""
    fake.fake_reset(3, -1, -1)
    _, errors = transfer(seconds=60)
    assert errors == dict.fromkeys((0, 1), "a member of the group did not answer within 60 s")
    assert (fake.fake_aborts(), fake.fake_destroys()) == (2, 0)


def test_nccl_group_reports_failure_before_deadline(fake: ctypes.CDLL) -> None:
    """A failure that the library reports in the background ends the broadcast with the library's text."""
    fake.fake_reset(2, -1, 1)
    _, errors = transfer(seconds=600)
    assert errors[0] == "ncclCommGetAsyncError: remote process exited or there was a network error"
    assert fake.fake_aborts() == 2


def test_nccl_group_without_unique_id_uses_gloo(fake: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the library cannot start a group, the members use gloo, and the reason is known on both sides."""
    real = NcclLibrary.call

    def call(self: NcclLibrary, function: str, *arguments: object) -> None:
        if function == "ncclGetUniqueId":
            self.check(2, function)
        real(self, function, *arguments)

    monkeypatch.setattr(NcclLibrary, "call", call)
    listener = listen(HOST)
    port = listener.getsockname()[1]
    libraries: dict[int, tuple[str, str]] = {}
    received = torch.zeros(250, dtype=torch.uint8)

    def member(rank: int) -> None:
        store = (
            client_store(HOST, port, members=2, seconds=60) if rank else server_store(listener, members=2, seconds=60)
        )
        with TensorGroup(store, rank=rank, members=2, address=HOST, seconds=60, device=GPU) as group:
            group.broadcast(received if rank else CONTENT.clone())
            libraries[rank] = (group.library.name, group.library.reason)

    threads = [threading.Thread(target=member, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert libraries[0] == libraries[1]
    assert libraries[0][0] == "gloo"
    assert libraries[0][1].startswith("NCCL 2.29.7 failed: ncclGetUniqueId: ")
    assert received.equal(CONTENT)
