"""Adds an adapter to its base, without ranks: `rstar2 export --merge`, and engines that serve an adapter.

The product is added in float32, and the sum rounded once to the dtype of the stored tensor, as `export` does at the end
of a stage. One file of weights is in memory at a time.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from rstar2_train.capacity.config_file import GENERATION_CONFIG
from rstar2_train.capacity.weight_files import INDEX
from rstar2_train.trainer import checkpoint
from rstar2_train.trainer.adapter_sum import low_rank, merged
from rstar2_train.trainer.model_files import copy_companions
from rstar2_train.trainer.rounding import overflow
from rstar2_train.weights.adapter_check import (
    LayerShapes,
    check_base,
    check_layers,
    inspect_adapter,
    read_base_config,
)
from rstar2_train.weights.adapter_folder import TENSORS, tensor_name
from rstar2_train.weights.shard_file import ShardFileInvalid

_NUMBERED = re.compile(r"\.\d+\.")
"""In the names of the layers of a transformer; neither embedding nor output layer have a number."""
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def merge(adapter: Path, base: Path, target: Path) -> None:
    """Write the model folder of a base with an adapter: complete or absent. Replaces an existing one.

    Args:
        adapter: folder with peft's two files. Its generation config, if it has one, replaces that of the base.
        base: model folder with safetensors; if the adapter has the digest of its base, this one must have it.
        target: the folder to create.

    Raises:
        ShardFileInvalid: if adapter or base cannot be read, the adapter is of another kind or does not fit the base,
            or the base cannot store the sum.
        StageFailed: StorageFull.
    """
    form = inspect_adapter(adapter)
    if read_base_config(base).get("quantization_config"):
        raise ShardFileInvalid(
            f"{base} has quantised weights: merge {adapter} with the folder of the unquantised model"
        )
    tensors = check_layers(adapter, form, base)
    _check_output(adapter, form.layers, base)
    check_base(adapter, form.identity, base)
    factors = load_file(adapter / TENSORS)
    with checkpoint.write_folder(target, durable=True) as folder:
        copy_companions(base, folder)
        if (stops := adapter / GENERATION_CONFIG).is_file():
            shutil.copyfile(stops, folder / GENERATION_CONFIG)
        if (base / INDEX).exists():
            shutil.copyfile(base / INDEX, folder / INDEX)
        for path in sorted({tensor.file for tensor in tensors.values()}):
            whole = {}
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 - not a mapping
                    weight, layer = file.get_tensor(name), name.removesuffix(".weight")
                    if layer in form.layers and name != layer:
                        a, b = (factors[tensor_name(layer, matrix)].float() for matrix in ("lora_A", "lora_B"))
                        weight = _sum(weight, low_rank(a, b, scale=form.identity.scale), place=f"{path}: {name}")
                    whole[name] = weight
            save_file(whole, folder / path.name, metadata={"format": "pt"})


def _check_output(adapter: Path, layers: LayerShapes, base: Path) -> None:
    """Raise ShardFileInvalid if an adapter changes an output layer that is the base's embedding too."""
    outside = [layer for layer in sorted(layers) if not _NUMBERED.search(layer)]
    if not outside:
        return
    from transformers import AutoConfig

    try:
        is_tied = AutoConfig.from_pretrained(base, local_files_only=True).tie_word_embeddings
    except (OSError, ValueError, AttributeError, KeyError) as error:
        raise ShardFileInvalid(f"{base}: whether its output layer is tied cannot be read: {error}") from error
    if is_tied:
        raise ShardFileInvalid(
            f"{adapter} changes {outside[0]}, which is tied to the embedding of {base} (tie_word_embeddings): the "
            "merged model would have another embedding too; train the adapter without this target"
        )


def _sum(weight: Tensor, product: Tensor, *, place: str) -> Tensor:
    """Return a stored weight plus a product, in its dtype. Raises ShardFileInvalid if this dtype cannot hold it."""
    if weight.dtype not in _DTYPES:
        raise ShardFileInvalid(f"{place} has dtype {weight.dtype}: merge with the folder of the unquantised model")
    total = merged(weight, product).to(weight.dtype)
    if fault := overflow(total, place=place):
        raise ShardFileInvalid(fault)
    return total
