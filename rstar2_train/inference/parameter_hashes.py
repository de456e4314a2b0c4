"""Hashes of an engine's parameters and of a model folder, to prove that an engine has the trainer's weights bit by bit.

On CPU vLLM packs the weights of linear layers and removes the originals, so these are hashed when they are packed. An
engine does so only if RSTAR2_HASH_WEIGHTS is set in its environment: hashing needs about a second per GB. Tensor
parallelism splits the parameters, so the hashes are comparable only without it.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
from collections.abc import Iterable
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

ENABLED = "RSTAR2_HASH_WEIGHTS"
FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "w13_weight": ("w1", "w3"),
}
"""Parts of vLLM's fused layers, in order, by their names in a model folder. Mixtral's experts have w1, w3 and w2."""
EXPERTS = {
    "w13_weight": ("gate_up_proj", "w13_weight"),
    "w2_weight": ("down_proj", "w2"),
}
"""vLLM's parameters of all experts, and the layers of each expert, with fused ones."""
_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(\w+)")
RENAMED = {
    "block_sparse_moe.input_linear": "block_sparse_moe.experts.w13_weight",
    "block_sparse_moe.output_linear": "block_sparse_moe.experts.w2_weight",
    "block_sparse_moe.router.layer": "block_sparse_moe.gate",
}
"""Names of vLLM's parameters by their names in a model folder, where it has one tensor with other names (Granite)."""
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


def folder_hashes(folder: Path) -> dict[str, str]:
    """Return the hashes that an engine with the weights of a model folder must have, by parameter."""
    parts: dict[str, list[Tensor]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a mapping
                parts[_vllm_name(name.removesuffix(".weight"))] = [tensors.get_tensor(name)]
    for (fused, names), kind in itertools.product(FUSED.items(), ("", ".bias")):
        for first in [name for name in parts if name.endswith(f".{names[0]}{kind}")]:
            prefix = first.removesuffix(names[0] + kind)
            parts[prefix + fused + kind] = [parts.pop(prefix + name + kind)[0] for name in names]
    return {name: tensor_hash(tensors) for name, tensors in (parts | _grouped_experts(parts)).items()}


def _vllm_name(name: str) -> str:
    """Return vLLM's name of a tensor that it renames as a whole; of others the name itself."""
    for suffix, renamed in RENAMED.items():
        if name.endswith(suffix):
            return name.removesuffix(suffix) + renamed
    return name


def _grouped_experts(parts: dict[str, list[Tensor]]) -> dict[str, list[Tensor]]:
    """Take the experts out of the tensors of a folder, and return them as vLLM's parameters of all experts."""
    experts: dict[str, dict[int, list[Tensor]]] = {}
    for name in list(parts):
        if match := _EXPERT.fullmatch(name):
            kind = next(kind for kind, layers in EXPERTS.items() if match[3] in layers)
            experts.setdefault(f"{match[1]}.{kind}", {})[int(match[2])] = parts.pop(name)
    return {
        name: [tensor for number in sorted(numbers) for tensor in numbers[number]] for name, numbers in experts.items()
    }


def tensor_hash(tensors: Iterable[Tensor]) -> str:
    """Return the SHA-256 of the bytes of tensors that are joined at the first dimension."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().contiguous().cpu().view(torch.uint8).numpy().data)
    return digest.hexdigest()
