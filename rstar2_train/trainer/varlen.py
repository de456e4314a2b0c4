"""Torch's attention kernel for packed sequences of different lengths, and whether this device has it.

Torch 2.11 and later have the kernel for NVIDIA. Its signature differs between versions, and a device may
have no kernel for a head width. So each rank runs it once against plain attention before it relies on it.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

try:
    from torch.nn.attention.varlen import varlen_attn

    PARAMETERS = frozenset(inspect.signature(varlen_attn).parameters)
except ImportError:
    PARAMETERS = frozenset()
LENGTHS = (97, 1, 158)
"""Lengths of the sequences of the trial."""
TOLERANCE = 0.02
"""Largest relative error of the trial: that of 16-bit numbers is below 0.01."""


def attend_varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    borders: Tensor,
    longest: int,
    *,
    scaling: float | None,
    window: int | None,
) -> Tensor:
    """Return causal attention within each sequence, [tokens, heads, head width].

    Args:
        query: [tokens, heads, head width]; so are `key` and `value`, with equal or fewer heads.
        borders: [sequences + 1] int32, the first token of each sequence, and the number of all tokens.
        longest: length of the longest sequence.
        scaling: factor of the scores.
        window: number of last tokens that a token attends to; None: all.
    """
    # Torch 2.11 has no such parameter: its kernel takes grouped heads as they are.
    groups: dict[str, Any] = {"enable_gqa": query.shape[1] != key.shape[1]} if "enable_gqa" in PARAMETERS else {}
    left = -1 if window is None else window - 1
    joined = varlen_attn(
        query, key, value, borders, borders, longest, longest, scale=scaling, window_size=(left, 0), **groups
    )
    assert isinstance(joined, Tensor)
    return joined


def find_obstacle(config: Any, device: torch.device, dtype: torch.dtype, *, sinks: bool = False) -> str | None:
    """Return why a model cannot use the kernel on a device; None if it can. Runs the kernel once.

    `sinks`: whether its attention has sinks, which no field of all configs states.
    """
    if device.type != "cuda":
        return "only for NVIDIA"
    if torch.version.hip is not None:
        return "not on ROCm"
    if dtype.itemsize != 2:
        return "only for 16-bit numbers"
    if "window_size" not in PARAMETERS:
        return f"torch {torch.__version__} has none with causal windows: use 2.11 or newer"
    if getattr(config, "attn_logit_softcapping", None):
        return "the model's attention has a soft cap"
    if sinks:
        return "the model's attention has sinks"
    try:
        error = _trial_error(config, device, dtype)
    except (RuntimeError, ValueError, TypeError) as failure:
        return f"it fails on this device: {str(failure).strip().partition(chr(10))[0]}"
    return None if error <= TOLERANCE else f"its relative error is {error:.3f} on this device"


def heads_of(config: Any) -> tuple[int, int, int]:
    """Return the query heads, the key heads and the head width of a model."""
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    return heads, kv_heads, getattr(config, "head_dim", None) or config.hidden_size // heads


def _trial_error(config: Any, device: torch.device, dtype: torch.dtype) -> float:
    """Return the largest relative error of output and gradients of the kernel for a model's heads."""
    heads, kv_heads, width = heads_of(config)
    tokens = sum(LENGTHS)
    borders = torch.tensor([0, *LENGTHS], dtype=torch.int32, device=device).cumsum(0, dtype=torch.int32)
    values = [torch.randn(tokens, count, width, device=device, dtype=dtype) for count in (heads, kv_heads, kv_heads)]
    slope = torch.randn(tokens, heads, width, device=device, dtype=dtype)
    query, key, value = inputs = [value.requires_grad_() for value in values]
    output = attend_varlen(query, key, value, borders, max(LENGTHS), scaling=width**-0.5, window=None)
    actual = [output, *torch.autograd.grad((output * slope).sum(), inputs)]
    wide = [value.detach().float().requires_grad_() for value in values]
    parts = zip(*(tensor.transpose(0, 1)[None].split(LENGTHS, dim=2) for tensor in wide), strict=True)
    grouped = heads != kv_heads
    rows = [scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped) for q, k, v in parts]
    output = torch.cat(rows, dim=2)[0].transpose(0, 1)
    expected = [output, *torch.autograd.grad((output * slope.float()).sum(), wide)]
    errors = [(a.float() - b).norm() / b.norm() for a, b in zip(actual, expected, strict=True)]
    return float(torch.stack(errors).max())
