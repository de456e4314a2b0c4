"""The trainer's end of a collective transfer: equal bytes, a copy of its own, and a deadline."""

import threading
import time
from dataclasses import replace
from multiprocessing import AuthenticationError
from pathlib import Path

import pytest
import torch

from rstar2_train.trainer.collective_sender import CollectiveSender
from rstar2_train.weights import version_store
from rstar2_train.weights.experimental import offer_channel
from rstar2_train.weights.experimental.tensor_group import TensorGroup, client_store
from rstar2_train.weights.shard_file import FileSummary
from rstar2_train.weights.version_store import VersionManifest

HOST = "127.0.0.1"


def version(folder: Path, *contents: bytes) -> Path:
    """Write a version whose files have these bytes."""
    folder.mkdir()
    files = []
    for number, content in enumerate(contents):
        (folder / f"rank-{number}").write_bytes(content)
        files.append(FileSummary(f"rank-{number}", len(content), "", 0))
    version_store.write_manifest(folder, VersionManifest("id", "v", None, files))
    return folder


def receive(port: int, *sizes: int, rank: int = 1, members: int = 2) -> list[bytes]:
    """Return the files as a worker of an engine receives them."""
    store = client_store(HOST, port, members=members, seconds=20)
    group = TensorGroup(store, rank=rank, members=members, address=HOST, seconds=20, device=None)
    files = [torch.empty(size, dtype=torch.uint8) for size in sizes]
    for file in files:
        group.broadcast(file)
    return [file.numpy().tobytes() for file in files]


def test_sender_two_workers_receive_equal_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of several blocks arrive in both workers of an engine; a later release changes nothing."""
    monkeypatch.setattr("rstar2_train.weights.experimental.tensor_group.BLOCK_BYTES", 1000)
    contents = (bytes(range(256)) * 9, b"abc")
    folder = version(tmp_path / "v", *contents)
    sender = CollectiveSender(HOST)
    port = sender.offer(folder, 2, 20)
    sender.release(folder)
    received: dict[int, list[bytes]] = {}

    def worker(rank: int) -> None:
        received[rank] = receive(port, *map(len, contents), rank=rank, members=3)

    workers = [threading.Thread(target=worker, args=(rank,)) for rank in (1, 2)]
    for thread in workers:
        thread.start()
    for thread in workers:
        thread.join(300)
    assert received == {1: [*contents], 2: [*contents]}


def test_sender_absent_engine_costs_only_its_own_transfer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An engine that never joins ends its transfer at the deadline; the transfer to another engine is not delayed."""
    folder = version(tmp_path / "v", b"content")
    sender = CollectiveSender(HOST)
    absent = sender.offer(folder, 1, 1)
    port = sender.offer(folder, 1, 20)
    assert receive(port, 7) == [b"content"]
    deadline = time.monotonic() + 60
    while f"the transfer at port {absent} failed" not in caplog.text and time.monotonic() < deadline:
        time.sleep(0.1)
    assert f"the transfer at port {absent} failed" in caplog.text


def test_sender_answers_only_requests_with_the_key(tmp_path: Path) -> None:
    """A transfer is offered on request; another key gets no reply, and a release of another version drops nothing."""
    folder = version(tmp_path / "v", b"content")
    sender = CollectiveSender(HOST)
    address = sender.serve()
    message = {"folder": str(folder), "workers": 1, "seconds": 20}
    with pytest.raises(AuthenticationError):
        offer_channel.request(replace(address, key=b"other"), message)
    port = offer_channel.request(address, message)["port"]
    offer_channel.request(address, {"release": str(tmp_path / "other")})
    assert sender.folder == folder
    assert receive(port, 7) == [b"content"]
    reason = "gloo: the trainer cannot use NCCL or RCCL: it has no GPU"
    assert offer_channel.request(address, {"release": str(folder)}) == {"libraries": [reason]}
    assert sender.files == []
    assert offer_channel.request(address, {"release": str(folder)}) == {"libraries": []}
    reply = offer_channel.request(address, message | {"folder": str(tmp_path / "other")})
    assert "manifest.json is missing" in reply["error"]
