"""The project's backend of vLLM's weight-transfer API: receives a version over gloo into the worker's host copy.

vLLM's routes drive it: `/init_weight_transfer_engine` joins the group, `/update_weights` receives and verifies, and
`/finish_weight_update` loads the host copy into the model. A transfer that breaks off leaves the model untouched. The
host copy is the one of the deltas, so that a later delta continues from the received version. Imported only inside
vLLM, which finds the backend by its name.
"""

from __future__ import annotations

from dataclasses import dataclass
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
from rstar2_train.weights.shard_file import bit_sum
from rstar2_train.weights.tensor_group import TensorGroup, client_store, own_address
from rstar2_train.weights.transfer import BACKEND, TensorInfo


@dataclass
class JoinInfo(WeightTransferInitInfo):
    """Where the trainer waits; the fields of `transfer.Offer`."""

    host: str
    port: int
    workers: int
    seconds: float


@dataclass
class ReceiveInfo(WeightTransferUpdateInfo):
    """The version and its tensors, in the order of the broadcasts."""

    version_id: str
    tensors: list[dict[str, Any]]


class HostCopyTransfer(WeightTransferEngine[JoinInfo, ReceiveInfo]):
    """Receives into the host copy, then loads all tensors from it."""

    init_info_cls = JoinInfo
    update_info_cls = ReceiveInfo
    supports_draft_weight_update = False
    _group: TensorGroup | None = None

    def init_transfer_engine(self, init_info: JoinInfo) -> None:
        """Join the group of this engine and this version."""
        members = 1 + init_info.workers
        store = client_store(init_info.host, init_info.port, members=members, seconds=init_info.seconds)
        parallel = self.parallel_config
        rank = 1 + parallel.data_parallel_index * parallel.world_size + parallel.rank
        self._group = TensorGroup(
            store, rank=rank, members=members, address=own_address(init_info.host), seconds=init_info.seconds
        )

    def start_weight_update(self) -> None:
        """Do nothing: the model stays as it is until all tensors are verified."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Receive a version; no device has work to wait for."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: ReceiveInfo) -> None:
        """Receive all tensors into the host copy. Raises ValueError for a checksum that differs."""
        group, copy = self._group, host_copy()
        if group is None:
            raise ValueError("the worker has not joined a transfer")
        self._group = None
        if is_reading():
            raise ValueError("the worker still reads an earlier version from files")
        copy.clear()
        infos = [TensorInfo(**tensor) for tensor in update_info.tensors]
        arrays = [copy.allocate(info.name, info.shape, info.dtype) for info in infos]
        copy.keep_only({info.name for info in infos})
        group.broadcast(torch.from_numpy(array.view(np.uint8)) for array in arrays)
        for info, array in zip(infos, arrays, strict=True):
            if bit_sum(array) != info.checksum:
                raise ValueError(f"{info.name} differs from the trainer's tensor")
        copy.id = update_info.version_id

    def finish_weight_update(self) -> None:
        """Load all tensors of the host copy into the model."""
        reload_weights(self.vllm_config, self.model, host_tensors(host_copy()), None, True)
        repack_tied_head(self.model, self.vllm_config)

    def shutdown(self) -> None:
        """Leave the group."""
        self._group = None


if BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(BACKEND, HostCopyTransfer)
