"""The policy: a causal language model of transformers, its layers sharded over the ranks (FSDP2).

It is built on the meta device without memory, sharded, and only then filled: each rank reads its own part of each
tensor from the safetensors files, so that no rank ever holds the whole model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM

from rstar2_train.trainer.device import ComputeDevice
from rstar2_train.trainer.logprobs import token_logprobs

WRAPPER = "_checkpoint_wrapped_module."
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


class Policy(nn.Module):
    """The forward pass under FSDP: from token ids to log-probabilities of chosen tokens.

    The output projection runs inside this forward pass, where its parameters are gathered.
    """

    def __init__(self, model: Any, *, chunk: int) -> None:
        super().__init__()
        self.model: Any = model
        self.chunk = chunk

    def forward(
        self, *, ids: Tensor, positions: Tensor, targets: Tensor, temperature: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities and entropies [trained] of the targets.

        Args:
            ids: [rows, longest] padded on the right; causal attention excludes the padding.
            positions: [trained] flat index of the position that predicts each target.
            targets: [trained] token ids.
            temperature: of the sampling distribution.
        """
        hidden = self.model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        return token_logprobs(
            hidden=hidden.flatten(0, 1)[positions],
            head=self.model.get_output_embeddings().weight,
            targets=targets,
            chunk=self.chunk,
            temperature=temperature,
        )


def load_policy(model_dir: Path, *, compute: ComputeDevice, chunk: int, activation_checkpointing: bool) -> Policy:
    """Build the policy of a model folder and shard it over all ranks. Collective.

    Raises:
        FileNotFoundError: if the folder has no config.json or no safetensors.
        ValueError: if its tensors are not those of the model in config.json.
    """
    config = AutoConfig.from_pretrained(model_dir, local_files_only=True)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
    model.tie_weights()
    # No dropout: the ratio of eq. 6 compares two passes over the same tokens, which must not differ randomly.
    model.eval()
    layers = model.base_model.layers
    if activation_checkpointing:
        for number, layer in enumerate(layers):
            layers[number] = checkpoint_wrapper(layer, CheckpointImpl.NO_REENTRANT, preserve_rng_state=False)
    policy = Policy(model, chunk=chunk)
    mesh = init_device_mesh(compute.device.type, (dist.get_world_size(),))
    reduced = MixedPrecisionPolicy(param_dtype=compute.dtype, reduce_dtype=torch.float32)
    precision = MixedPrecisionPolicy() if compute.dtype is torch.float32 else reduced
    for layer in layers:
        fully_shard(layer, mesh=mesh, mp_policy=precision)
    fully_shard(policy, mesh=mesh, mp_policy=precision)
    policy.to_empty(device=compute.device)
    _fill_buffers(model, compute.device)
    _fill_parameters(policy, model_dir)
    return policy


def named_shards(policy: Policy) -> dict[str, DTensor]:
    """Return every parameter once (tied ones under their first name), by its name in the model folder."""
    shards: dict[str, DTensor] = {}
    for name, parameter in policy.named_parameters():
        assert isinstance(parameter, DTensor), name
        shards[name.replace(WRAPPER, "").removeprefix("model.")] = parameter
    return shards


def tensor_files(model_dir: Path) -> dict[str, Path]:
    """Return the safetensors file of each tensor of a model folder.

    Raises:
        FileNotFoundError: if the folder has none.
    """
    index = model_dir / INDEX
    if index.exists():
        return {name: model_dir / file for name, file in json.loads(index.read_text())["weight_map"].items()}
    single = model_dir / SINGLE
    if not single.exists():
        raise FileNotFoundError(f"{model_dir} has no safetensors weights: neither {SINGLE} nor {INDEX}")
    with safe_open(single, framework="pt") as file:
        return dict.fromkeys(file.keys(), single)


@torch.no_grad()
def _fill_parameters(policy: Policy, model_dir: Path) -> None:
    files = tensor_files(model_dir)
    shards = named_shards(policy)
    missing = sorted(set(shards) - set(files))
    tied = {"lm_head.weight"} if policy.model.config.tie_word_embeddings else set()
    unknown = sorted(set(files) - set(shards) - tied)
    if missing or unknown:
        raise ValueError(
            f"{model_dir}: the weights are not those of a {type(policy.model).__name__}: "
            f"missing {missing[:3]}, unknown {unknown[:3]}"
        )
    rank, ranks = dist.get_rank(), dist.get_world_size()
    by_file: dict[Path, list[str]] = {}
    for name in shards:
        by_file.setdefault(files[name], []).append(name)
    for path, names in by_file.items():
        with safe_open(path, framework="pt") as file:
            for name in names:
                parameter = shards[name]
                stored = file.get_slice(name)
                if list(stored.get_shape()) != list(parameter.shape):
                    raise ValueError(
                        f"{path}: {name} has shape {stored.get_shape()}, but config.json requires "
                        f"{list(parameter.shape)}"
                    )
                rows = -(-parameter.shape[0] // ranks)  # fully_shard splits the first dimension as torch.chunk does
                start = min(rank * rows, parameter.shape[0])
                local = parameter.to_local()
                local.copy_(stored[start : start + len(local)])


def _fill_buffers(model: nn.Module, device: torch.device) -> None:
    """Compute the buffers that no file contains (rotary frequencies) with the constructor of their module."""
    for module in model.modules():
        if module._non_persistent_buffers_set:
            fresh = type(module)(module.config)
            for name in module._non_persistent_buffers_set:
                setattr(module, name, getattr(fresh, name).to(device))
