"""The memory of a trainer rank and of an engine, by arithmetic from the shape of the model. Pure, without torch.

The trainer's peak is the largest of three moments of a step, each with the optimiser's state and all gradients:

- `logits`   backward of the first chunk of logits: the inputs of all layers, the gathered embedding and projection
- `layers`   backward of the last layer: its recomputed activations and its gathered parameters
- `root`     reduction of the gradients of embedding and projection: a float32 copy of both

`bench/memory.py` compares the model with measurements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rstar2_train.capacity.model_shape import AdapterShape, ModelShape

if TYPE_CHECKING:
    from rstar2_train.capacity.adapter_slots import AdapterSlots

FLOAT32 = 4
LAYERS_GATHERED = 2
"""Layers whose parameters are gathered at the same time: the present one, and the next one that is prefetched."""
HEAD_GRADIENTS = 2
"""Float32 gradients of the output projection in memory: the sum, and that of the present chunk."""
CHUNK_COPIES = 2
"""Float32 arrays of the size of a chunk of logits in its backward pass: log-probabilities and their gradient."""
ENGINE_SHARE = 0.9
"""Share of a GPU's memory that an engine takes; vLLM's gpu-memory-utilization."""
ENGINE_OVERHEAD_BYTES = 7.4e9
"""Memory of an engine per GPU besides weights and KV cache: activations, graphs, NCCL buffers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerStep:
    """The settings of a training step that its memory depends on."""

    ranks: int
    """Ranks over which parameters, gradients and optimiser are sharded."""
    tokens: int
    """Tokens of the largest micro-batch, padding included."""
    chunk: int
    """Tokens whose logits are in memory at the same time."""
    checkpointed_layers: int
    """Layers whose activations are recomputed in the backward pass."""
    value_bytes: int
    """Bytes per value of forward and backward: 2 (bfloat16, on GPUs) or 4 (float32, on the CPU)."""
    reduce_once: bool = False
    """Whether each rank holds whole float32 gradients until the last micro-batch, and reduces them only then."""
    offload: bool = False
    """Whether all shards are in host memory: weights, also those of a frozen base, gradients and moments."""
    published: bool = False
    """Whether the ranks publish changes of the weights (Delta, Collective), and keep the weights published last."""
    reference: ModelShape | None = None
    """The reference policy that the ranks hold besides the model (referenceKl, a teacher), in the number format of
    forward and backward."""
    adapter: AdapterShape | None = None
    """The adapter that is trained in place of the model, whose weights are then frozen in the number format of forward
    and backward."""
    snapshot_on_device: bool = False
    """Whether the same memory has the copy that a checkpoint is written from: on the CPU, where it is the host's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerMemory:
    """Bytes of one rank at the peak of a step."""

    weights: float
    """Float32 master weights; with an adapter, its own and those of the base."""
    gradients: float
    """Float32 gradients of the trained parameters."""
    optimizer: float
    """Both moments of AdamW, float32."""
    gathered: float
    """Gathered parameters: embedding, projection, and the layers in progress."""
    activations: float
    """Inputs of checkpointed layers, and all activations of the others and of the layer in progress."""
    published: float
    """The weights published last, in the number format of the engines: the base of the next changes."""
    reference: float
    """The weights of the reference policy: of referenceKl, or the teacher."""
    transient: float
    """Logits, gradients before their reduction, and buffers of collectives, at the peak."""
    snapshot: float
    """The copy of weights and optimiser that a checkpoint is written from; 0 on accelerators: host memory has it."""
    offloaded: float
    """Shards in host memory instead of the device; not a part of the total."""
    moment: str
    """Moment of the peak: logits, layers or root."""

    @property
    def states(self) -> float:
        """Weights, gradients and optimiser."""
        return self.weights + self.gradients + self.optimizer

    @property
    def total(self) -> float:
        """All bytes of the device."""
        copies = self.published + self.reference + self.snapshot
        return self.states + self.gathered + self.activations + self.transient + copies


def activation_values(shape: ModelShape, *, value_bytes: int) -> float:
    """Return the bytes per token that one layer without checkpointing keeps for its backward pass.

    Two norms over the hidden states, norms over queries and keys, rotary embedding, attention, and the gated MLP. In
    bfloat16 a norm also keeps its input as float32. In a mixture each chosen expert has its own copy of the token, the
    values of its MLP, and its result before and after its weight; a shared expert keeps the values of its MLP, and its
    result before its weight.
    """
    upcast = 0 if value_bytes == FLOAT32 else FLOAT32 - value_bytes
    norms = 2 * shape.hidden * (3 * value_bytes + upcast)
    queries, keys = shape.query_width, shape.key_width
    attention = (2 * queries + 2 * keys) * value_bytes
    if shape.qk_norm:
        attention += (queries + keys) * (2 * value_bytes + upcast)
    return norms + attention + _mlp_values(shape) * value_bytes


def _mlp_values(shape: ModelShape) -> int:
    if not shape.experts:
        return 4 * shape.intermediate
    shared = 4 * shape.shared_intermediate + shape.hidden if shape.shared_intermediate else 0
    return shape.chosen_experts * (3 * shape.hidden + 4 * shape.expert_intermediate) + shape.experts + shared


def trainer_memory(shape: ModelShape, step: TrainerStep) -> TrainerMemory:
    """Return the bytes of one rank at the peak of a step with at least two micro-batches."""
    size, tokens = step.value_bytes, step.tokens
    reduced = 0 if size == FLOAT32 else FLOAT32
    hidden = tokens * shape.hidden * size
    layer = tokens * activation_values(shape, value_bytes=size)
    if step.adapter is not None:
        layer += tokens * step.adapter.layer_values * size
    kept = (shape.layers - step.checkpointed_layers) * layer + step.checkpointed_layers * hidden
    recomputed = layer - hidden if step.checkpointed_layers else 0.0
    root = shape.root_parameters * size
    in_progress = LAYERS_GATHERED * shape.layer_parameters * size
    head = HEAD_GRADIENTS * shape.embedding_parameters * FLOAT32
    chunk = min(step.chunk, tokens) * shape.vocabulary * (CHUNK_COPIES * FLOAT32 + (size if reduced else 0))
    own_layers = 2.0 * shape.layer_parameters * (size + reduced)
    own_root = shape.embedding_parameters * size
    root_gradients = shape.root_parameters * (size + FLOAT32)
    if step.adapter is not None:  # a frozen base has no gradients
        own_layers = 2 * step.adapter.parameters / shape.layers * (size + reduced)
        head = own_root = root_gradients = 0
    moments = {
        # Hidden states at the trained positions, and their gradient.
        "logits": (root, kept, 2 * hidden + head + chunk),
        "layers": (
            root + in_progress,
            kept + recomputed,
            own_root + own_layers + tokens * _mlp_values(shape) // 2 * size + 2 * hidden,
        ),
        "root": (root, hidden, root_gradients),
    }
    if (reference := step.reference) is not None:  # its forward pass precedes that of the model
        moments["frozen policy"] = (
            (reference.root_parameters + LAYERS_GATHERED * reference.layer_parameters) * size,
            tokens * activation_values(reference, value_bytes=size),
            2 * tokens * reference.hidden * size
            + min(step.chunk, tokens) * reference.vocabulary * (CHUNK_COPIES * FLOAT32 + (size if reduced else 0)),
        )
    moment, (gathered, activations, transient) = max(moments.items(), key=lambda item: sum(item[1]))
    trained = trained_parameters(shape, step.adapter)
    shards = _shard_bytes(shape, step)
    held = dict.fromkeys(shards, 0.0) if step.offload else shards
    return TrainerMemory(
        weights=held["weights"],
        gradients=held["gradients"] + (FLOAT32 * trained if step.reduce_once else 0.0),
        optimizer=held["optimizer"],
        gathered=gathered,
        activations=activations,
        published=held["published"],
        reference=held["reference"],
        transient=transient,
        snapshot=snapshot_bytes(shape, ranks=step.ranks, adapter=step.adapter) if step.snapshot_on_device else 0.0,
        offloaded=sum(shards.values()) if step.offload else 0.0,
        moment=moment,
    )


def _shard_bytes(shape: ModelShape, step: TrainerStep) -> dict[str, float]:
    """Return the bytes of the shards that a rank holds between the steps too, on its device or in host memory."""
    trained, size = FLOAT32 * trained_parameters(shape, step.adapter), step.value_bytes
    wholes = {
        "weights": trained if step.adapter is None else trained + size * shape.parameters,
        "gradients": trained,
        "optimizer": 2 * trained,
        "published": size * shape.parameters if step.published else 0,
        "reference": 0 if step.reference is None else size * step.reference.parameters,
    }
    return {name: whole / step.ranks for name, whole in wholes.items()}


def trained_parameters(shape: ModelShape, adapter: AdapterShape | None) -> int:
    """Return the parameters with gradients and moments."""
    return shape.parameters if adapter is None else adapter.parameters


def snapshot_bytes(shape: ModelShape, *, ranks: int, adapter: AdapterShape | None = None) -> float:
    """Return the bytes of a rank's copy of float32 weights and moments, from which a checkpoint is written.

    `ranks`: ranks of one copy of the weights; 1: the bytes of a checkpoint.
    """
    return 3.0 * FLOAT32 * trained_parameters(shape, adapter) / ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMemory:
    """Bytes per GPU of an engine, and its KV cache."""

    weights: float
    adapters: float
    """Slots for adapters."""
    kv_cache: float
    """Bytes of KV cache per GPU; negative if the weights do not fit."""
    kv_bytes_per_token: float
    """Bytes per GPU of the keys and values of one token."""
    kv_tokens: int
    """Tokens of KV cache of the whole engine."""
    sequence_tokens: int
    """Tokens of the longest prompt and response."""

    @property
    def slots(self) -> int:
        """Trajectories that fit with their prompt and whole budget: the admission of policy Reserve."""
        return max(0, self.kv_tokens) // self.sequence_tokens


def engine_memory(
    shape: ModelShape,
    *,
    device_bytes: float,
    tensor_parallel: int,
    sequence_tokens: int,
    value_bytes: int = 2,
    adapters: AdapterSlots | None = None,
    share: float = ENGINE_SHARE,
    overhead: float = ENGINE_OVERHEAD_BYTES,
    block: int = 16,
) -> EngineMemory:
    """Return the memory of one engine.

    Args:
        shape: the model.
        device_bytes: memory of one GPU.
        tensor_parallel: GPUs of the engine.
        sequence_tokens: tokens of the longest prompt and response.
        value_bytes: bytes per weight and per value of the KV cache.
        adapters: slots for adapters; None: the engine loads none.
        share: part of the GPU that the engine may use.
        overhead: bytes per GPU besides weights and KV cache.
        block: tokens per block of KV cache.
    """
    weights = shape.parameters * value_bytes / tensor_parallel
    slots = 0.0
    if adapters is not None:
        values = shape.slot_values(rank=adapters.rank, tensor_parallel=tensor_parallel)
        slots = adapters.count * values * value_bytes
    free = device_bytes * share - weights - slots - overhead
    # Key heads are divided among the GPUs, and copied if there are fewer than GPUs.
    per_token = shape.kv_bytes_per_token(value_bytes) / min(tensor_parallel, shape.kv_heads)
    tokens = math.floor(free / per_token / block) * block
    return EngineMemory(
        weights=weights,
        adapters=slots,
        kv_cache=free,
        kv_bytes_per_token=per_token,
        kv_tokens=tokens,
        sequence_tokens=-(-sequence_tokens // block) * block,
    )
