"""Causal attention of padded and of packed micro-batches, registered with transformers under one name.

A packed micro-batch has its sequences one after another in one row. Attention runs over each sequence alone: with the
variable-length flash kernel of torch where the device has it (`varlen`), else one call per sequence.

Sliding windows, a soft cap of the scores, and sinks (a logit per head that takes a share of each softmax) arrive as
arguments from the layers of transformers. Scores with a soft cap or sinks are computed in blocks of queries, because
torch has no kernel for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface

from rstar2_train.trainer.varlen import attend_varlen, heads_of

NAME = "rstar2"
"""Name of the attention in transformers. It has no mask function there, so that transformers makes no masks."""
KINDS = frozenset({"full_attention", "sliding_attention"})
"""Kinds of layers that `attend` computes, by their name in config.json."""
BLOCK = 1024
"""Queries whose scores are in memory at the same time, if torch has no kernel for them."""


# Not frozen: torch 2.11 would guard the values of a frozen dataclass, and compile each number of sequences again.
@dataclass(slots=True)
class Packing:
    """The borders of the sequences of a packed micro-batch.

    Compiled layers read only `borders` and `longest`. Each number of sequences would be another graph to compile if
    they read the lengths, and torch stops to compile a layer after eight.
    """

    lengths: tuple[int, ...]
    longest: int
    borders: Tensor | None
    """[sequences + 1] int32 on the device, for the variable-length kernel; None: one call per sequence."""


@dataclass(frozen=True, slots=True)
class Scores:
    """The changes of a layer to the scores of its queries and keys."""

    scaling: float | None
    """Factor of the products; None: 1 / sqrt(head width)."""
    window: int | None
    """Number of last tokens, its own included, that a token attends to; None: all."""
    softcap: float | None
    sinks: Tensor | None
    """[heads] logits."""


def packing_of(lengths: Sequence[int], device: torch.device, *, kernel: bool) -> Packing:
    """Return the borders of sequences of these lengths. `kernel`: for the variable-length kernel."""
    borders = None
    if kernel:
        ends = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        borders = ends.pin_memory().to(device, non_blocking=True)
    return Packing(tuple(lengths), max(lengths), borders)


def positions_of(lengths: Sequence[int], device: torch.device) -> Tensor:
    """Return the position of each token in its sequence, [1, tokens]."""
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    return positions.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else positions


def supports(config: Any) -> bool:
    """Return whether `attend` computes all layers of a model: full attention and sliding windows."""
    return set(getattr(config, "layer_types", None) or ()) <= KINDS


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    packing: Packing | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Return causal attention as [rows, tokens, heads, head width], with the signature that transformers defines.

    `query`, `key`, `value`: [rows, heads, tokens, head width]; keys and values may have fewer heads.

    Raises:
        ValueError: for a mask; it would be ignored.
    """
    if attention_mask is not None:
        raise ValueError(f"{type(module).__name__} passes a mask to the attention, which computes its own")
    scores = Scores(scaling, sliding_window, softcap, s_aux)
    if packing is None:
        return _attend_rows(query, key, value, scores), None
    if packing.borders is not None and softcap is None and s_aux is None:
        q, k, v = (part[0].transpose(0, 1) for part in (query, key, value))
        joined = attend_varlen(q, k, v, packing.borders, packing.longest, scaling=scaling, window=sliding_window)
        return joined[None], None
    return _attend_each(query, key, value, packing, scores), None


@torch.compiler.disable
def _attend_each(query: Tensor, key: Tensor, value: Tensor, packing: Packing, scores: Scores) -> Tensor:
    """Return the attention of each sequence alone. Not compiled: the code depends on the number of sequences."""
    parts = [part.split(packing.lengths, dim=2) for part in (query, key, value)]
    return torch.cat([_attend_rows(q, k, v, scores) for q, k, v in zip(*parts, strict=True)], dim=1)


def _attend_rows(query: Tensor, key: Tensor, value: Tensor, scores: Scores) -> Tensor:
    """Return the attention of each row; all have the same length."""
    if scores.softcap is not None or scores.sinks is not None:
        return _attend_blocks(query, key, value, scores)
    grouped = query.shape[1] != key.shape[1]
    if scores.window is None or query.shape[2] <= scores.window:
        out = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scores.scaling, enable_gqa=grouped)
        return out.transpose(1, 2)
    if grouped:  # the kernels with a mask have no groups
        key, value = (_repeated(part, query) for part in (key, value))
    visible = _visible(query.shape[2], 0, query.shape[2], scores.window, query.device)
    out = scaled_dot_product_attention(query, key, value, attn_mask=visible, scale=scores.scaling)
    return out.transpose(1, 2)


@torch.compiler.disable
def _attend_blocks(query: Tensor, key: Tensor, value: Tensor, scores: Scores) -> Tensor:
    """Return the attention of each row, with the scores of `BLOCK` queries in memory. Not compiled: it has a loop."""
    key, value = (_repeated(part, query) for part in (key, value))
    tokens, outputs = query.shape[2], []
    for start in range(0, tokens, BLOCK):
        stop = min(start + BLOCK, tokens)
        first = 0 if scores.window is None else max(0, start - scores.window + 1)
        block = query[:, :, start:stop], key[:, :, first:stop], value[:, :, first:stop], scores, start - first
        if tokens > BLOCK and query.requires_grad:
            outputs.append(checkpoint(_attend_block, *block, use_reentrant=False, preserve_rng_state=False))
        else:
            outputs.append(_attend_block(*block))
    return torch.cat(outputs, dim=2).transpose(1, 2)


def _attend_block(query: Tensor, key: Tensor, value: Tensor, scores: Scores, offset: int) -> Tensor:
    """Return the attention of consecutive queries. `offset`: position of the first of them among the keys."""
    scaling = query.shape[-1] ** -0.5 if scores.scaling is None else scores.scaling
    logits = (query @ key.transpose(2, 3)).float() * scaling
    if scores.softcap is not None:
        logits = torch.tanh(logits / scores.softcap) * scores.softcap
    visible = _visible(query.shape[2], offset, key.shape[2], scores.window, query.device)
    logits = logits.masked_fill(~visible, float("-inf"))
    if scores.sinks is None:
        return logits.softmax(dim=-1).to(value.dtype) @ value
    sinks = scores.sinks.float().view(1, -1, 1, 1).expand(*logits.shape[:3], 1)
    shares = torch.cat([logits, sinks], dim=-1).softmax(dim=-1)[..., :-1]
    return shares.to(value.dtype) @ value


def _visible(queries: int, offset: int, keys: int, window: int | None, device: torch.device) -> Tensor:
    """Return whether each query attends to each key, [queries, keys]."""
    at = torch.arange(queries, device=device)[:, None] + offset
    of = torch.arange(keys, device=device)
    return of <= at if window is None else (of <= at) & (of > at - window)


def _repeated(part: Tensor, query: Tensor) -> Tensor:
    """Return keys or values with one head per query head."""
    return part.repeat_interleave(query.shape[1] // part.shape[1], dim=1)


def check_flash(config: Any, device: torch.device, dtype: torch.dtype) -> None:
    """Run attention forward and backward on a flash kernel, with the heads of a model.

    Without such a kernel torch computes all scores, [heads, tokens, tokens]: 23 GB per layer of 40 heads at 12K tokens.

    Raises:
        RuntimeError: if the device has none; with the reason of torch and the fix.
    """
    heads, kv_heads, width = heads_of(config)

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
