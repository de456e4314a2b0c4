"""Rank 0 sends a weight version to engines over a group per engine, each in a thread of its own.

The weights are staged: gathered into CPU memory in the stored dtype, so that the trainer may train on while they travel
and a slow engine never gets a mix of two versions. The orchestrator asks for a transfer on a channel of its own, which
an update does not block.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rstar2_train.trainer.shard_writer import signed_bits, tensor_bit_sum
from rstar2_train.weights import offer_channel
from rstar2_train.weights.offer_channel import ChannelAddress
from rstar2_train.weights.tensor_group import TensorGroup, listen, server_store
from rstar2_train.weights.transfer import TensorInfo

log = logging.getLogger(__name__)


@dataclass(slots=True)
class CollectiveSender:
    """The staged version, and the transfers in progress."""

    host: str
    """Address of this machine for the engines."""
    tensors: dict[str, Tensor] = field(default_factory=dict)
    """Whole tensors on CPU, by name."""
    version_id: str = ""
    """Id of their version."""

    def serve(self) -> ChannelAddress:
        """Answer requests for transfers in a thread; return the address."""
        return offer_channel.serve(self.host, self._answer)

    def _answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """Answer a request of the orchestrator."""
        if "release" in message:
            self.release(message["release"])
            return {}
        return {"port": self.offer(message["workers"], message["seconds"])}

    def stage(self, tensors: dict[str, Tensor], version_id: str) -> list[TensorInfo]:
        """Keep a version, and return its tensors for the engines."""
        self.tensors, self.version_id = tensors, version_id
        infos = []
        for name, tensor in tensors.items():
            dtype = str(tensor.dtype).removeprefix("torch.")
            infos.append(TensorInfo(name, list(tensor.shape), dtype, tensor_bit_sum(signed_bits(tensor))))
        return infos

    def release(self, version_id: str) -> None:
        """Drop a version, unless a later one is staged; a transfer in progress keeps its own reference."""
        if version_id == self.version_id:
            self.tensors = {}

    def offer(self, workers: int, seconds: float) -> int:
        """Start a transfer of the staged version to an engine with `workers` workers; return the port to join at."""
        listener = listen(self.host)
        port = int(listener.getsockname()[1])
        tensors = list(self.tensors.values())

        def send() -> None:
            try:
                store = server_store(listener, members=1 + workers, seconds=seconds)
                group = TensorGroup(store, rank=0, members=1 + workers, address=self.host, seconds=seconds)
                group.broadcast(tensor.flatten().view(torch.uint8) for tensor in tensors)
            except RuntimeError as error:
                log.warning("the transfer at port %d failed: %s", port, error)

        threading.Thread(target=send, name=f"weights-{port}", daemon=True).start()
        return port
