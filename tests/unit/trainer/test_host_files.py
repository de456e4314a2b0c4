"""Files of ranks on hosts without a common disk; test_bucket_pods.py sends them between processes through Ray."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rstar2_train.trainer import host_files
from rstar2_train.trainer.host_files import HostFiles

SHARED = {"config.json": b"{}", "part/model.safetensors": os.urandom(3 * host_files.BLOCK_BYTES // 2), "empty": b""}


class OtherHosts:
    """Hosts whose disks are folders of this machine: their path for `/here/x` is `/host-N/x`."""

    def __init__(self, folder: Path, count: int) -> None:
        self.here = folder / "here"
        self.disks = [folder / f"host-{number}" for number in range(count)]
        self.calls: list[str] = []

    def other_hosts(self) -> list[int]:
        return list(range(len(self.disks)))

    def start_file_call(self, rank: int, function: Callable[..., Any], *args: Any) -> Any:
        self.calls.append(function.__name__)
        path, *rest = args
        assert path.is_relative_to(self.here), "only files of the own disk travel"
        return lambda: function(self.disks[rank] / path.relative_to(self.here), *rest)

    def file_result(self, reference: Any) -> Any:
        return reference()


def write(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def read(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_provide_copies_a_folder_once(tmp_path: Path) -> None:
    """Each other host gets the content, again only after a change; a checkpoint is deleted there after its use."""
    hosts = OtherHosts(tmp_path, 2)
    files, model = HostFiles(hosts, hosts.here), hosts.here / "model"
    write(model, SHARED)
    files.provide(model)
    assert [read(disk / "model") for disk in hosts.disks] == [SHARED, SHARED]
    sent = len(hosts.calls)
    files.provide(model)
    assert len(hosts.calls) == sent
    (model / "part/model.safetensors").write_bytes(b"short")
    with files.provided(model):
        assert [read(disk / "model") for disk in hosts.disks] == [SHARED | {"part/model.safetensors": b"short"}] * 2
    assert not any((disk / "model").exists() for disk in hosts.disks)
    files.provide(model / "config.json")
    assert read(hosts.disks[1] / "model") == {"config.json": b"{}"}


def test_provide_leaves_claims_alone(tmp_path: Path) -> None:
    """A path outside of the own disk is on a claim of all hosts: nothing is sent and, above all, nothing deleted."""
    hosts = OtherHosts(tmp_path, 2)
    write(tmp_path / "claim", SHARED)
    for files in (HostFiles(hosts, hosts.here), HostFiles(hosts, None)):
        files.provide(tmp_path / "claim")
        with files.provided(tmp_path / "claim"):
            pass
    assert not hosts.calls and read(tmp_path / "claim") == SHARED


def test_gathered_brings_the_files_of_all_hosts(tmp_path: Path) -> None:
    """The folder of this host has all files afterwards, and the others none, also after an error of a rank."""
    hosts = OtherHosts(tmp_path, 2)
    files, folder = HostFiles(hosts, hosts.here), hosts.here / ".aside-1"
    folder.mkdir(parents=True)
    with files.gathered(folder):
        write(folder, {"rank-0": b"0"})
        for number, disk in enumerate(hosts.disks):
            write(disk / ".aside-1", {f"host-{number}/{name}": content for name, content in SHARED.items()})
    written = {f"host-{number}/{name}": content for number in (0, 1) for name, content in SHARED.items()}
    assert read(folder) == {"rank-0": b"0"} | written
    with pytest.raises(FileExistsError, match=r"rank-0 was written on two hosts"), files.gathered(folder):
        write(hosts.disks[1] / ".aside-1", {"rank-0": b"1"})
    with pytest.raises(RuntimeError), files.gathered(folder):
        raise RuntimeError
    assert not any((disk / ".aside-1").exists() for disk in hosts.disks)
    assert read(folder)["rank-0"] == b"0"
