"""Writes the policy as a folder for transformers and vLLM: at the end of a stage, and in every step for the engines.

All files except the weights are copied from the source folder: config, tokenizer, chat template. The generation config
of a final model lists the tokens that end its turns. An adapter is added to the weights of the source folder in
float32, and rounded once; it is also written alone, into the subfolder `adapter`, with the generation config.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor

from rstar2_train.capacity.config_file import GENERATION_CONFIG, read_config, stored_dtype_name
from rstar2_train.capacity.weight_files import INDEX, SINGLE
from rstar2_train.capacity.weight_headers import read_tensors
from rstar2_train.trainer import lora
from rstar2_train.trainer.adapter_sum import merged
from rstar2_train.trainer.model import Policy, stored_shards, trained_shards
from rstar2_train.trainer.rounding import rounded
from rstar2_train.trainer.sharding import tensor_shape
from rstar2_train.weights import adapter_folder
from rstar2_train.weights.adapter_folder import ADAPTER, AdapterIdentity
from rstar2_train.weights.shard_file import FileSummary

FILE_BYTES = 4 * 2**30
"""Approximate size of a weights file: no rank holds a whole large model."""


def write_weights(policy: Policy, source: Path, target: Path, *, dtype: torch.dtype | None = None) -> None:
    """Write the whole parameters, tied ones once. Collective.

    Each rank writes a share of the files.

    Args:
        policy: the sharded policy.
        source: the model folder from which it was loaded.
        target: an existing folder, not yet visible to readers.
        dtype: number format of the files; None: that of config.json.

    Raises:
        UnsupportedModel: for a parameter that the number format cannot hold.
    """
    dtype = dtype or stored_dtype(source)
    shards = stored_shards(policy)
    files = _plan({name: shard.numel() * dtype.itemsize for name, shard in shards.items()})
    whole = _Gathered(shards) if policy.adapter is None else _Merged(policy, policy.adapter, source)
    order, ranks = list(files), dist.get_world_size()
    for first in range(0, len(files), ranks):
        in_progress = order[first : first + ranks]
        gathered: dict[str, torch.Tensor] = {}
        for writer, file in enumerate(in_progress):
            for name in files[file]:
                value = whole.value(name, wanted=dist.get_rank() == writer)
                if value is not None:
                    gathered |= _tensors(rounded(value, dtype, name=name, device="cpu"), policy.tensors_of(name))
        # The ranks write at the same time, each its own file.
        if dist.get_rank() < len(in_progress):
            save_file(gathered, target / in_progress[dist.get_rank()], metadata={"format": "pt"})
    if dist.get_rank() == 0 and len(files) > 1:
        index = {
            "metadata": {"total_size": sum(shard.numel() * dtype.itemsize for shard in shards.values())},
            "weight_map": {
                tensor: file for file, names in files.items() for name in names for tensor in policy.tensors_of(name)
            },
        }
        (target / INDEX).write_text(json.dumps(index, indent=1))
    if policy.adapter is not None:
        folder = target / ADAPTER
        if dist.get_rank() == 0:
            folder.mkdir()
            if (stops := target / GENERATION_CONFIG).exists():
                shutil.copyfile(stops, folder / GENERATION_CONFIG)
        write_adapter(policy, source, folder)


def write_adapter(policy: Policy, source: Path, folder: Path) -> list[FileSummary]:
    """Write the adapter of a policy into an existing folder; return its files at rank 0, else none. Collective.

    Raises:
        ValueError: if the policy has no adapter.
    """
    if policy.adapter is None:
        raise ValueError("the policy has no adapter: it is trained as a whole")
    tensors = lora.gathered(trained_shards(policy))
    return adapter_folder.write_adapter(folder, tensors, policy.adapter, base=source) if tensors else []


def _tensors(parameter: torch.Tensor, names: Sequence[str]) -> dict[str, torch.Tensor]:
    """Return the tensors of the files of which a parameter consists."""
    parts = parameter.reshape(len(names), *tensor_shape(parameter, len(names)))
    return {name: part.contiguous() for name, part in zip(names, parts, strict=True)}


class _Gathered:
    """The parameters of a policy that is trained as a whole."""

    def __init__(self, shards: dict[str, DTensor]) -> None:
        self._shards = shards

    def value(self, name: str, *, wanted: bool) -> torch.Tensor | None:
        """Return a whole parameter where it is wanted. Collective."""
        whole = self._shards[name].full_tensor().detach()
        return whole if wanted else None


class _Merged:
    """The stored weights of the base, with the adapter added in float32.

    They are read from the files: the ranks may have them in a narrower format.
    """

    def __init__(self, policy: Policy, adapter: AdapterIdentity, source: Path) -> None:
        self._adapters = trained_shards(policy)
        self._scale = adapter.scale
        self._tensors = read_tensors(source)

    def value(self, name: str, *, wanted: bool) -> torch.Tensor | None:
        """Return a merged weight where it is wanted. Collective."""
        product = lora.product(self._adapters, name, scale=self._scale)
        if not wanted:
            return None
        with safe_open(self._tensors[name].file, framework="pt") as file:
            stored: torch.Tensor = file.get_tensor(name)
        return stored if product is None else merged(stored, product.cpu())


def stored_dtype(source: Path) -> torch.dtype:
    """Return the dtype of a model folder's weights, from its config.json. Raises ValueError for another kind."""
    name = stored_dtype_name(read_config(source))
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ValueError(f"{source / 'config.json'}: dtype {name!r} is not a floating-point type of torch")
    return dtype


def _plan(sizes: dict[str, int]) -> dict[str, list[str]]:
    parts: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if parts[-1] and filled + size > FILE_BYTES:
            parts.append([])
            filled = 0
        parts[-1].append(name)
        filled += size
    if len(parts) == 1:
        return {SINGLE: parts[0]}
    return {f"model-{n:05d}-of-{len(parts):05d}.safetensors": names for n, names in enumerate(parts, start=1)}
