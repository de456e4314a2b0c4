"""Chooses how a training step is distributed over ranks and memory, by the memory model. Pure, without torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rstar2_train.capacity.memory import TrainerStep, trainer_memory
from rstar2_train.capacity.model_shape import AdapterShape, ModelShape

if TYPE_CHECKING:
    from rstar2_train.api.roles import Sharding

DEVICE_SHARE = "RSTAR2_DEVICE_SHARE"
"""Variable with the share of the device's memory for the trainer, if an engine has the rest."""
USABLE = 0.9
"""Share of the free memory that a layout may use; the rest is for fragmentation and libraries."""
CHECKPOINTED = 0.6
"""Share that a step with all layers checkpointed may use: the rest is for layers that keep their activations."""
DEFAULT_TOKENS = 16_384
LARGEST_TOKENS = 40_960
"""Bounds of a derived micro-batch: the matrix products are efficient by then, and bins of 12K rollouts full."""
TOKENS_STEP = 4096
"""Difference between two sizes of a derived micro-batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a step is distributed over ranks and memory."""

    ranks: int
    shards: int
    """Ranks that hold one copy of weights and optimiser together; there are `ranks` / `shards` copies."""
    tokens: int
    """Largest number of tokens of a micro-batch."""
    unchecked: int
    """Layers that keep their activations; the others are checkpointed: computed again in the backward pass."""
    reduce_once: bool = False
    """Whether gradients are summed over ranks once per update; each rank holds whole gradients until then."""
    offload: bool = False
    """Whether weights, also of a frozen base, gradients and moments are in host memory between their uses."""
    published: bool = False
    """Whether the ranks keep the weights published last, as the base of the next changes (Delta, Collective)."""
    reference: ModelShape | None = None
    """The reference policy that the ranks hold too: that of grpo.referenceKl, or a teacher."""
    adapter: AdapterShape | None = None
    """The adapter that is trained in place of the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The ranks of a stage and their devices."""

    ranks: int
    ranks_per_host: int | None
    """Ranks on each host; None if the hosts have different numbers."""
    memory: float
    """Free bytes of the device of the rank that has the least."""
    value_bytes: int
    """Bytes per value of forward and backward: 2 (bfloat16) or 4 (float32)."""
    accelerated: bool
    """Whether the devices are no CPUs."""


def layout_bytes(shape: ModelShape, layout: Layout, *, value_bytes: int, chunk: int, accelerated: bool) -> float:
    """Return the bytes of one rank's device at the peak of a step."""
    step = step_of(shape, layout, value_bytes=value_bytes, chunk=chunk, accelerated=accelerated)
    return trainer_memory(shape, step).total


def step_of(shape: ModelShape, layout: Layout, *, value_bytes: int, chunk: int, accelerated: bool) -> TrainerStep:
    """Return the settings of a step with a layout. Its `ranks` are those of one copy of the weights.

    On the CPU the snapshot of a checkpoint is in the memory of the step, and so are the shards with `offload`.
    """
    return TrainerStep(
        ranks=layout.shards,
        tokens=layout.tokens,
        chunk=chunk,
        checkpointed_layers=shape.layers - layout.unchecked,
        value_bytes=value_bytes,
        reduce_once=layout.reduce_once,
        offload=layout.offload and accelerated,
        published=layout.published,
        reference=layout.reference,
        adapter=layout.adapter,
        snapshot_on_device=not accelerated,
    )


def choose_layout(
    shape: ModelShape,
    machine: Machine,
    *,
    chunk: int,
    tokens: int | None,
    checkpointing: bool | None,
    sharding: Sharding,
    offload: bool,
    longest: int = 0,
    published: bool = False,
    reference: ModelShape | None = None,
    adapter: AdapterShape | None = None,
) -> Layout:
    """Return the layout that uses the memory best.

    In this order: shards within a host if a copy fits there, the micro-batch, one sum of the gradients per update,
    then as many layers without checkpointing as fit. On the CPU only the last choice is made from memory: the others
    would change the order of additions.

    Args:
        shape: the model.
        machine: ranks and memory.
        chunk: tokens whose logits are in memory at the same time.
        tokens: tokens of a micro-batch; None: derived.
        checkpointing: True: all layers, False: none, None: derived.
        sharding: Full: over all ranks. PerHost: within each host. Auto: PerHost on accelerators if it fits.
        offload: as in Layout.
        longest: tokens of the longest sequence; one that exceeds a micro-batch is a micro-batch of its own.
        published: as in Layout.
        reference: as in Layout.
        adapter: as in Layout.

    Raises:
        ValueError: for PerHost on hosts with different numbers of ranks.
    """

    def share(layout: Layout) -> float:
        largest = replace(layout, tokens=max(layout.tokens, longest))
        size, accelerated = machine.value_bytes, machine.accelerated
        return layout_bytes(shape, largest, value_bytes=size, chunk=chunk, accelerated=accelerated) / machine.memory

    def fitting(layouts: Iterable[Layout], limit: float) -> list[Layout]:
        return [layout for layout in layouts if share(layout) <= limit]

    layout = Layout(
        ranks=machine.ranks,
        shards=machine.ranks,
        tokens=tokens or DEFAULT_TOKENS,
        unchecked=shape.layers if checkpointing is False else 0,
        offload=offload,
        published=published,
        reference=reference,
        adapter=adapter,
    )
    if sharding == "PerHost" and machine.ranks_per_host is None:
        raise ValueError("spec.trainer.sharding: PerHost needs the same number of ranks on each host: set it to Full")
    if sharding != "Full" and machine.ranks_per_host is not None and machine.ranks_per_host < machine.ranks:
        within = replace(layout, shards=machine.ranks_per_host)
        if sharding == "PerHost" or (machine.accelerated and share(within) <= CHECKPOINTED):
            layout = within
    if tokens is None and machine.accelerated:
        sizes = range(DEFAULT_TOKENS, LARGEST_TOKENS + 1, TOKENS_STEP)
        layout = [layout, *fitting((replace(layout, tokens=size) for size in sizes), CHECKPOINTED)][-1]
    once = replace(layout, reduce_once=True)
    if layout.shards < layout.ranks or (machine.accelerated and machine.ranks > 1):
        layout = [layout, *fitting([once], USABLE)][-1]
    if checkpointing is None:
        kept = (replace(layout, unchecked=count) for count in range(1, shape.layers + 1))
        layout = [layout, *fitting(kept, USABLE)][-1]
    return layout
