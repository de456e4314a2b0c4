"""Log-probabilities of chosen tokens, computed in chunks instead of all vocabulary-wide logits.

The float32 logits of a 16K-token pass over a 150K vocabulary would need 10 GB, and their gradient as much again. This
module holds the logits of one chunk. Its own backward pass computes them again, and not the entropies, which have no
gradient. Logits are float32 for any number format of the weights: rounded to bfloat16 they would change a
log-probability by 0.02 nats on average.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rstar2_train.capacity.model_support import OutputLayer

PLAIN = OutputLayer()
"""The output layer of most models: the products are the logits."""


def token_logprobs(
    *,
    hidden: Tensor,
    head: Tensor,
    targets: Tensor,
    chunk: int,
    temperature: float = 1.0,
    bias: Tensor | None = None,
    layer: OutputLayer = PLAIN,
) -> tuple[Tensor, Tensor]:
    """Return the log-probability of each target, and the entropy of its distribution.

    Args:
        hidden: [tokens, width] final hidden states at the positions that predict the targets.
        head: [vocabulary, width] the output projection.
        targets: [tokens] token ids.
        chunk: rows of logits in memory at the same time.
        temperature: divides the logits, as in sampling.
        bias: [vocabulary] of the output projection.
        layer: scale and soft cap of the logits.

    Returns:
        log-probabilities [tokens], float32 or wider, with a gradient; entropies [tokens] in nats, without one.
    """
    logprobs, entropies = _TokenLogprobs.apply(hidden, head, bias, targets, chunk, temperature, layer)
    return logprobs, entropies


class _TokenLogprobs(torch.autograd.Function):
    """Peak memory: two buffers [chunk, vocabulary], three with a soft cap; the wide gradient of the head."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        head: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        chunk: int,
        temperature: float,
        layer: OutputLayer,
    ) -> tuple[Tensor, Tensor]:
        ctx.layer, ctx.chunk, ctx.temperature = layer, chunk, temperature
        # Without targets too there is a result, whose backward pass runs: other ranks wait for its collectives.
        logprobs = torch.empty(targets.shape, device=hidden.device, dtype=_wide(hidden.dtype))
        entropies = torch.empty_like(logprobs)
        kept: Tensor | None = None
        for start in range(0, len(targets), chunk):
            rows = slice(start, start + chunk)
            logits = _logits(hidden[rows], head, bias, layer)
            log_p = torch.log_softmax(logits if temperature == 1.0 else logits.div_(temperature), dim=-1)
            logprobs[rows] = log_p.gather(1, targets[rows, None]).squeeze(1)
            entropies[rows] = -log_p.exp().mul_(log_p).sum(dim=-1)
            # A single chunk may stay until the backward pass: one recomputation would need the same memory. With a
            # soft cap the logits themselves are needed too.
            if len(targets) <= chunk and layer.softcap is None and any(ctx.needs_input_grad):
                kept = log_p
        ctx.save_for_backward(hidden, head, bias, targets, kept)
        ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden, head, bias, targets, kept = ctx.saved_tensors
        layer, wide = ctx.layer, _wide(head.dtype)
        grad_hidden = torch.empty_like(hidden)
        grad_head: Tensor | None = None
        trains_head = ctx.needs_input_grad[1]  # not with an adapter: the head is frozen
        grad_bias = None if bias is None else torch.zeros_like(bias, dtype=wide)
        for start in reversed(range(0, len(targets), ctx.chunk)):
            rows = slice(start, start + ctx.chunk)
            capped: Tensor | None = None
            if kept is not None:
                log_p = kept
            else:
                logits = _logits(hidden[rows], head, bias, layer)
                capped = None if layer.softcap is None else logits / layer.softcap
                log_p = torch.log_softmax(logits if ctx.temperature == 1.0 else logits.div_(ctx.temperature), dim=-1)
                del logits
            slope = torch.zeros_like(log_p).scatter_(1, targets[rows, None], grad[rows, None])
            torch.ops.aten._log_softmax_backward_data.out(slope, log_p, 1, log_p.dtype, out=slope)
            del log_p
            if capped is not None:
                slope.mul_(capped.square_().neg_().add_(1))  # the derivative of c * tanh(x / c)
            if ctx.temperature != layer.scale:
                slope.mul_(layer.scale / ctx.temperature)
            if grad_bias is not None:
                grad_bias.add_(slope.sum(dim=0))
            slope = slope.to(head.dtype)
            torch.mm(slope, head, out=grad_hidden[rows])
            if trains_head:
                part = _product(slope.t(), hidden[rows])
                grad_head = part if grad_head is None else grad_head.add_(part)
        if trains_head:
            grad_head = torch.zeros_like(head) if grad_head is None else grad_head.to(head.dtype)
        return grad_hidden, grad_head, None if grad_bias is None else grad_bias.to(head.dtype), *[None] * 4


def _logits(hidden: Tensor, head: Tensor, bias: Tensor | None, layer: OutputLayer) -> Tensor:
    logits = _product(hidden, head.t())
    if bias is not None:
        logits.add_(bias)
    if layer.scale != 1.0:
        logits.mul_(layer.scale)
    return logits if layer.softcap is None else logits.div_(layer.softcap).tanh_().mul_(layer.softcap)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype.itemsize >= 4 else torch.float32


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Return the matrix product in float32 or wider, also of 16-bit matrices."""
    if left.dtype.itemsize >= 4:
        return left @ right
    if left.is_cuda and _has_wide_product(left.device, left.dtype):
        return torch.mm(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()


@functools.cache
def _has_wide_product(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether the device multiplies 16-bit matrices into a float32 result: not all builds of ROCm do."""
    square = torch.ones(16, 16, device=device, dtype=dtype)
    try:
        torch.mm(square, square, out_dtype=torch.float32)
    except (RuntimeError, TypeError):
        return False
    return True
