"""The choice of a layout by the memory model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rstar2_train.capacity.layout import USABLE, Layout, Machine, choose_layout, layout_bytes
from rstar2_train.capacity.model_shape import read_shape

SHAPE = read_shape("hf://Qwen/Qwen3-14B")
GPUS = Machine(ranks=24, ranks_per_host=8, memory=190e9, value_bytes=2, accelerated=True)


def choose(machine: Machine = GPUS, **changes: Any) -> Layout:
    settings: dict[str, Any] = {"tokens": None, "checkpointing": None, "sharding": "Auto", "offload": False}
    return choose_layout(SHAPE, machine, chunk=2048, **(settings | changes))


def machine(**changes: Any) -> Machine:
    return replace(GPUS, **changes)


def test_choose_layout_shards_within_a_host() -> None:
    """Three hosts of MI300X hold a copy of 14B each, and sum the gradients once per update."""
    layout = choose()
    assert layout.shards == 8
    assert layout.reduce_once
    assert layout.tokens > 16_384


@pytest.mark.parametrize("memory", [60e9, 80e9, 140e9, 190e9])
@pytest.mark.parametrize("ranks", [8, 24])
def test_choose_layout_uses_the_memory_and_no_more(memory: float, ranks: int) -> None:
    """One more unchecked layer would not fit; with none unchecked, the layout is the smallest."""
    layout = choose(machine(memory=memory, ranks=ranks))

    def share(unchecked: int) -> float:
        changed = Layout(
            ranks=ranks, shards=layout.shards, tokens=layout.tokens, unchecked=unchecked, reduce_once=layout.reduce_once
        )  # fmt: skip
        return layout_bytes(SHAPE, changed, value_bytes=2, chunk=2048, accelerated=True) / memory

    assert share(layout.unchecked) <= USABLE or layout.unchecked == 0
    assert layout.unchecked == SHAPE.layers or share(layout.unchecked + 1) > USABLE


def test_choose_layout_follows_the_settings() -> None:
    """Fields of the manifest override the choice."""
    layout = choose(tokens=2048, checkpointing=False, sharding="Full", offload=True)
    assert (layout.tokens, layout.unchecked, layout.shards, layout.offload) == (2048, SHAPE.layers, 24, True)
    assert choose(checkpointing=True).unchecked == 0


def test_choose_layout_offload_leaves_memory_for_activations() -> None:
    """With weights and moments on the host, a small device keeps more layers. The memory of a CPU is the host's."""
    small = machine(memory=60e9, ranks=8)
    assert choose(small, offload=True, tokens=16_384).unchecked > choose(small, tokens=16_384).unchecked
    cpu = machine(memory=60e9, ranks=8, accelerated=False)
    assert choose(cpu, offload=True, tokens=16_384) == replace(choose(cpu, tokens=16_384), offload=True)


def test_choose_layout_keeps_the_order_of_sums_on_the_cpu() -> None:
    """On the CPU, memory changes neither micro-batches nor reductions."""
    layout = choose(machine(value_bytes=4, accelerated=False, memory=10e12))
    assert layout == Layout(ranks=24, shards=24, tokens=16_384, unchecked=SHAPE.layers)


def test_choose_layout_leaves_memory_for_published_weights() -> None:
    """With Delta fewer layers keep their activations, and the step fits with the weights published last."""
    small = machine(memory=80e9, ranks=8)
    folder, delta = choose(small, tokens=16_384), choose(small, tokens=16_384, published=True)
    assert delta.unchecked < folder.unchecked
    assert layout_bytes(SHAPE, delta, value_bytes=2, chunk=2048, accelerated=True) <= USABLE * 80e9


def test_choose_layout_per_host_needs_equal_hosts() -> None:
    """Hosts with different numbers of ranks cannot hold a copy each."""
    with pytest.raises(ValueError, match="PerHost needs the same number"):
        choose(machine(ranks_per_host=None), sharding="PerHost")
    assert choose(machine(ranks_per_host=None)).shards == 24


def test_choose_layout_leaves_memory_for_the_longest_sequence() -> None:
    """A sequence that exceeds a micro-batch is one of its own: fewer layers keep their activations, and it fits."""
    short, long = choose(tokens=20_480), choose(tokens=20_480, longest=32_768)
    assert long.unchecked < short.unchecked
    assert (
        layout_bytes(SHAPE, replace(long, tokens=32_768), value_bytes=2, chunk=2048, accelerated=True) <= USABLE * 190e9
    )
