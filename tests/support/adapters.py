"""Adapters written by hand, without the trainer, and the log-probabilities of their merged weights by transformers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from rstar2_train.utils.files import file_sha256
from rstar2_train.weights import version_store
from rstar2_train.weights.adapter_check import AdapterOrder
from rstar2_train.weights.adapter_folder import (
    CONFIG,
    TENSORS,
    AdapterIdentity,
    folder_digest,
    tensor_name,
    write_adapter,
)
from rstar2_train.weights.shard_file import FileSummary
from rstar2_train.weights.version_store import VersionManifest

MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
Tensors = dict[str, NDArray[Any]]


def random_tensors(base: Path, *, rank: int, seed: int, size: float = 0.3) -> Tensors:
    """Return an adapter of all linear layers of a model folder; `size`: of the elements of B."""
    draw = np.random.default_rng(seed)
    tensors: Tensors = {}
    for name, weight in load_file(base / "model.safetensors").items():
        layer = name.removesuffix(".weight")
        if layer.rsplit(".", 1)[-1] in MODULES:
            rows, columns = weight.shape
            tensors[tensor_name(layer, "lora_A")] = draw.normal(0, columns**-0.5, (rank, columns)).astype(np.float32)
            tensors[tensor_name(layer, "lora_B")] = draw.normal(0, size, (rows, rank)).astype(np.float32) * 0.1
    return tensors


def publish(
    root: Path, tensors: Tensors, *, base: Path, version: str, rank: int, alpha: int, number: int = 0
) -> AdapterOrder:
    """Write a version of an adapter; return the order for it."""
    version_id = version_store.new_id()
    folder = version_store.version_folder(root, number, version_id)
    folder.mkdir(parents=True)
    identity = AdapterIdentity(base=folder_digest(base), rank=rank, alpha=alpha, modules=MODULES)
    files = write_adapter(folder, tensors, identity, base=base)
    version_store.write_manifest(folder, VersionManifest(version_id, version, None, files))
    return AdapterOrder(folder=str(folder), version=version, version_id=version_id, adapter=identity)


def reseal(order: AdapterOrder) -> None:
    """Write the manifest again, with the sizes and hashes of the present files: a faulty trainer's."""
    folder = Path(order.folder)
    manifest = version_store.read_manifest(folder)
    files = [
        FileSummary(path.name, path.stat().st_size, file_sha256(path), 0)
        for path in (folder / CONFIG, folder / TENSORS)
    ]
    version_store.write_manifest(folder, replace(manifest, files=files))


def change_config(order: AdapterOrder, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the config of a version, with a right manifest."""
    path = Path(order.folder) / CONFIG
    config = json.loads(path.read_text(encoding="utf-8"))
    change(config)
    path.write_text(json.dumps(config), encoding="utf-8")
    reseal(order)


def merged_scores(base: Path, tensors: Tensors, rows: list[list[int]], *, scale: float) -> list[list[float]]:
    """Return the log-probabilities of rows by transformers, with W + scale * B A in each layer."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    merge_into(model, tensors, scale=scale)
    with torch.no_grad():
        scores = []
        for row in rows:
            ids = torch.tensor([row])
            logprobs = model(ids).logits.log_softmax(-1)[0, :-1]
            scores.append(logprobs.gather(1, ids[0, 1:, None])[:, 0].tolist())
    return scores


def merge_into(model: Any, tensors: Tensors, *, scale: float) -> None:
    """Add scale * B A to each layer of a model of transformers, in float64 and rounded once."""
    import torch

    with torch.no_grad():
        for name, module in model.named_modules():
            a, b = tensors.get(tensor_name(name, "lora_A")), tensors.get(tensor_name(name, "lora_B"))
            if a is not None and b is not None:
                module.weight += torch.from_numpy(scale * (b.astype(np.float64) @ a.astype(np.float64))).float()
