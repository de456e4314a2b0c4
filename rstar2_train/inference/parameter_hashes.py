"""Hashes of an engine's parameters, which prove that an engine has the trainer's weights bit by bit.

On CPU vLLM packs the weights of linear layers and removes the originals, so these are hashed when they are packed. An
engine does so only if RSTAR2_HASH_WEIGHTS is set in its environment: hashing needs about a second per GB. Tensor
parallelism splits the parameters, so the hashes are comparable only without it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

ENABLED = "RSTAR2_HASH_WEIGHTS"
EXPERTS = ("w13_weight", "w2_weight")
"""vLLM's parameters of all experts of a layer."""
_packed: dict[str, str] = {}
"""Hash of each packed layer, by its name."""


def install() -> None:
    """Hash the weights of linear layers at each load, if the environment asks for it."""
    if not os.environ.get(ENABLED):
        return
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod

    pack_experts = UnquantizedFusedMoEMethod.process_weights_after_loading

    @wraps(pack_experts)
    def hash_and_pack_experts(self: Any, layer: Any) -> Any:
        for name in EXPERTS:
            weight = getattr(layer, name)
            if not weight.is_meta:
                _packed[f"{layer.layer_name}.{name}"] = tensor_hash([weight])
        return pack_experts(self, layer)

    UnquantizedFusedMoEMethod.process_weights_after_loading = hash_and_pack_experts
    pack = UnquantizedLinearMethod.process_weights_after_loading

    @wraps(pack)
    def hash_and_pack(self: Any, layer: Any) -> Any:
        if not layer.weight.is_meta:
            _packed[layer.prefix] = tensor_hash([layer.weight])
        return pack(self, layer)

    UnquantizedLinearMethod.process_weights_after_loading = hash_and_pack


def engine_hashes(model: torch.nn.Module) -> dict[str, str]:
    """Return the hash of each parameter of a vLLM model, by its name without `.weight` and without parts of vLLM."""
    hashes = {name: tensor_hash([parameter]) for name, parameter in model.named_parameters() if parameter.numel()}
    return {_plain_name(name): value for name, value in hashes.items()} | _packed


def _plain_name(name: str) -> str:
    """Return the name of a parameter of vLLM without the parts that its experts and its layers for adapters add."""
    return name.removesuffix(".weight").replace(".routed_experts.", ".").replace(".base_layer", "")


def clear() -> None:
    """Clear the hashes of packed layers, so that only layers that are loaded from now on have one."""
    _packed.clear()


def tensor_hash(tensors: Iterable[Tensor]) -> str:
    """Return the SHA-256 of the bytes of tensors that are joined at the first dimension."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().contiguous().cpu().view(torch.uint8).numpy().data)
    return digest.hexdigest()
