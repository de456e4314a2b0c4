"""The data that the orchestrator and the ranks exchange: settings, sequences, metrics, checkpoint state.

Plain dataclasses without torch: the orchestrator creates them, Ray transfers them to the ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rstar2_train.capacity.layout import Layout
from rstar2_train.capacity.number_format import computed_formats, has_float32_versions, requested_format
from rstar2_train.weights.probe import TOLERANCE

if TYPE_CHECKING:
    from rstar2_train.api.job import JobSpec
    from rstar2_train.api.lora import LoRASpec
    from rstar2_train.api.roles import NumberFormat, Sharding, Vendor
    from rstar2_train.weights.adapter_folder import AdapterIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """Settings of the ranks of a stage."""

    vendor: Vendor = "None"
    """None: CPU, gloo. Else: the rank's GPU, NCCL or RCCL."""
    dtype: NumberFormat = "Float32"
    """Number format of forward and backward, over float32 master weights. Auto: bfloat16, on a CPU only if it has
    instructions for it."""
    tokens_per_micro_batch: int | None = None
    """Largest number of tokens per forward pass, padding included; a longer sequence has its own pass. None: derived
    from the free memory."""
    logprob_chunk_tokens: int = 2048
    """Rows of vocabulary-wide logits in memory at the same time."""
    activation_checkpointing: bool | None = True
    """Recompute each layer's activations in the backward pass; None: of as few layers as the free memory requires."""
    packed: bool = False
    """Put the sequences of a micro-batch one after another, without padding."""
    compiled: bool = False
    """Compile each layer."""
    sharding: Sharding = "Auto"
    """Whether a copy of weights and optimiser is sharded over all ranks, or over those of a host."""
    offload: bool = False
    """Keep weights, also of a frozen base, gradients and moments in host memory between their uses."""
    threads: int | None = None
    """CPU threads per rank; default: the machine's cores divided by its ranks."""
    seed: int = 0
    """Seed of each rank's generators. Models run without dropout, so no code draws from them."""
    collective_timeout_seconds: float = 1800.0
    """Timeout of a collective: after it, a rank is stuck or unreachable."""

    longest_sequence: int = 0
    """Tokens of the longest sequence of the stage; 0: unknown. The layout leaves memory for it."""
    publishes_changes: bool = False
    """Whether the ranks keep the weights published last (Delta, Collective). The layout leaves memory for them."""
    float32_versions: bool = False
    """Whether weight versions are float32, and not in the format of config.json."""
    computed_formats: frozenset[str] = frozenset({"float32"})
    """Formats in which engines and ranks compute, by their name in config.json."""
    reference: Path | None = None
    """Model folder of the reference policy: the teacher, or that of grpo.referenceKl; None: none."""
    lora: LoRASpec | None = None
    """The adapter to train in place of the model; None: train the model."""

    def probe_tolerance(self, version_dtype: str) -> float:
        """Return the tolerance of a probe, in nats, for versions of this number format."""
        return max(TOLERANCE[dtype] for dtype in {version_dtype, *self.computed_formats})

    def reference_is_base(self, model_dir: Path) -> bool:
        """Return whether the reference is the base of the adapter on a model folder: it needs no second copy."""
        return self.lora is not None and self.reference is not None and self.reference.resolve() == model_dir.resolve()

    @classmethod
    def from_spec(
        cls,
        spec: JobSpec,
        *,
        longest_sequence: int = 0,
        publishes_changes: bool = False,
        reference: Path | None = None,
        lora: LoRASpec | None = None,
    ) -> TrainConfig:
        """Return the settings of a job's spec."""
        trainer, accelerated = spec.trainer, spec.accelerator.vendor != "None"
        return cls(
            vendor=spec.accelerator.vendor,
            dtype=requested_format(spec),
            tokens_per_micro_batch=trainer.tokens_per_micro_batch,
            logprob_chunk_tokens=trainer.logprob_chunk_tokens,
            activation_checkpointing=trainer.recomputes,
            packed=accelerated if trainer.packing is None else trainer.packing,
            compiled=accelerated if trainer.compile is None else trainer.compile,
            sharding=trainer.sharding,
            offload=trainer.offload,
            threads=trainer.threads,
            seed=spec.seed,
            longest_sequence=longest_sequence,
            publishes_changes=publishes_changes,
            float32_versions=has_float32_versions(spec),
            computed_formats=computed_formats(spec),
            reference=reference,
            lora=lora,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """AdamW and the gradient clip; each step passes its learning rate."""

    weight_decay: float = 0.01
    grad_clip: float = 1.0
    """Largest global norm of the gradient of an update."""
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """How the ranks compute the model that they loaded."""

    layout: Layout
    attention: str
    """How attention runs, and why not faster."""
    compiled: bool
    """Whether the layers are compiled."""
    family_difference: float | None
    """Largest difference of a log-probability of a small model of the same class to transformers, in nats; None: no
    small model of this class can be built."""
    difference: float
    """Mean difference of the loaded model to its own forward pass."""
    adapter: AdapterIdentity | None = None
    """The adapter that is trained in place of the model."""


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """One sequence that the trainer reads: a conversation, or a rollout with its advantage. Arrays have its length."""

    ids: NDArray[np.int32]
    """Token ids, of the prompt too."""
    mask: NDArray[np.bool_]
    """Whether each token is trained: those of the assistant, or those that the model sampled. No position predicts the
    first token, so it is never trained."""
    advantage: float = 0.0
    """Eq. 7, of the rollout."""
    engine_logprobs: NDArray[np.float32] | None = None
    """Log-probabilities that the engine reported, 0 for masked tokens; None: no engine sampled the tokens."""
    staleness: NDArray[np.int32] | None = None
    """Number of updates between the weights that sampled each token and those that it trains, 0 for masked tokens.
    None: all are 0."""
    reference_logprobs: NDArray[np.float32] | None = None
    """Log-probabilities under a teacher behind an endpoint, 0 for the first token; None: the ranks hold the
    reference policy, if there is one."""
    routes: bytes | None = None
    """Experts that the engine chose for the first tokens, all but those after the last sampled token (`RouteFormat`);
    None: no engine reported them."""

    def __post_init__(self) -> None:
        for name in ("mask", "engine_logprobs", "staleness", "reference_logprobs"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.ids):
                raise ValueError(f"a sequence has {len(self.ids)} tokens, but {name} has {len(values)}")


@dataclass(frozen=True, slots=True)
class TrainState:
    """The step and the extra values of a checkpoint."""

    step: int
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class MetricTally:
    """Metrics of one rank: parts to sum over ranks and updates, and parts to maximise."""

    sums: dict[str, float] = field(default_factory=dict)
    maxima: dict[str, float] = field(default_factory=dict)
    gaps: list[float] = field(default_factory=list)
    """Histogram of the gap between trainer and engine (`grpo_roc.loss.GAP_EDGES`), to sum; empty: no values."""

    def add(self, other: MetricTally) -> None:
        """Merge the metrics of another micro-batch, update or rank."""
        for name, value in other.sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
        for name, value in other.maxima.items():
            self.maxima[name] = max(self.maxima.get(name, value), value)
        if other.gaps:
            own = self.gaps or [0.0] * len(other.gaps)
            self.gaps = [mine + theirs for mine, theirs in zip(own, other.gaps, strict=True)]
