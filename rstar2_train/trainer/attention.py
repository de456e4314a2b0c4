"""Causal attention of padded and of packed micro-batches, registered with transformers under one name.

A packed micro-batch has its sequences one after another in one row. Attention runs over each sequence alone: with the
variable-length flash kernel of torch where the device has it (NVIDIA), else one call per sequence.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

NAME = "rstar2"
"""Name of the attention in transformers. It has no mask function there, so that transformers makes no masks."""


@dataclass(frozen=True, slots=True)
class Packing:
    """The borders of the sequences of a packed micro-batch.

    Compiled layers read only `borders` and `longest`. Each number of sequences would be another graph to compile if
    they read the lengths, and torch stops to compile a layer after eight.
    """

    lengths: tuple[int, ...]
    longest: int
    borders: Tensor | None
    """[sequences + 1] int32 on the device, for the variable-length kernel; None: one call per sequence."""


def packing_of(lengths: Sequence[int], device: torch.device, dtype: torch.dtype) -> Packing:
    """Return the borders of sequences of these lengths."""
    borders = None
    if uses_kernel(device, dtype):
        ends = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        borders = ends.pin_memory().to(device, non_blocking=True)
    return Packing(tuple(lengths), max(lengths), borders)


def positions_of(lengths: Sequence[int], device: torch.device) -> Tensor:
    """Return the position of each token in its sequence, [1, tokens]."""
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    return positions.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else positions


def uses_kernel(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether attention of packed sequences is one call of the variable-length kernel."""
    return device.type == "cuda" and dtype.itemsize == 2 and has_varlen_kernel()


def has_varlen_kernel() -> bool:
    """Return whether torch has a variable-length flash kernel with causal windows and grouped heads for this GPU."""
    if torch.version.hip is not None:
        return False
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return False
    return {"window_size", "enable_gqa"} <= set(inspect.signature(varlen_attn).parameters)


def supports(config: Any) -> bool:
    """Return whether all layers of a model attend to all earlier tokens, as `attend` computes; no sliding window."""
    kinds = getattr(config, "layer_types", None)
    if kinds:
        return set(kinds) == {"full_attention"}
    return not getattr(config, "sliding_window", None)


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    packing: Packing | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Return causal attention as [rows, tokens, heads, head width], with the signature that transformers defines.

    `query`, `key`, `value`: [rows, heads, tokens, head width]; keys and values may have fewer heads.
    """
    if packing is None:
        options.pop("is_causal", None)
        out, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, is_causal=True, **options
        )
        return out, None
    grouped = query.shape[1] != key.shape[1]
    if packing.borders is not None:
        from torch.nn.attention.varlen import varlen_attn

        q, k, v = (part[0].transpose(0, 1) for part in (query, key, value))
        longest, borders = packing.longest, packing.borders
        joined = varlen_attn(
            q, k, v, borders, borders, longest, longest, scale=scaling, window_size=(-1, 0), enable_gqa=grouped
        )
        assert isinstance(joined, Tensor)
        return joined[None], None
    return _attend_each(query, key, value, packing, scaling), None


@torch.compiler.disable
def _attend_each(query: Tensor, key: Tensor, value: Tensor, packing: Packing, scaling: float | None) -> Tensor:
    """Return the attention of each sequence alone. Not compiled: the code depends on the number of sequences."""
    grouped = query.shape[1] != key.shape[1]
    parts = [part.split(packing.lengths, dim=2) for part in (query, key, value)]
    outputs = [
        scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=grouped)
        for q, k, v in zip(*parts, strict=True)
    ]
    return torch.cat(outputs, dim=2).transpose(1, 2)


def check_flash(config: Any, device: torch.device, dtype: torch.dtype) -> None:
    """Run attention forward and backward on a flash kernel, with the heads of a model.

    Without such a kernel torch computes all scores, [heads, tokens, tokens]: 23 GB per layer of 40 heads at 12K tokens.

    Raises:
        RuntimeError: if the device has none; with the reason of torch and the fix.
    """
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads

    def random(count: int) -> Tensor:
        return torch.randn(1, count, 256, width, device=device, dtype=dtype, requires_grad=True)

    try:
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]):
            out = scaled_dot_product_attention(
                random(heads), random(kv_heads), random(kv_heads), is_causal=True, enable_gqa=heads != kv_heads
            )
            out.sum().backward()
    except RuntimeError as error:
        raise RuntimeError(
            f"torch {torch.__version__} has no flash attention on {device} for {heads} query heads, {kv_heads} key "
            f"heads and head width {width} in {dtype}; training would need quadratic memory. Use a build of torch for "
            f"this accelerator (on ROCm: with AOTriton). Reason: {error}"
        ) from error


AttentionInterface.register(NAME, attend)
