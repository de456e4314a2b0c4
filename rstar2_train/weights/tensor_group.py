"""One gloo group between trainer rank 0 and the workers of one engine, for one weight version.

A group per engine and version: a hung or dead engine costs its own group only, and a restarted one needs no repair.
Every phase has the same deadline. Both sides broadcast from rank 0, the trainer.
"""

from __future__ import annotations

import datetime
import socket
from typing import Any

from torch import Tensor
from torch.distributed import ProcessGroupGloo, TCPStore

BLOCK_BYTES = 256 * 2**20
"""Bytes of one broadcast, which has the deadline: a snapshot takes longer."""


class TensorGroup:
    """The group, seen from one member."""

    def __init__(self, store: TCPStore, *, rank: int, members: int, address: str, seconds: float) -> None:
        """Join the group; wait for the others.

        Args:
            store: the rendezvous.
            rank: 0 for the trainer.
            members: 1 + the workers of the engine.
            address: of this member's interface, to which the others connect.
            seconds: deadline of the join, and of each block of a broadcast.

        Raises:
            RuntimeError: if a member is missing at the deadline.
        """
        gloo: Any = ProcessGroupGloo  # its type stub lacks options and collectives
        options = gloo._Options()
        options._timeout = datetime.timedelta(seconds=seconds)
        options._devices = [gloo.create_device(hostname=address)]
        self._store = store
        self._group = gloo(store, rank, members, options)

    def broadcast(self, content: Tensor) -> None:
        """Send (rank 0) or receive a flat CPU tensor of bytes. Raises RuntimeError after the deadline of a block."""
        for block in content.split(BLOCK_BYTES):
            self._group.broadcast(block, 0).wait()


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
