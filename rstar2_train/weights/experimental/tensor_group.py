"""One group between trainer rank 0 and the workers of one engine, for one weight version: NCCL, RCCL or gloo.

A group per engine and version: a hung or dead engine costs its own group only, and a restarted one needs no repair.
Every phase has the same deadline. Both sides broadcast from rank 0, the trainer. The members agree on the library: each
writes its own into the trainer's store, and the trainer writes the choice.
"""

from __future__ import annotations

import datetime
import socket
from typing import Any, Protocol, Self

import torch
from torch import Tensor
from torch.distributed import ProcessGroupGloo, TCPStore

from rstar2_train.weights.experimental.group_library import GLOO, GroupLibrary, GroupMember, choose_library
from rstar2_train.weights.experimental.nccl import NcclFailed, NcclLibrary
from rstar2_train.weights.experimental.nccl_group import BUFFER_BYTES, GpuQueue, NcclGroup, find_library

BLOCK_BYTES = 256 * 2**20
"""Bytes of one broadcast, which has the deadline: a snapshot takes longer."""


class _Group(Protocol):
    def broadcast(self, block: Tensor) -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...


class TensorGroup:
    """The group, seen from one member. As a context manager it ends with `close`, or with `abort` after an error."""

    def __init__(
        self, store: TCPStore, *, rank: int, members: int, address: str, seconds: float, device: torch.device | None
    ) -> None:
        """Join the group; wait for the others.

        Args:
            store: the rendezvous.
            rank: 0 for the trainer.
            members: 1 + the workers of the engine.
            address: of this member's interface, to which the others connect with gloo.
            seconds: deadline of the agreement, of the join, and of each block of a broadcast.
            device: this member's GPU for NCCL or RCCL; None or a CPU for gloo.

        Raises:
            RuntimeError: if a member is missing at the deadline, or the library fails.
        """
        library, member = find_library(device)
        self.library = _agree(store, member, library, rank=rank, members=members)
        """The library of the group and the reason of the choice."""
        self._store = store
        self._group: _Group
        if library is not None and device is not None and self.library.name != GLOO:
            queue = GpuQueue(device, BUFFER_BYTES)
            unique_id = bytes.fromhex(self.library.unique_id)
            self._group = NcclGroup(library, unique_id, queue, rank=rank, members=members, seconds=seconds)
        else:
            self._group = _GlooGroup(store, rank=rank, members=members, address=address, seconds=seconds)

    def broadcast(self, content: Tensor) -> None:
        """Send (rank 0) or receive a flat CPU tensor of bytes. Raises RuntimeError after the deadline of a block."""
        for block in content.split(BLOCK_BYTES):
            self._group.broadcast(block)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._group.close() if kind is None else self._group.abort()

    def abort(self) -> None:
        """Leave the group without the bytes in flight."""
        self._group.abort()


class _GlooGroup:
    """The group over gloo (TCP)."""

    def __init__(self, store: TCPStore, *, rank: int, members: int, address: str, seconds: float) -> None:
        gloo: Any = ProcessGroupGloo  # its type stub lacks options and collectives
        options = gloo._Options()
        options._timeout = datetime.timedelta(seconds=seconds)
        options._devices = [gloo.create_device(hostname=address)]
        self._group = gloo(store, rank, members, options)

    def broadcast(self, block: Tensor) -> None:
        self._group.broadcast(block, 0).wait()

    def close(self) -> None:
        """Do nothing: gloo closes its connections with the object."""

    def abort(self) -> None:
        """Do nothing, as `close`."""


def _agree(
    store: TCPStore, member: GroupMember, library: NcclLibrary | None, *, rank: int, members: int
) -> GroupLibrary:
    """Return the library that the trainer chose. Raises RuntimeError if a member is missing at the store's deadline."""
    if rank:
        store.set(f"member/{rank}", member.to_json())
        return GroupLibrary.from_json(store.get("library").decode())
    others = [GroupMember.from_json(store.get(f"member/{number}").decode()) for number in range(1, members)]
    chosen = choose_library([member, *others])
    if library is not None and chosen.name != GLOO:
        try:
            chosen = GroupLibrary(chosen.name, chosen.reason, library.unique_id().hex())
        except NcclFailed as error:
            chosen = GroupLibrary(GLOO, f"{chosen.name} failed: {error}")
    store.set("library", chosen.to_json())
    return chosen


def listen(address: str) -> socket.socket:
    """Return a listening socket of the trainer, on a free port."""
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    listener.bind((address, 0))
    listener.listen()
    return listener


def server_store(listener: socket.socket, *, members: int, seconds: float) -> TCPStore:
    """Return the trainer's store on a listening socket, without a wait for the others."""
    address, port = listener.getsockname()[:2]
    return TCPStore(
        address,
        port,
        members,
        is_master=True,
        timeout=datetime.timedelta(seconds=seconds),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )


def client_store(address: str, port: int, *, members: int, seconds: float) -> TCPStore:
    """Return a worker's connection to the trainer's store. Raises RuntimeError after the deadline."""
    timeout = datetime.timedelta(seconds=seconds)
    return TCPStore(address, port, members, is_master=False, timeout=timeout, wait_for_workers=False)


def own_address(peer: str) -> str:
    """Return the address of the interface from which this machine reaches `peer`."""
    family = socket.AF_INET6 if ":" in peer else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((peer, 9))
        return str(probe.getsockname()[0])
