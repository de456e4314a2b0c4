"""Compares the adapter in a vLLM worker with its file, bit by bit.

vLLM binds an adapter to its own layers by name, silently without those that it does not find, and multiplies B by the
scale of the file's config. This comparison reads the buffers that its kernels use. Imported only inside vLLM.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from rstar2_train.weights.adapter_folder import TENSORS, tensor_name

Parts = list[Tensor | None]
"""The matrices of the parts of one fused layer; None: the adapter does not have the part."""


def compare(manager: Any, adapter: int, folder: Path, *, scale: float) -> tuple[str, list[str]]:
    """Return the first difference of vLLM's buffers to the files of an adapter, and the layers that have it.

    Args:
        manager: vLLM's LoRAModelManager, with the adapter in one of its slots.
        adapter: id of the adapter in the engine.
        folder: of the version.
        scale: factor of B A.
    """
    if adapter not in manager.lora_index_to_id:
        return f"vLLM has not activated adapter {adapter}", []
    slot = manager.lora_index_to_id.index(adapter)
    tensors = load_file(folder / TENSORS)
    bound: list[str] = []
    for name, module in manager.modules.items():
        layers = manager.packed_modules.get(name, [name])
        a: Parts = [tensors.get(tensor_name(layer, "lora_A")) for layer in layers]
        b: Parts = [tensors.get(tensor_name(layer, "lora_B")) for layer in layers]
        if all(part is None for part in b):
            continue
        for kind, parts, buffers in (
            ("A", _of_worker(module, a, "slice_lora_a"), module.lora_a_stacked),
            ("B", _of_worker(module, b, "slice_lora_b"), module.lora_b_stacked),
        ):
            factor = scale if kind == "B" else 1.0
            for layer, part, buffer in zip(layers, parts, buffers, strict=True):
                if not _equal(buffer[slot, 0], part, factor=factor):
                    return f"vLLM's buffer of {layer} has another {kind} than the file", []
        bound += [layer for layer, part in zip(layers, b, strict=True) if part is not None]
    return "", bound


def _of_worker(module: Any, parts: Parts, slice_name: str) -> Sequence[Tensor | None]:
    """Return the share of the matrices that a worker of a tensor-parallel engine holds."""
    if module.tp_size == 1:
        return parts
    cut = getattr(module, slice_name)
    if len(parts) > 1:
        shares: list[Tensor | None] = cut(parts)
        return shares
    return [cut(parts[0])]


def _equal(buffer: Tensor, matrix: Tensor | None, *, factor: float) -> bool:
    """Return whether a buffer [rows, columns] of an adapter holds a matrix times `factor`, and zeros around it."""
    expected = torch.zeros_like(buffer)
    if matrix is not None:
        # vLLM rounds to the dtype of its buffers first, then multiplies.
        rounded = matrix.to(dtype=buffer.dtype, device=buffer.device)
        expected[: matrix.shape[0], : matrix.shape[1]] = rounded * factor if factor != 1 else rounded
    return torch.equal(buffer, expected)
