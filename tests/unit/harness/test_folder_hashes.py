"""The hashes that an engine's parameters must have, from the names of a model folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from rstar2_train.inference.parameter_hashes import tensor_hash
from tests.support.folder_hashes import folder_hashes

EXPERTS, WIDTH, HIDDEN = 3, 4, 2
LAYER = "model.layers.0"
GENERATOR = torch.Generator().manual_seed(0)
GATE, UP = (torch.randn(EXPERTS, WIDTH, HIDDEN, generator=GENERATOR) for _ in range(2))
DOWN = torch.randn(EXPERTS, HIDDEN, WIDTH, generator=GENERATOR)
ROUTER = torch.randn(EXPERTS, HIDDEN, generator=GENERATOR)


def of_each_expert(gate: str, up: str, down: str) -> dict[str, torch.Tensor]:
    """Return the tensors of experts that each have names of their own."""
    return {
        f"experts.{number}.{name}.weight": tensor[number].contiguous()
        for number in range(EXPERTS)
        for name, tensor in ((gate, GATE), (up, UP), (down, DOWN))
    }


@pytest.mark.parametrize(
    ("block", "tensors"),
    [
        ("mlp", of_each_expert("gate_proj", "up_proj", "down_proj") | {"gate.weight": ROUTER}),
        ("block_sparse_moe", of_each_expert("w1", "w3", "w2") | {"gate.weight": ROUTER}),
        (
            "block_sparse_moe",
            {
                "input_linear.weight": torch.cat([GATE, UP], dim=1),
                "output_linear.weight": DOWN,
                "router.layer.weight": ROUTER,
            },
        ),
    ],
    ids=["Qwen3-MoE", "Mixtral", "Granite-MoE"],
)
def test_folder_hashes_of_experts(block: str, tensors: dict[str, torch.Tensor], tmp_path: Path) -> None:
    """With any names in the files, vLLM has gate and up of each expert together, and all experts in one."""
    save_file({f"{LAYER}.{block}.{name}": tensor for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    assert folder_hashes(tmp_path) == {
        f"{LAYER}.{block}.experts.w13_weight": tensor_hash([torch.cat([GATE, UP], dim=1)]),
        f"{LAYER}.{block}.experts.w2_weight": tensor_hash([DOWN]),
        f"{LAYER}.{block}.gate": tensor_hash([ROUTER]),
    }


def test_folder_hashes_of_gpt_oss(tmp_path: Path) -> None:
    """Its files have all experts in one tensor, with inputs first; vLLM has other names for its attention."""
    bias, sinks = torch.randn(EXPERTS, WIDTH, generator=GENERATOR), torch.randn(2, generator=GENERATOR)
    tensors = {"mlp.experts.gate_up_proj": GATE.mT.contiguous(), "mlp.experts.gate_up_proj_bias": bias}
    tensors |= {"mlp.experts.down_proj": DOWN.mT.contiguous(), "self_attn.sinks": sinks}
    save_file({f"{LAYER}.{name}": tensor for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    assert folder_hashes(tmp_path) == {
        f"{LAYER}.mlp.experts.w13_weight": tensor_hash([GATE]),
        f"{LAYER}.mlp.experts.w13_bias": tensor_hash([bias]),
        f"{LAYER}.mlp.experts.w2_weight": tensor_hash([DOWN]),
        f"{LAYER}.attn.sinks": tensor_hash([sinks]),
    }


def test_folder_hashes_join_the_layers_that_vllm_fuses(tmp_path: Path) -> None:
    """Queries, keys and values, their biases, and gate and up of a shared expert, are one parameter each."""
    q, k, v, o, gate, up = (torch.randn(2, HIDDEN, generator=GENERATOR) for _ in range(6))
    attention = {"q_proj": q, "k_proj": k, "v_proj": v, "o_proj": o}
    tensors = {f"{LAYER}.self_attn.{name}.weight": tensor for name, tensor in attention.items()}
    biases = {name: torch.randn(2, generator=GENERATOR) for name in ("q_proj", "k_proj", "v_proj")}
    tensors |= {f"{LAYER}.self_attn.{name}.bias": tensor for name, tensor in biases.items()}
    tensors |= {
        f"{LAYER}.mlp.shared_expert.{name}.weight": tensor for name, tensor in (("gate_proj", gate), ("up_proj", up))
    }
    save_file(tensors, tmp_path / "model.safetensors")
    assert folder_hashes(tmp_path) == {
        f"{LAYER}.self_attn.qkv_proj": tensor_hash([torch.cat([q, k, v])]),
        f"{LAYER}.self_attn.qkv_proj.bias": tensor_hash(biases.values()),
        f"{LAYER}.self_attn.o_proj": tensor_hash([o]),
        f"{LAYER}.mlp.shared_expert.gate_up_proj": tensor_hash([torch.cat([gate, up])]),
    }
