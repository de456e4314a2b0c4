"""Tiny random models of the real classes of transformers, with what is special in each family."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM

VOCABULARY = 96
WINDOW = 8
_BASE: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    # Large enough that a difference of one operation is far above rounding.
    "initializer_range": 0.15,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_ROPE: Mapping[str, Mapping[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 10_000.0},
    "yarn of GPT-OSS": {
        "rope_type": "yarn",
        "factor": 4.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 64,
        "rope_theta": 150_000.0,
    },
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
        "rope_theta": 500_000.0,
    },
}


def _config(name: str, **fields: Any) -> Callable[..., Any]:
    return lambda **others: getattr(transformers, f"{name}Config")(**{**_BASE, **fields, **others})


_MIXED = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": WINDOW}
_EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_GRANITE = {
    "logits_scaling": 8.0,
    "embedding_multiplier": 2.0,
    "residual_multiplier": 0.5,
    "attention_multiplier": 0.3,
}
FAMILIES: Mapping[str, Callable[..., Any]] = {
    "Llama": _config("Llama"),
    "Llama 3": _config("Llama", rope_parameters=_ROPE["llama3"]),
    "Llama, linear rotary": _config("Llama", rope_parameters=_ROPE["linear"]),
    "Qwen2.5": _config("Qwen2", tie_word_embeddings=True),
    "Qwen2.5, sliding window": _config("Qwen2", use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1),
    "Qwen3": _config("Qwen3", head_dim=8, tie_word_embeddings=True),
    "Qwen3, YaRN": _config("Qwen3", head_dim=8, rope_parameters=_ROPE["yarn"]),
    "Qwen3-MoE": _config("Qwen3Moe", head_dim=8, norm_topk_prob=True, **_EXPERTS),
    "Qwen3-MoE, some dense layers": _config(
        "Qwen3Moe", head_dim=8, num_hidden_layers=3, mlp_only_layers=[1], **_EXPERTS
    ),
    "OLMoE": _config("Olmoe", num_experts=6, num_experts_per_tok=2, tie_word_embeddings=False),
    "Mixtral": _config("Mixtral", num_local_experts=6, num_experts_per_tok=2),
    "Qwen2-MoE": _config("Qwen2Moe", shared_expert_intermediate_size=40, **_EXPERTS),
    "Qwen2-MoE, some dense layers": _config(
        "Qwen2Moe", shared_expert_intermediate_size=40, num_hidden_layers=3, mlp_only_layers=[1], **_EXPERTS
    ),
    "Granite-MoE": _config(
        "GraniteMoe", num_local_experts=6, num_experts_per_tok=2, tie_word_embeddings=True, **_GRANITE
    ),
    "GPT-OSS": _config(
        "GptOss",
        head_dim=8,
        num_local_experts=6,
        num_experts_per_tok=2,
        swiglu_limit=0.5,  # so low that it is reached
        rope_parameters=_ROPE["yarn of GPT-OSS"],
        **_MIXED,
    ),
    "SmolLM3": _config("SmolLM3", no_rope_layer_interval=2),
    "Mistral": _config("Mistral", head_dim=8, sliding_window=None),
    "Mistral, sliding window": _config("Mistral", head_dim=8, sliding_window=WINDOW),
    "Ministral": _config("Ministral", head_dim=8, **_MIXED),
    "Gemma": _config("Gemma", head_dim=8),
    "Gemma 2": _config(
        "Gemma2",
        head_dim=8,
        query_pre_attn_scalar=8,
        final_logit_softcapping=5.0,
        attn_logit_softcapping=2.0,
        **_MIXED,
    ),
    "Gemma 3": _config("Gemma3Text", head_dim=8, query_pre_attn_scalar=8, **_MIXED),
    "Granite 3": _config("Granite", **_GRANITE),
    "Granite 4, dense": _config(
        "GraniteMoeHybrid",
        layer_types=["attention", "attention"],
        num_local_experts=0,
        num_experts_per_tok=0,
        shared_intermediate_size=48,
        mamba_n_heads=8,
        **_GRANITE,
    ),
    "Phi": _config("Phi"),
    "Phi-3 and 4": _config("Phi3", sliding_window=None),
    "Phi-3, sliding window": _config("Phi3", sliding_window=WINDOW),
    "OLMo": _config("Olmo"),
    "OLMo 2": _config("Olmo2"),
    "OLMo 3": _config("Olmo3", **_MIXED),
    "Cohere": _config("Cohere", logit_scale=0.0625),
    "Cohere2": _config("Cohere2", logit_scale=0.0625, head_dim=8, **_MIXED),
    "GLM-4": _config("Glm4", head_dim=8),
    "GPT-NeoX": _config("GPTNeoX"),
    "StarCoder2": _config("Starcoder2", sliding_window=WINDOW),
    "EXAONE 4": _config("Exaone4", **_MIXED),
    "StableLM": _config("StableLm"),
    "Nemotron": _config("Nemotron"),
    "Helium": _config("Helium", head_dim=8),
    "Seed-OSS": _config("SeedOss", head_dim=8),
    "ERNIE 4.5": _config("Ernie4_5", head_dim=8),
    "Arcee": _config("Arcee", head_dim=8),
    "HyperCLOVA X": _config("HyperCLOVAX", logits_scaling=0.5),
}

UNPACKED = frozenset({"Nemotron", "StableLM"})
"""Families whose class passes no borders of packed sequences to its attention."""


def engine_fields(name: str) -> dict[str, float]:
    """Return fields of a family with which vLLM can compute it on the CPU: heads of 32 values, experts of GPT-OSS of a
    multiple of 32, and its own limit.

    The vocabulary is a multiple of 64: vLLM pads others, and the embedding would have another hash.
    """
    config = FAMILIES[name]()
    fields: dict[str, float] = {"hidden_size": 32 * config.num_attention_heads, "vocab_size": 128}
    for field in ("head_dim", "query_pre_attn_scalar"):
        if getattr(config, field, None):
            fields[field] = 32
    if getattr(config, "swiglu_limit", None):
        fields |= {"swiglu_limit": 7.0, "intermediate_size": 64}
    return fields


def write_family(name: str, folder: Path, *, seed: int = 3, **fields: Any) -> Any:
    """Write a random model of a family, and return it. Biases are not zero, as they are in trained models.

    `fields`: of its config, in place of those of `FAMILIES`.
    """
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(FAMILIES[name](**fields), attn_implementation="eager").float().eval()
    for parameter_name, parameter in model.named_parameters():
        if "bias" in parameter_name or "norm" in parameter_name:
            torch.nn.init.normal_(parameter, mean=float("norm.weight" in parameter_name), std=0.2)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    return model
