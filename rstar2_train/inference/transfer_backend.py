"""The project's backend of vLLM's weight-transfer API: receives a version into the worker's host copy.

vLLM's routes drive it: `/init_weight_transfer_engine` joins the group, `/update_weights` receives and verifies, and
`/finish_weight_update` loads the host copy into the model. A transfer that breaks off leaves the model untouched. The
bytes are those of the version's files: a snapshot, or the changes to the version that the host copy holds. Imported
only inside vLLM, which finds the backend by its name.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload.inplace import reload_weights

from rstar2_train.inference.host_weights import host_copy, host_tensors, is_reading, repack_tied_head
from rstar2_train.weights.experimental.tensor_group import TensorGroup, client_store, own_address
from rstar2_train.weights.experimental.transfer import BACKEND
from rstar2_train.weights.shard_file import FileSummary, ShardFile
from rstar2_train.weights.version_store import VersionManifest


@dataclass
class JoinInfo(WeightTransferInitInfo):
    """Where the trainer waits; the fields of `transfer.Offer`."""

    host: str
    port: int
    workers: int
    seconds: float


@dataclass
class ReceiveInfo(WeightTransferUpdateInfo):
    """The manifest of the version; its files are broadcast in their order."""

    manifest: dict[str, Any]


class HostCopyTransfer(WeightTransferEngine[JoinInfo, ReceiveInfo]):
    """Receives into the host copy, then loads all tensors from it."""

    init_info_cls = JoinInfo
    update_info_cls = ReceiveInfo
    supports_draft_weight_update = False
    _group: TensorGroup | None = None

    def init_transfer_engine(self, init_info: JoinInfo) -> None:
        """Join the group of this engine and this version."""
        self.shutdown()
        members = 1 + init_info.workers
        store = client_store(init_info.host, init_info.port, members=members, seconds=init_info.seconds)
        parallel = self.parallel_config
        rank = 1 + parallel.data_parallel_index * parallel.world_size + parallel.rank
        self._group = TensorGroup(
            store,
            rank=rank,
            members=members,
            address=own_address(init_info.host),
            seconds=init_info.seconds,
            device=self.device,
        )

    def start_weight_update(self) -> None:
        """Do nothing: the model stays as it is until all tensors are verified."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Receive a version; no device has work to wait for."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: ReceiveInfo) -> None:
        """Receive a version into the host copy.

        Raises:
            ShardFileInvalid: for a checksum that differs, or for the changes to a version that the copy does not hold.
            RuntimeError: if the group fails.
        """
        group = self._group
        if group is None:
            raise ValueError("the worker has not joined a transfer")
        self._group = None
        if is_reading():
            group.abort()
            raise ValueError("the worker still reads an earlier version from files")
        manifest = VersionManifest.from_json(update_info.manifest)
        # One file at a time, in the order of the broadcasts: the files of a snapshot are large.
        with group:
            host_copy().apply(manifest, [partial(_receive, group, file) for file in manifest.files], threads=1)

    def finish_weight_update(self) -> None:
        """Load all tensors of the host copy into the model."""
        reload_weights(self.vllm_config, self.model, host_tensors(host_copy()), None, True)
        repack_tied_head(self.model, self.vllm_config)

    def shutdown(self) -> None:
        """Leave the group."""
        group, self._group = self._group, None
        if group is not None:
            group.abort()


def _receive(group: TensorGroup, file: FileSummary) -> ShardFile:
    data = np.empty(file.bytes, np.uint8)
    group.broadcast(torch.from_numpy(data))
    return ShardFile(data.data, name=file.name, digest=file.digest)


if BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(BACKEND, HostCopyTransfer)
