"""A group over NCCL or RCCL on real GPUs: equal bytes, a shared GPU, and a member that hangs."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from rstar2_train.weights.experimental.group_library import GLOO
from rstar2_train.weights.experimental.nccl_group import BUFFER_BYTES, GpuQueue, NcclGroup, find_library
from rstar2_train.weights.experimental.tensor_group import TensorGroup, client_store, listen, server_store

pytestmark = pytest.mark.gpu
HOST = "127.0.0.1"
TWO_GPUS = pytest.mark.skipif("torch.cuda.device_count() < 2", reason="NCCL has one member per GPU: needs two GPUs")


def content() -> torch.Tensor:
    """Return bytes of two and a half buffers."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (BUFFER_BYTES * 5 // 2,), dtype=torch.uint8, generator=generator)


def transfer(gpus: tuple[int, int], *, receives: bool, seconds: float) -> tuple[str, torch.Tensor, dict[int, str]]:
    """Send `content` from rank 0 to rank 1. Return the library, the received bytes and the errors by rank."""
    listener = listen(HOST)
    port = listener.getsockname()[1]
    received = torch.zeros_like(content())
    errors: dict[int, str] = {}
    names: list[str] = []
    sent = threading.Event()

    def member(rank: int) -> None:
        device = torch.device("cuda", gpus[rank])
        try:
            if rank:
                store = client_store(HOST, port, members=2, seconds=seconds)
            else:
                store = server_store(listener, members=2, seconds=seconds)
            with TensorGroup(store, rank=rank, members=2, address=HOST, seconds=seconds, device=device) as group:
                names.append(group.library.name)
                if rank == 0:
                    group.broadcast(content())
                elif receives:
                    group.broadcast(received)
                else:
                    sent.wait(300)
                    raise RuntimeError("did not receive")
        except RuntimeError as error:
            errors[rank] = str(error)
        finally:
            if rank == 0:
                sent.set()

    threads = [threading.Thread(target=member, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(400)
        assert not thread.is_alive()
    assert len(set(names)) == 1
    return names[0], received, errors


def test_nccl_gpu_group_of_one_leaves_content() -> None:
    """The library joins, broadcasts through the buffer and ends on this machine's GPU."""
    device = torch.device("cuda", 0)
    library, member = find_library(device)
    assert library is not None, member.reason
    sent = content()
    queue = GpuQueue(device, BUFFER_BYTES)
    group = NcclGroup(library, library.unique_id(), queue, rank=0, members=1, seconds=120)
    group.broadcast(sent)
    group.close()
    assert sent.equal(content())
    tail = torch.empty(BUFFER_BYTES // 2, dtype=torch.uint8)
    queue.download(tail)
    assert tail.equal(content()[-tail.numel() :])


def test_nccl_gpu_members_on_one_gpu_use_gloo() -> None:
    """Two members on one GPU agree on gloo, and the bytes are equal."""
    name, received, errors = transfer((0, 0), receives=True, seconds=120)
    assert (name, errors) == (GLOO, {})
    assert received.equal(content())


@TWO_GPUS
def test_nccl_gpu_two_gpus_receive_equal_bytes() -> None:
    """The bytes travel over NCCL or RCCL."""
    name, received, errors = transfer((0, 1), receives=True, seconds=120)
    assert (name != GLOO, errors) == (True, {})
    assert received.equal(content())


@TWO_GPUS
def test_nccl_gpu_hung_member_ends_at_deadline() -> None:
    """A member that never receives: the sender's broadcast is aborted at its deadline, and its GPU works afterwards."""
    started = time.monotonic()
    _, _, errors = transfer((0, 1), receives=False, seconds=20)
    assert "did not answer within 20 s" in errors[0]
    assert time.monotonic() - started < 120
    assert torch.ones(8, device="cuda:0").sum().item() == 8
