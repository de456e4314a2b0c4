"""Model of `lora`: an adapter is trained in place of the whole model. `lora_rules.py` has its rules."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from rstar2_train.api.base import SET, ApiModel
from rstar2_train.api.lora_layers import ATTENTION, LAYER, MLP


def _integer(value: object) -> object:
    """Reject true and 8.0, which are equal to ranks."""
    if type(value) is not int:
        raise ValueError("should be an integer")
    return value


LoRARank = Annotated[Literal[1, 8, 16, 32, 64, 128, 256, 320, 512], BeforeValidator(_integer)]
"""Ranks that vLLM accepts."""
LoRATarget = Literal[
    "All", "Attention", "Mlp", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"
]
_GROUPS = {"All": LAYER, "Attention": ATTENTION, "Mlp": MLP}

LORA_LEARNING_RATE = 1e-5
"""Default of grpo.learningRate with LoRA: ten times that of full fine-tuning (docs/lora.md)."""


class LoRASpec(ApiModel):
    """Low-rank adaptation (arXiv 2106.09685): each target layer has W + alpha / rank * B A, and only A and B train."""

    rank: LoRARank = 32
    """Rows of A, and columns of B."""
    alpha: Annotated[int, Field(ge=1, le=4096)] = 32
    """Scale of the adapter: its product has the factor alpha / rank."""
    target_modules: Annotated[list[LoRATarget], Field(min_length=1, max_length=7), SET] = ["All"]
    """Linear layers with an adapter: All, Attention, Mlp, or their names. Embeddings and the output layer never have
    one."""
    start: Literal["New", "Continue"] = "New"
    """New: another adapter on the model of the training stage before. Continue: its adapter, on the same base; the
    first training stage starts a new one."""

    @property
    def modules(self) -> tuple[str, ...]:
        """The names of the target layers, in the order of a transformer's layer."""
        chosen = {name for target in self.target_modules for name in _GROUPS.get(target, (target,))}
        return tuple(name for name in LAYER if name in chosen)
