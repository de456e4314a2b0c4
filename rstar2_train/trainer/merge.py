"""Adds an adapter to its base, without ranks: `rstar2 export --merge`, and engines that serve an adapter.

The product is added in float32, and the sum rounded once to the dtype of the stored tensor, as `export` does at the end
of a stage. One file of weights is in memory at a time.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import load_file, save_file

from rstar2_train.capacity.weight_files import INDEX
from rstar2_train.trainer import checkpoint
from rstar2_train.trainer.adapter_sum import low_rank, merged
from rstar2_train.trainer.model_files import copy_companions, tensor_files
from rstar2_train.weights.adapter_check import check_base, find_difference, inspect_adapter
from rstar2_train.weights.adapter_folder import TENSORS, tensor_name
from rstar2_train.weights.shard_file import ShardFileInvalid


def merge(adapter: Path, base: Path, target: Path) -> None:
    """Write the model folder of a base with an adapter: complete or absent. Replaces an existing one.

    Args:
        adapter: folder with peft's two files.
        base: model folder with safetensors; if the adapter has the digest of its base, this one must have it.
        target: the folder to create.

    Raises:
        ShardFileInvalid: if the adapter cannot be read, is of another kind, or does not fit the base.
        FileNotFoundError: if the base has no safetensors.
        StageFailed: StorageFull.
    """
    form, files = inspect_adapter(adapter), tensor_files(base)
    names: dict[Path, list[str]] = {}
    for name, path in files.items():
        names.setdefault(path, []).append(name)
    shapes: dict[str, tuple[int, ...]] = {}
    for path in names:
        with safe_open(path, framework="pt") as file:
            shapes |= {name: tuple(file.get_slice(name).get_shape()) for name in names[path]}
    if json.loads((base / "config.json").read_text(encoding="utf-8")).get("quantization_config"):
        raise ShardFileInvalid(
            f"{base} has quantised weights: merge {adapter} with the folder of the unquantised model"
        )
    if difference := find_difference(form.layers, shapes):
        raise ShardFileInvalid(f"{adapter} is not an adapter of {base}: {difference}")
    check_base(adapter, form.identity, base)
    factors = load_file(adapter / TENSORS)
    with checkpoint.write_folder(target, durable=True) as folder:
        copy_companions(base, folder)
        if (base / INDEX).exists():
            shutil.copyfile(base / INDEX, folder / INDEX)
        for path, stored in names.items():
            whole = {}
            with safe_open(path, framework="pt") as file:
                for name in stored:
                    weight, layer = file.get_tensor(name), name.removesuffix(".weight")
                    if layer in form.layers and name != layer:
                        a, b = (factors[tensor_name(layer, matrix)].float() for matrix in ("lora_A", "lora_B"))
                        total = merged(weight, low_rank(a, b, scale=form.identity.scale))
                        weight = total.to(weight.dtype)
                    whole[name] = weight
            save_file(whole, folder / path.name, metadata={"format": "pt"})
