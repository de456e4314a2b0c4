"""Low-rank adapters in place of a trained model: layers, initial values, and the product with the base.

Each target layer computes `x W' + alpha / rank * (x A') B'`. W is frozen in the number format of the computation: it
has no gradient, and no state in the optimiser. A and B are float32 parameters like those of a whole model: FSDP shards
them with their layer, and rounds the gathered copies to the number format of the computation. `weights.adapter_folder`
has the files.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn import functional

from rstar2_train.api.lora_layers import LAYER
from rstar2_train.capacity.model_support import UnsupportedModel
from rstar2_train.trainer.adapter_sum import low_rank
from rstar2_train.trainer.sharding import first_row
from rstar2_train.utils.files import file_sha256
from rstar2_train.weights.adapter_folder import AdapterIdentity, base_digest, tensor_name, weight_files

A, B = "lora_A", "lora_B"


class LoRALinear(nn.Module):
    """A frozen linear layer with an adapter. The names of its own parameters stay `weight` and `bias`."""

    def __init__(self, linear: nn.Linear, *, rank: int, scale: float) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        device = linear.weight.device
        self.lora_A = nn.Parameter(torch.empty(rank, linear.in_features, dtype=torch.float32, device=device))
        self.lora_B = nn.Parameter(torch.empty(linear.out_features, rank, dtype=torch.float32, device=device))
        self.scale = scale
        self.is_on = True

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., out] for x [..., in]."""
        frozen = functional.linear(x, self.weight, self.bias)
        if not self.is_on:
            return frozen
        return frozen + functional.linear(functional.linear(x, self.lora_A) * self.scale, self.lora_B)


def add_adapters(model: Any, adapter: AdapterIdentity) -> None:
    """Freeze a model of transformers, and put an adapter into each target layer. Before it is sharded.

    Raises:
        UnsupportedModel: if a layer lacks a target, or has another linear layer: it would silently get no adapter.
    """
    model.requires_grad_(False)
    for number, layer in enumerate(model.base_model.layers):
        linear = {name: module for name, module in layer.named_modules() if isinstance(module, nn.Linear)}
        kinds = sorted(name.rpartition(".")[2] for name in linear)
        if kinds != sorted(LAYER) or any(type(module) is not nn.Linear for module in linear.values()):
            raise UnsupportedModel(
                f"layer {number} of a {type(model).__name__} has the linear layers {', '.join(kinds)}; LoRA needs "
                f"{', '.join(LAYER)}, each once: remove lora, or use a model of that form"
            )
        for name, module in linear.items():
            if name.rpartition(".")[2] in adapter.modules:
                layer.set_submodule(name, LoRALinear(module, rank=adapter.rank, scale=adapter.scale))


def collect_base_digest(model_dir: Path) -> str:
    """Return the digest of a model folder as a base. Collective: each rank hashes a share of the files."""
    files, rank, ranks = weight_files(model_dir), dist.get_rank(), dist.get_world_size()
    shares: list[Any] = [None] * ranks
    dist.all_gather_object(shares, [(path.name, file_sha256(path)) for path in files[rank::ranks]])
    return base_digest(pair for share in shares for pair in share)


@torch.no_grad()
def initialize(adapters: dict[str, DTensor], *, seed: str) -> None:
    """Draw A uniformly from +-1/sqrt(in), as peft does, and set B to zero: the policy starts as its base.

    Each A is drawn whole from `seed` and its name, so that it is the same for any number of ranks.
    """
    for name, parameter in adapters.items():
        local = parameter.to_local()
        if name.endswith(B):
            local.zero_()
            continue
        digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7]))
        bound = 1 / math.sqrt(parameter.shape[1])
        whole = torch.empty(parameter.shape).uniform_(-bound, bound, generator=generator)
        start = first_row(parameter)
        local.copy_(whole[start : start + len(local)])


@torch.no_grad()
def gathered(adapters: dict[str, DTensor]) -> dict[str, NDArray[Any]]:
    """Return the whole tensors by their names in peft's files at rank 0; an empty dict at the others. Collective."""
    tensors = {}
    for name, parameter in adapters.items():
        whole = parameter.full_tensor().detach()
        if dist.get_rank() == 0:
            layer, _, matrix = name.rpartition(".")
            # A copy, also on the CPU: the parameter changes in the next update.
            tensors[tensor_name(layer, matrix)] = whole.to(device="cpu", copy=True).numpy()
    return tensors


@torch.no_grad()
def product(adapters: dict[str, DTensor], weight: str, *, scale: float) -> Tensor | None:
    """Return the product of the adapter of a weight [out, in] by its name; None if it has no adapter. Collective.

    `adapters`: A and B of all layers.
    """
    layer = weight.removesuffix(".weight")
    if f"{layer}.{A}" not in adapters:
        return None
    a, b = (adapters[f"{layer}.{matrix}"].full_tensor().detach() for matrix in (A, B))
    return low_rank(a, b, scale=scale)


class BasePolicy:
    """The base of a policy, as the reference of the stage that trains its adapter: without a second copy."""

    def __init__(self, policy: nn.Module) -> None:
        self._policy = policy
        self._layers = [module for module in policy.modules() if isinstance(module, LoRALinear)]

    def __call__(self, **inputs: Any) -> Any:
        """Run the forward pass of the policy without its adapter."""
        self._switch(False)
        try:
            return self._policy(**inputs)
        finally:
            self._switch(True)

    def reshard(self) -> None:
        """Free the gathered parameters."""
        cast(FSDPModule, self._policy).reshard()

    def _switch(self, on: bool) -> None:
        for layer in self._layers:
            layer.is_on = on
