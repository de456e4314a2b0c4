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


def token_logprobs(
    *, hidden: Tensor, head: Tensor, targets: Tensor, chunk: int, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Return the log-probability of each target, and the entropy of its distribution.

    Args:
        hidden: [tokens, width] final hidden states at the positions that predict the targets.
        head: [vocabulary, width] the output projection.
        targets: [tokens] token ids.
        chunk: rows of logits in memory at the same time.
        temperature: divides the logits, as in sampling.

    Returns:
        log-probabilities [tokens], float32 or wider, with a gradient; entropies [tokens] in nats, without one.
    """
    logprobs, entropies = _TokenLogprobs.apply(hidden, head, targets, chunk, temperature)
    return logprobs, entropies


class _TokenLogprobs(torch.autograd.Function):
    """Peak memory: two buffers [chunk, vocabulary], and the gradient of the head in the wide format."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, targets: Tensor, chunk: int, temperature: float
    ) -> tuple[Tensor, Tensor]:
        logprobs, entropies = [], []
        kept: Tensor | None = None
        for start in range(0, len(targets), chunk):
            rows = slice(start, start + chunk)
            log_p = _log_softmax(hidden[rows], head, temperature)
            logprobs.append(log_p.gather(1, targets[rows, None]).squeeze(1))
            entropies.append(-log_p.exp().mul_(log_p).sum(dim=-1))
            # A single chunk may stay until the backward pass: one recomputation would need the same memory.
            kept = log_p if len(targets) <= chunk and any(ctx.needs_input_grad) else None
        ctx.save_for_backward(hidden, head, targets, kept)
        ctx.chunk, ctx.temperature = chunk, temperature
        entropy = torch.cat(entropies)
        ctx.mark_non_differentiable(entropy)
        return torch.cat(logprobs), entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden, head, targets, kept = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden)
        grad_head: Tensor | None = None
        for start in reversed(range(0, len(targets), ctx.chunk)):
            rows = slice(start, start + ctx.chunk)
            log_p = _log_softmax(hidden[rows], head, ctx.temperature) if kept is None else kept
            slope = torch.zeros_like(log_p).scatter_(1, targets[rows, None], grad[rows, None])
            torch.ops.aten._log_softmax_backward_data.out(slope, log_p, 1, log_p.dtype, out=slope)
            del log_p
            if ctx.temperature != 1.0:
                slope.div_(ctx.temperature)
            slope = slope.to(head.dtype)
            torch.mm(slope, head, out=grad_hidden[rows])
            part = _product(slope.t(), hidden[rows])
            grad_head = part if grad_head is None else grad_head.add_(part)
        return grad_hidden, None if grad_head is None else grad_head.to(head.dtype), None, None, None


def _log_softmax(hidden: Tensor, head: Tensor, temperature: float) -> Tensor:
    logits = _product(hidden, head.t())
    return torch.log_softmax(logits if temperature == 1.0 else logits.div_(temperature), dim=-1)


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
