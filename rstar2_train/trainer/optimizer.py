"""AdamW over sharded parameters, and the gradient clip over all shards. Each step passes its learning rate.

The optimiser's state is zero from the start, so that a checkpoint has the same tensors before and after the first step,
and can be restored in place.
"""

from __future__ import annotations

import math

import torch
from torch.distributed.tensor import DTensor

from rstar2_train.trainer.model import Policy, trained_shards
from rstar2_train.trainer.types import OptimizerConfig


def make_optimizer(policy: Policy, config: OptimizerConfig) -> torch.optim.AdamW:
    """Return AdamW with zero moments over every trained parameter; each rank updates its own shards."""
    parameters = [*trained_shards(policy).values()]
    optimizer = torch.optim.AdamW(
        parameters,
        lr=0.0,
        betas=config.betas,
        eps=config.epsilon,
        weight_decay=config.weight_decay,
        fused=True,
    )
    for parameter in parameters:
        optimizer.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return optimizer


@torch.no_grad()
def reset(optimizer: torch.optim.AdamW) -> None:
    """Set all moments to zero, in place: another optimiser would need their memory a second time."""
    for state in optimizer.state.values():
        for value in state.values():
            value.zero_()


def update(policy: Policy, optimizer: torch.optim.AdamW, *, lr: float, grad_clip: float) -> float:
    """Clip the gradient by its global norm, update, and clear it. Collective.

    Returns:
        The norm before the clip. If it is not finite, the weights stay unchanged; the caller counts such updates.
    """
    norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), grad_clip)
    value = float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
    if math.isfinite(value):
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
    optimizer.zero_grad()
    return value


def named_state(policy: Policy, optimizer: torch.optim.AdamW) -> dict[str, dict[str, torch.Tensor]]:
    """Return the optimiser's tensors by parameter name, without copies: step, exp_avg, exp_avg_sq."""
    return {name: optimizer.state[parameter] for name, parameter in trained_shards(policy).items()}
