"""What drivers and ranks tell one another: settings, sequences, what was measured, what a checkpoint brings back.

Plain dataclasses without torch: the drivers build them, Ray carries them to the ranks.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Any

from rstar2_train.api.job import JobSpec
from rstar2_train.api.roles import Vendor


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """How ranks compute; the same for every stage of a job."""

    vendor: Vendor = "None"
    """None: CPU, gloo, float32. Else: the rank's GPU, NCCL or RCCL, bfloat16 over float32 master weights."""
    tokens_per_micro_batch: int = 16384
    """Most tokens of one forward pass, padding included; a longer sequence gets a pass of its own."""
    logprob_chunk_tokens: int = 2048
    """Rows of vocabulary-wide logits that exist at once."""
    activation_checkpointing: bool = True
    """Recompute each layer's activations in the backward pass."""
    threads: int | None = None
    """CPU threads of each rank; default: the machine's cores shared out among its ranks."""
    seed: int = 0
    """Seeds each rank's generators (models here run without dropout; nothing else draws)."""
    collective_timeout_seconds: float = 1800.0
    """A collective that takes longer fails: a rank is stuck or unreachable."""

    @classmethod
    def from_spec(cls, spec: JobSpec) -> TrainConfig:
        """The settings that a job's spec asks for."""
        return cls(
            vendor=spec.accelerator.vendor,
            tokens_per_micro_batch=spec.trainer.tokens_per_micro_batch,
            logprob_chunk_tokens=spec.trainer.logprob_chunk_tokens,
            activation_checkpointing=spec.trainer.activation_checkpointing,
            threads=spec.trainer.threads,
            seed=spec.seed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """AdamW and the gradient clip; the learning rate comes with each step."""

    weight_decay: float = 0.01
    grad_clip: float = 1.0
    """Largest global norm of an update's gradient."""
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8


@dataclass(frozen=True, slots=True)
class TokenizedExample:
    """One tokenised conversation."""

    ids: Items[int]
    mask: Items[int]
    """1 where the token is learned (the assistant's own); of the length of `ids`. The first token is never learned:
    nothing predicts it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSequence:
    """One kept rollout with its advantage."""

    prompt_ids: Items[int]
    response_ids: Items[int]
    mask: Items[int]
    """1 where the model sampled the token, 0 for tool output; of the length of `response_ids`."""
    engine_logprobs: Items[float]
    """Log-probabilities that the engine reported; 0 where masked; of the length of `response_ids`."""
    advantage: float


@dataclass(frozen=True, slots=True)
class TrainState:
    """What a checkpoint was written with."""

    step: int
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """How a GRPO update computes its loss (eq. 6)."""

    clip_low: float
    clip_high: float
    temperature: float
    correction_cap: float | None
    """Cap of the truncated importance correction; None: off."""


@dataclass(slots=True)
class MetricTally:
    """What one rank measured: parts to be added up over ranks and updates, and parts to be maximised."""

    sums: dict[str, float] = field(default_factory=dict)
    maxima: dict[str, float] = field(default_factory=dict)

    def add(self, other: MetricTally) -> None:
        """Merge what another micro-batch, update or rank measured."""
        for name, value in other.sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
        for name, value in other.maxima.items():
            self.maxima[name] = max(self.maxima.get(name, value), value)
