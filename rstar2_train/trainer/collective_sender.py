"""Rank 0 sends the files of a weight version to engines over a group per engine, each in a thread of its own.

The orchestrator asks for each transfer on a channel of its own, which an update does not block. Rank 0 reads the files
once, for the first engine, and keeps them in CPU memory until all engines have them.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rstar2_train.weights import version_store
from rstar2_train.weights.experimental import offer_channel
from rstar2_train.weights.experimental.offer_channel import ChannelAddress
from rstar2_train.weights.experimental.tensor_group import TensorGroup, listen, server_store
from rstar2_train.weights.shard_file import ShardFileInvalid

log = logging.getLogger(__name__)


@dataclass(slots=True)
class CollectiveSender:
    """The version in memory, and the transfers in progress."""

    host: str
    """Address of this machine for the engines."""
    device: torch.device | None = None
    """GPU of rank 0, for NCCL or RCCL; None or a CPU: gloo."""
    folder: Path | None = None
    """Folder of the version in memory."""
    files: list[Tensor] = field(default_factory=list)
    """Bytes of its files, in the order of the manifest."""
    libraries: set[str] = field(default_factory=set)
    """Libraries of the transfers since the last release, with the reasons."""

    def serve(self) -> ChannelAddress:
        """Answer requests for transfers in a thread; return the address."""
        return offer_channel.serve(self.host, self._answer)

    def _answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """Answer a request of the orchestrator."""
        if "release" in message:
            self.release(Path(message["release"]))
            libraries, self.libraries = self.libraries, set()
            return {"libraries": sorted(libraries)}
        try:
            return {"port": self.offer(Path(message["folder"]), message["workers"], message["seconds"])}
        except (ShardFileInvalid, OSError) as error:
            return {"error": str(error)}

    def release(self, folder: Path) -> None:
        """Drop a version, unless another one is in memory; a transfer in progress keeps its own reference."""
        if folder == self.folder:
            self.folder, self.files = None, []

    def offer(self, folder: Path, workers: int, seconds: float) -> int:
        """Start a transfer of a version to an engine with `workers` workers; return the port to join at.

        Raises:
            ShardFileInvalid: if the manifest is missing or damaged. The engine verifies the files.
            OSError: if a file cannot be read.
        """
        if folder != self.folder:
            manifest = version_store.read_manifest(folder)
            files = [torch.from_numpy(np.fromfile(folder / file.name, np.uint8)) for file in manifest.files]
            self.folder, self.files = folder, files
        listener = listen(self.host)
        port = int(listener.getsockname()[1])
        files = self.files

        def send() -> None:
            try:
                store = server_store(listener, members=1 + workers, seconds=seconds)
                group = TensorGroup(
                    store, rank=0, members=1 + workers, address=self.host, seconds=seconds, device=self.device
                )
                self.libraries.add(f"{group.library.name}: {group.library.reason}")
                with group:
                    for file in files:
                        group.broadcast(file)
            except RuntimeError as error:
                log.warning("the transfer at port %d failed: %s", port, error)

        threading.Thread(target=send, name=f"weights-{port}", daemon=True).start()
        return port
