"""The comparison of vLLM's buffers with an adapter's file, on buffers as vLLM fills them."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from rstar2_train.inference.adapter_buffers import compare  # noqa: E402
from rstar2_train.weights.adapter_folder import tensor_name  # noqa: E402
from tests.support.adapters import Tensors, publish  # noqa: E402

RANK, MOST, SCALE = 8, 16, 2.0
ROWS = {"q_proj": 6, "k_proj": 4, "o_proj": 5}
ATTENTION = "model.layers.0.self_attn."


@dataclass
class Layer:
    """A linear layer of vLLM with slots for adapters."""

    parts: list[str]
    tp_size: int = 1
    rank_of_worker: int = 0
    lora_a_stacked: list = field(default_factory=list)
    lora_b_stacked: list = field(default_factory=list)

    def slice_lora_a(self, a):
        return a

    def slice_lora_b(self, b):
        def cut(part):
            size = part.shape[0] // self.tp_size
            return part[size * self.rank_of_worker :][:size]

        return [None if part is None else cut(part) for part in b] if isinstance(b, list) else cut(b)


class Manager:
    """vLLM's manager with an adapter in its second slot: a fused layer and a plain one."""

    def __init__(self, tensors: Tensors, *, workers: int = 1, scale: float = SCALE, dtype=torch.float32) -> None:
        self.lora_index_to_id = [None, 7]
        self.packed_modules = {ATTENTION + "qkv_proj": [ATTENTION + name for name in ("q_proj", "k_proj")]}
        self.modules = {
            ATTENTION + "qkv_proj": Layer(["q_proj", "k_proj"], workers),
            ATTENTION + "o_proj": Layer(["o_proj"], workers),
            "model.layers.0.mlp.up_proj": Layer(["up_proj"], workers),
        }
        for layer in self.modules.values():
            for name in layer.parts:
                rows = ROWS.get(name, 3) // workers
                a, b = torch.zeros(2, 1, MOST, 10, dtype=dtype), torch.zeros(2, 1, rows, MOST, dtype=dtype)
                if (matrix := tensors.get(tensor_name(ATTENTION + name, "lora_A"))) is not None:
                    a[1, 0, :RANK] = torch.from_numpy(matrix).to(dtype)
                    whole = torch.from_numpy(tensors[tensor_name(ATTENTION + name, "lora_B")])
                    b[1, 0, :, :RANK] = whole[:rows].to(dtype) * scale
                layer.lora_a_stacked.append(a)
                layer.lora_b_stacked.append(b)


def adapter(*names: str) -> Tensors:
    draw = torch.Generator().manual_seed(0)
    return {
        tensor_name(ATTENTION + name, matrix): torch.randn(*shape, generator=draw).numpy()
        for name in names
        for matrix, shape in (("lora_A", (RANK, 10)), ("lora_B", (ROWS[name], RANK)))
    }


def folder(tmp_path: Path, tensors: Tensors) -> Path:
    return Path(publish(tmp_path, tensors, base=tmp_path, version="v", rank=RANK, alpha=16).folder)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("names", [("q_proj", "k_proj", "o_proj"), ("q_proj",), ("k_proj", "o_proj")])
def test_equal_buffers_return_the_bound_layers(tmp_path: Path, names: tuple[str, ...], dtype, workers: int) -> None:
    """Fused layers with some or all parts, a rank below the largest, 16-bit buffers, and tensor parallelism."""
    tensors = adapter(*names)
    if workers == 2 and "o_proj" in names:
        tensors = adapter(*(name for name in names if name != "o_proj"))  # 5 rows do not divide
    problem, bound = compare(Manager(tensors, workers=workers, dtype=dtype), 7, folder(tmp_path, tensors), scale=SCALE)
    assert problem == ""
    assert {tensor_name(layer, "lora_A") for layer in bound} == {name for name in tensors if "lora_A" in name}


def test_wrong_buffers_are_found(tmp_path: Path) -> None:
    """Another scale, one changed element, values of another version, values outside the rank, an inactive adapter."""
    tensors = adapter("q_proj", "o_proj")
    path = folder(tmp_path, tensors)
    assert "another B" in compare(Manager(tensors, scale=1.0), 7, path, scale=SCALE)[0]
    for at in ((1, 0, 0, 0), (1, 0, 0, MOST - 1)):
        manager = Manager(tensors)
        manager.modules[ATTENTION + "o_proj"].lora_b_stacked[0][at] += 1e-6
        assert "buffer of model.layers.0.self_attn.o_proj has another B" in compare(manager, 7, path, scale=SCALE)[0]
    changed = {name: tensor + 1 for name, tensor in tensors.items()}
    assert "another A" in compare(Manager(changed), 7, path, scale=SCALE)[0]
    assert "has not activated adapter 8" in compare(Manager(tensors), 8, path, scale=SCALE)[0]


def test_unbound_layer_is_not_returned(tmp_path: Path) -> None:
    """A layer of the file that vLLM's model lacks is not among the bound ones."""
    tensors = adapter("q_proj", "o_proj")
    manager = Manager(tensors)
    del manager.modules[ATTENTION + "o_proj"]
    assert compare(manager, 7, folder(tmp_path, tensors), scale=SCALE) == ("", [ATTENTION + "q_proj"])
