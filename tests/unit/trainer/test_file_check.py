"""Folders that the trainer would load as another model, or not at all, are refused before a job starts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from rstar2_train.capacity.config_file import read_config
from rstar2_train.capacity.model_support import UnsupportedModel, find_obstacles
from rstar2_train.trainer.file_check import check_model_files
from rstar2_train.trainer.model_class import refused
from rstar2_train.trainer.self_check import check_folder
from tests.support.model_families import FAMILIES, write_family

Tensors = dict[str, torch.Tensor]


def edit(folder: Path, **fields: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def change(folder: Path, edit_tensors: Callable[[Tensors], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    edit_tensors(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def untie(folder: Path) -> None:
    edit(folder, tie_word_embeddings=True)


def drop_head(folder: Path) -> None:
    change(folder, lambda tensors: tensors.pop("lm_head.weight"))


FAULTS: dict[str, Callable[[Path], None]] = {
    r"lm_head.weight has other values than model.embed_tokens.weight": untie,
    r"missing \['lm_head.weight'\]": drop_head,
    r"embed_tokens.weight has shape \[96, 32\], but config.json requires \[128, 32\]": lambda folder: edit(
        folder, vocab_size=128
    ),
    r"has no config of model_type 'unheard-of'": lambda folder: edit(folder, model_type="unheard-of"),
    r"dtype: 'bfloat16', but .* is stored as float32": lambda folder: edit(folder, dtype="bfloat16"),
    r"config.json cannot be used: layer_types: 3": lambda folder: edit(folder, layer_types=3),
}


@pytest.mark.parametrize("message", FAULTS)
def test_check_model_files_names_the_fault(message: str, tmp_path: Path) -> None:
    """The class of config.json and the tensors of the files must agree."""
    write_family("Llama", tmp_path)
    check_model_files(tmp_path, written=True)
    FAULTS[message](tmp_path)
    with pytest.raises(UnsupportedModel, match=message):
        check_model_files(tmp_path, written=True)


@pytest.mark.parametrize("family", ["Qwen3", "Granite-MoE", "GPT-NeoX", "Qwen2-MoE, some dense layers"])
def test_check_model_files_accepts_families(family: str, tmp_path: Path) -> None:
    """Tied tensors, experts and other names in the files."""
    write_family(family, tmp_path)
    check_model_files(tmp_path, written=True)


def test_tied_copy_with_the_same_values_is_accepted(tmp_path: Path) -> None:
    """Old folders store the output layer twice."""
    write_family("Qwen3", tmp_path)
    assert FAMILIES["Qwen3"]().tie_word_embeddings
    change(tmp_path, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}))
    check_model_files(tmp_path, written=True)


SMALL = {"vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            transformers.FalconConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4),
            "a fixed set of attention functions, without that of the trainer: use another model",
        ),
        (transformers.OPTConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4), "cannot be sharded: use"),
        (transformers.ApertusConfig(), "has them as buffers, which the trainer does not read: use another model"),
        (transformers.OlmoHybridConfig(), "transformers computes parameters from them, in a way .*: use another model"),
        (transformers.FalconH1Config(lm_head_multiplier=1.0), "compute the buffer mup_vector .*: use another model"),
        (transformers.GPT2Config(**SMALL), "GPT2Config cannot be built, so it could not be measured: ValueError: its"),
        (transformers.XGLMConfig(d_model=32, ffn_dim=48, num_layers=2, attention_heads=4), "could not be measured"),
        (transformers.MambaConfig(hidden_size=32, num_hidden_layers=2), "could not be measured"),
    ],
    ids=lambda value: getattr(value, "model_type", ""),
)
def test_class_that_cannot_be_measured_is_refused(config: Any, message: str, tmp_path: Path) -> None:
    """A class without a small model is not taken for an exact one; any error of a class is a refusal."""
    config.save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match=message):
        check_folder(tmp_path, packed=False)


def test_refused_has_the_reason_of_a_later_line() -> None:
    """The checks of a config name the field on their second line."""
    reason = "m cannot be built: ValueError: Validation error: 'n' is 3: use another model"
    with pytest.raises(UnsupportedModel, match=f"^{reason}$"), refused("m cannot be built"):
        raise ValueError("Validation error:\n    'n' is 3.")


KINDS = ["linear_attention", "linear_attention", "full_attention"] * 2
SIZES = {"vocab_size": 500, "hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 8}
MAMBA = {"mamba_n_heads": 16, "mamba_d_head": 32}
HYBRIDS = [
    ("qwen3_5_text", {"head_dim": 32, "layer_types": KINDS}),
    ("granitemoehybrid", {"num_local_experts": 0, "layer_types": KINDS, **MAMBA}),
    ("bamba", {"attn_layer_indices": [2, 5], **MAMBA}),
    ("lfm2", {"full_attn_idxs": [2, 5]}),
]


@pytest.mark.parametrize(("kind", "fields"), HYBRIDS)
def test_hybrid_is_exact_padded_and_refused_packed(kind: str, fields: dict[str, Any], tmp_path: Path) -> None:
    """Linear attention and convolutions pass state across the borders of packed sequences."""
    transformers.AutoConfig.for_model(kind, **SIZES, **fields).save_pretrained(tmp_path)
    assert check_folder(tmp_path, packed=False).largest < 1e-4
    with pytest.raises(UnsupportedModel, match=r"(cannot be packed|attend to each other).* set spec.trainer.packing"):
        check_folder(tmp_path, packed=True)


def test_mixture_under_another_name_is_refused(tmp_path: Path) -> None:
    """ERNIE 4.5 MoE counts its experts in a field of its own, and has them as parameters."""
    config = transformers.AutoConfig.for_model(
        "ernie4_5_moe",
        **{"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "moe_k": 2},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "moe_num_experts": 4, "moe_intermediate_size": 24},
    )
    config.save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match=r"moe_\w+: mixtures of experts of model_type 'ernie4_5_moe'"):
        check_folder(tmp_path, packed=False)


def quantise(folder: Path) -> None:
    """Write the experts of a GPT-OSS as random MXFP4: blocks of 32 numbers of 4 bits, and their exponents."""

    def edit_experts(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.endswith("_proj")]:
            experts, inputs, outputs = tensors.pop(name).shape
            shape = (experts, outputs, inputs // 32)
            tensors[f"{name}_blocks"] = torch.randint(0, 256, (*shape, 16), dtype=torch.uint8)
            tensors[f"{name}_scales"] = torch.randint(120, 126, shape, dtype=torch.uint8)

    change(folder, edit_experts)
    unquantised = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    edit(folder, quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": unquantised})


def test_mxfp4_is_refused_and_its_remedy_is_accepted(tmp_path: Path) -> None:
    """GPT-OSS is published in MXFP4 only: the call that the refusal names writes a folder that the trainer loads."""
    source, target = tmp_path / "quantised", tmp_path / "plain"
    write_family("GPT-OSS", source, hidden_size=64, intermediate_size=64, head_dim=16)
    quantise(source)
    (refusal,) = find_obstacles(read_config(source), packed=True)
    assert "Mxfp4Config(dequantize=True)), then save_pretrained(OTHER, save_original_format=False)" in refusal
    config = transformers.Mxfp4Config(dequantize=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(source, quantization_config=config)
    model.save_pretrained(target, save_original_format=False)
    check_model_files(target, written=True)
    assert list(find_obstacles(read_config(target), packed=True)) == []
