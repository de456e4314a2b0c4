"""The trainer's end of a collective transfer: equal bits in every dtype, a copy of its own, and a deadline."""

import threading
import time
from dataclasses import replace
from multiprocessing import AuthenticationError

import pytest
import torch

from rstar2_train.trainer.collective_sender import CollectiveSender
from rstar2_train.weights import offer_channel
from rstar2_train.weights.tensor_group import TensorGroup, client_store

HOST = "127.0.0.1"


def receive(port: int, tensors: dict[str, torch.Tensor], *, rank: int = 1, members: int = 2) -> None:
    """Fill the tensors as a worker of an engine does."""
    store = client_store(HOST, port, members=members, seconds=20)
    group = TensorGroup(store, rank=rank, members=members, address=HOST, seconds=20)
    group.broadcast(tensor.view(torch.uint8) for tensor in tensors.values())


def test_sender_two_workers_receive_equal_bits() -> None:
    """16-bit and 32-bit tensors arrive bit for bit in both workers of an engine; a later release changes nothing."""
    sender = CollectiveSender(HOST)
    staged = {"a": torch.randn(7, 33).bfloat16(), "b": torch.randn(5), "c": torch.randn(4, 2).half()}
    infos = sender.stage(staged, "id")
    assert [(info.name, info.dtype) for info in infos] == [("a", "bfloat16"), ("b", "float32"), ("c", "float16")]
    port = sender.offer(2, 20)
    sender.release("id")
    received = [{name: torch.empty_like(tensor).flatten() for name, tensor in staged.items()} for _ in range(2)]
    workers = [
        threading.Thread(target=receive, args=(port, tensors), kwargs={"rank": rank, "members": 3})
        for rank, tensors in enumerate(received, start=1)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
    for tensors in received:
        for name, tensor in staged.items():
            assert torch.equal(tensors[name], tensor.flatten())


def test_sender_absent_engine_costs_only_its_own_transfer(caplog: pytest.LogCaptureFixture) -> None:
    """An engine that never joins ends its transfer at the deadline; the transfer to another engine is not delayed."""
    sender = CollectiveSender(HOST)
    staged = {"a": torch.randn(100)}
    sender.stage(staged, "id")
    absent = sender.offer(1, 1)
    port = sender.offer(1, 20)
    received = {"a": torch.empty(100)}
    receive(port, received)
    assert torch.equal(received["a"], staged["a"])
    deadline = time.monotonic() + 20
    while f"the transfer at port {absent} failed" not in caplog.text and time.monotonic() < deadline:
        time.sleep(0.1)
    assert f"the transfer at port {absent} failed" in caplog.text


def test_sender_answers_only_requests_with_the_key() -> None:
    """A transfer is offered on request; another key gets no reply, and a release of an older version drops nothing."""
    sender = CollectiveSender(HOST)
    address = sender.serve()
    staged = {"a": torch.randn(10)}
    sender.stage(staged, "new")
    with pytest.raises(AuthenticationError):
        offer_channel.request(replace(address, key=b"other"), {"workers": 1, "seconds": 20})
    offer_channel.request(address, {"release": "old"})
    port = offer_channel.request(address, {"workers": 1, "seconds": 20})["port"]
    received = {"a": torch.empty(10)}
    receive(port, received)
    assert torch.equal(received["a"], staged["a"])
    offer_channel.request(address, {"release": "new"})
    assert sender.tensors == {}
