"""The hashes that an engine's parameters must have (`parameter_hashes`), from the weights of a model folder."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from pathlib import Path

from safetensors import safe_open
from torch import Tensor

from rstar2_train.inference.parameter_hashes import tensor_hash

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
TURNED = (".mlp.experts.gate_up_proj", ".mlp.experts.down_proj")
"""Names of stacked experts whose rows and columns vLLM exchanges (GPT-OSS)."""
RENAMED = {
    ".mlp.experts.gate_up_proj": ".mlp.experts.w13_weight",
    ".mlp.experts.gate_up_proj_bias": ".mlp.experts.w13_bias",
    ".mlp.experts.down_proj": ".mlp.experts.w2_weight",
    ".mlp.experts.down_proj_bias": ".mlp.experts.w2_bias",
    "block_sparse_moe.input_linear": "block_sparse_moe.experts.w13_weight",
    "block_sparse_moe.output_linear": "block_sparse_moe.experts.w2_weight",
    "block_sparse_moe.router.layer": "block_sparse_moe.gate",
}
"""Names of vLLM's parameters by their names in a model folder, where it has one tensor with other names (Granite,
GPT-OSS)."""


def folder_hashes(folder: Path) -> dict[str, str]:
    """Return the hashes that an engine with the weights of a model folder must have, by parameter."""
    parts: dict[str, list[Tensor]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a mapping
                tensor = tensors.get_tensor(name)
                parts[_vllm_name(name.removesuffix(".weight"))] = [tensor.mT if name.endswith(TURNED) else tensor]
    for (fused, names), kind in itertools.product(FUSED.items(), ("", ".bias")):
        for first in [name for name in parts if name.endswith(f".{names[0]}{kind}")]:
            prefix = first.removesuffix(names[0] + kind)
            parts[prefix + fused + kind] = [parts.pop(prefix + name + kind)[0] for name in names]
    hashes = {name: tensor_hash(tensors) for name, tensors in (parts | _grouped_experts(parts)).items()}
    return {_gpt_oss_name(name): value for name, value in hashes.items()} if _has_sinks(hashes) else hashes


def _has_sinks(names: Iterable[str]) -> bool:
    return any(name.endswith(".sinks") for name in names)


def _gpt_oss_name(name: str) -> str:
    """Return vLLM's name of a parameter of GPT-OSS, which has other parts of the model."""
    return name.replace(".self_attn.", ".attn.").replace(".embed_tokens", ".embedding")


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
