"""The memory model: its invariants, and its KV cache against the simulator's."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from rstar2_train.api.lora import LoRASpec
from rstar2_train.api.lora_layers import LAYER
from rstar2_train.capacity.adapter_slots import AdapterSlots
from rstar2_train.capacity.memory import TrainerStep, engine_memory, snapshot_bytes, trainer_memory
from rstar2_train.capacity.model_shape import ModelShape, read_shape

RESULTS = Path(__file__).parents[3] / "bench" / "results" / "memory.json"
STEP = TrainerStep(ranks=24, tokens=20480, chunk=2048, checkpointed_layers=40, value_bytes=2)
MODEL = read_shape("Qwen3-14B")


def test_memory_states_are_16_bytes_per_parameter() -> None:
    """Weights, gradients and both moments are float32, divided by the ranks."""
    assert trainer_memory(MODEL, STEP).states == 16 * MODEL.parameters / 24


@pytest.mark.parametrize("field", ["tokens", "chunk"])
def test_memory_grows_with_tokens_and_chunk(field: str) -> None:
    """A larger micro-batch or chunk never needs less memory."""
    sizes = [
        trainer_memory(MODEL, dataclasses.replace(STEP, **{field: value})).total
        for value in (256, 2048, 8192, 20480, 65536)
    ]
    assert sizes == sorted(sizes) and sizes[0] < sizes[-1]


def test_memory_checkpointed_layer_saves_memory() -> None:
    """Each layer that is checkpointed reduces the peak."""
    sizes = [
        trainer_memory(MODEL, dataclasses.replace(STEP, checkpointed_layers=count)).total for count in range(0, 41, 8)
    ]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] > 2 * sizes[-1]


def test_memory_counts_the_weights_published_last() -> None:
    """Delta needs 2 bytes per parameter of a copy, and nothing on the device if the weights are in host memory."""
    kept = dataclasses.replace(STEP, published=True)
    added = trainer_memory(MODEL, kept).total - trainer_memory(MODEL, STEP).total
    assert added == pytest.approx(2 * MODEL.parameters / 24)
    assert trainer_memory(MODEL, dataclasses.replace(kept, offload=True)).published == 0


def test_memory_engine_matches_simulated_hardware() -> None:
    """The KV cache of the 14B model on two MI300X is that of the simulator's hardware model."""
    hardware = json.loads((Path(__file__).parents[3] / "rstar2_train/simulation/hardware.json").read_text())
    memory = engine_memory(MODEL, device_bytes=192e9, tensor_parallel=2, sequence_tokens=10240)
    assert memory.kv_tokens == pytest.approx(hardware["qwen3-14b-mi300x-tp2"]["kv_tokens"], rel=0.01)
    assert memory.slots == memory.kv_tokens // 10240


def test_memory_engine_counts_slots_for_adapters() -> None:
    """Each slot has A and B of all linear layers, in the dtype of the weights, divided among the GPUs as vLLM does.

    Those of embedding and output projection are whole on each GPU.
    """
    sizes = {"device_bytes": 192e9, "sequence_tokens": 10240}
    for parallel in (1, 2):
        plain = engine_memory(MODEL, tensor_parallel=parallel, **sizes)
        memory = engine_memory(MODEL, tensor_parallel=parallel, adapters=AdapterSlots(rank=32, count=6), **sizes)
        assert plain.adapters == 0 and plain.kv_cache - memory.kv_cache == pytest.approx(memory.adapters)
        layers = 6 * 2 * MODEL.adapter(rank=32, modules=LAYER).parameters
        wide = 6 * 2 * 32 * 2 * (MODEL.vocabulary + MODEL.hidden)
        in_layers = memory.adapters - wide
        assert in_layers == layers if parallel == 1 else layers / 2 < in_layers < layers


def test_memory_engine_without_space_has_no_slot() -> None:
    """Weights that do not fit leave a negative cache and no slot."""
    memory = engine_memory(read_shape("Qwen2.5-72B"), device_bytes=80e9, tensor_parallel=1, sequence_tokens=8192)
    assert memory.kv_cache < 0 and memory.slots == 0


@pytest.mark.parametrize("row", json.loads(RESULTS.read_text())["rows"], ids=lambda row: row["name"])
def test_memory_model_is_near_measured_peak(row: dict[str, Any]) -> None:
    """The model is within 15 % of each measured peak (bench/results/memory.json)."""
    shape = ModelShape(**row["shape"])
    predicted = trainer_memory(shape, TrainerStep(**row["step"])).total
    assert predicted == pytest.approx(row["measured_bytes"], rel=0.15)


def test_memory_of_an_adapter_has_no_state_of_the_base() -> None:
    """Gradients and moments are those of the adapter; the base has its weights in the format of the computation."""
    shape = read_shape("hf://Qwen/Qwen3-8B")
    adapter = shape.adapter(rank=32, modules=LoRASpec().modules)
    layer = 32 * ((4096 + 4096) * 2 + (4096 + 1024) * 2 + (4096 + 12288) * 3)
    assert adapter.parameters == 36 * layer == 87_293_952
    step = TrainerStep(ranks=2, tokens=16_384, chunk=2048, checkpointed_layers=36, value_bytes=2)
    whole, low = trainer_memory(shape, step), trainer_memory(shape, dataclasses.replace(step, adapter=adapter))
    assert low.weights == (2 * shape.parameters + 4 * adapter.parameters) / 2
    assert low.gradients == 4 * adapter.parameters / 2
    assert low.optimizer == 8 * adapter.parameters / 2
    assert low.transient < whole.transient
    assert snapshot_bytes(shape, ranks=2, adapter=adapter) == 12 * adapter.parameters / 2
    offloaded = trainer_memory(shape, dataclasses.replace(step, adapter=adapter, offload=True))
    assert offloaded.states == 0 and offloaded.offloaded == low.states, "also the frozen base"
    assert offloaded.total == pytest.approx(low.total - low.states)
