"""The values of fields that a config.json does not have: those of the config classes of transformers 5. Pure.

transformers leaves out fields with common values when it saves a model. A test compares each row with its class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Names of the field with the number of experts of a mixture."""
FULL, SLIDING = "full_attention", "sliding_attention"
"""Kinds of layers in `layer_types`: attention to all tokens before, or to those of a window."""
_QWEN = {"max_position_embeddings": 32768, "sliding_window": 4096, "max_window_layers": 28, "use_sliding_window": False}
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "arcee": {"max_position_embeddings": 4096},
    "cohere": {"tie_word_embeddings": True, "max_position_embeddings": 8192},
    "cohere2": {"tie_word_embeddings": True, "max_position_embeddings": 8192, "sliding_window": 4096},
    "ernie4_5": {
        "tie_word_embeddings": True,
        "head_dim": 128,
        "num_key_value_heads": 2,
        "max_position_embeddings": 131072,
    },
    "exaone4": {"num_key_value_heads": 32, "max_position_embeddings": 2048, "sliding_window": 4096},
    "gemma": {
        "tie_word_embeddings": True,
        "head_dim": 256,
        "num_key_value_heads": 16,
        "max_position_embeddings": 8192,
    },
    "gemma2": {
        "tie_word_embeddings": True,
        "head_dim": 256,
        "num_key_value_heads": 4,
        "max_position_embeddings": 8192,
        "sliding_window": 4096,
        "final_logit_softcapping": 30.0,
        "attn_logit_softcapping": 50.0,
    },
    "gemma3_text": {
        "tie_word_embeddings": True,
        "head_dim": 256,
        "num_key_value_heads": 4,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
    },
    "glm4": {"head_dim": 128, "num_key_value_heads": 2, "max_position_embeddings": 131072, "attention_bias": True},
    "gpt_neox": {"max_position_embeddings": 2048, "attention_bias": True},
    "gpt_oss": {
        "head_dim": 64,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "attention_bias": True,
        "sliding_window": 128,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
    },
    "granite": {"max_position_embeddings": 2048},
    "granitemoe": {"max_position_embeddings": 2048, "num_local_experts": 8, "num_experts_per_tok": 2},
    "granitemoehybrid": {"max_position_embeddings": 2048, "num_local_experts": 8, "num_experts_per_tok": 2},
    "helium": {"head_dim": 128, "num_key_value_heads": 20, "max_position_embeddings": 4096},
    "hyperclovax": {"max_position_embeddings": 2048},
    "llama": {"max_position_embeddings": 2048},
    "ministral": {"num_key_value_heads": 8, "max_position_embeddings": 131072, "sliding_window": 4096},
    "mistral": {"num_key_value_heads": 8, "max_position_embeddings": 131072, "sliding_window": 4096},
    "mixtral": {
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    "nemotron": {"max_position_embeddings": 4096},
    "olmo": {"max_position_embeddings": 2048},
    "olmo2": {"max_position_embeddings": 2048},
    "olmo3": {"max_position_embeddings": 2048, "sliding_window": 4096},
    "olmoe": {"max_position_embeddings": 4096, "num_experts": 64, "num_experts_per_tok": 8},
    "phi": {"max_position_embeddings": 2048},
    "phi3": {"max_position_embeddings": 4096},
    "qwen2": {**_QWEN, "num_key_value_heads": 32},
    "qwen2_moe": {
        **_QWEN,
        "num_key_value_heads": 16,
        "qkv_bias": True,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
    },
    "qwen3": {**_QWEN, "head_dim": 128, "num_key_value_heads": 32},
    "qwen3_moe": {
        "max_position_embeddings": 32768,
        "sliding_window": 4096,
        "use_sliding_window": False,
        "num_key_value_heads": 4,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
    },
    "seed_oss": {
        "head_dim": 128,
        "num_key_value_heads": 8,
        "max_position_embeddings": 524288,
        "attention_bias": True,
    },
    "smollm3": {
        "tie_word_embeddings": True,
        "num_key_value_heads": 4,
        "max_position_embeddings": 32768,
        "use_sliding_window": False,
    },
    "stablelm": {"num_key_value_heads": 32, "max_position_embeddings": 4096},
    "starcoder2": {"tie_word_embeddings": True, "num_key_value_heads": 2, "max_position_embeddings": 4096},
}
"""Fields of memory and of windows that a class sets, by model type. A field that is missing here too has no value, or
follows from others: `head_dim` is the width divided by the heads."""
_PATTERNS: Mapping[str, int] = {"cohere2": 4, "exaone4": 4, "gemma2": 2, "gemma3_text": 6, "gpt_oss": 2, "olmo3": 4}
"""Model types in which each n-th layer attends to all tokens, and the others to a window, and n."""
_SET_PATTERNS = ("cohere2", "exaone4", "gemma3_text")
"""Model types of these whose `sliding_window_pattern` is n."""
_HYBRID = "granitemoehybrid"


def with_defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a config.json with the values that its class sets for missing fields.

    A window that the class switches off (`use_sliding_window`) is None. A model type without a row is unchanged.
    """
    kind = str(config.get("model_type", ""))
    defaults = DEFAULTS.get(kind, {})
    counted = any(name in config for name in EXPERTS)
    complete = {name: value for name, value in defaults.items() if not (counted and name in EXPERTS)} | dict(config)
    if kind == "exaone4" and complete["sliding_window"] is None:
        complete["sliding_window_pattern"] = 0
    if "use_sliding_window" in defaults and kind != "smollm3" and not complete["use_sliding_window"]:
        complete["sliding_window"] = None
    if complete.get("layer_types") is None and (layers := _layer_types(kind, complete)):
        complete["layer_types"] = layers
    return complete


def _layer_types(kind: str, config: Mapping[str, Any]) -> list[str]:
    """Return the kinds of layers that a class derives from other fields; none: it has no `layer_types`."""
    count, window = config.get("num_hidden_layers"), config.get("sliding_window")
    if not isinstance(count, int):
        return []
    if kind == _HYBRID:
        return list(config.get("layers_block_type") or ["linear_attention"] * count)
    if kind in _PATTERNS:
        pattern = config.get("sliding_window_pattern") if kind in _SET_PATTERNS else None
        every = _PATTERNS[kind] if pattern is None else pattern
        if not isinstance(every, int):  # letters, which the class does not accept without layer_types
            return []
        sliding = [bool(every) and (layer + 1) % every != 0 for layer in range(count)]
    elif kind == "ministral":
        sliding = [window is not None] * count
    elif kind in ("qwen2", "qwen3"):
        sliding = [window is not None and layer >= config["max_window_layers"] for layer in range(count)]
    elif kind == "qwen2_moe":
        used = config["use_sliding_window"]
        sliding = [used and layer % 2 == 0 and layer < config["max_window_layers"] for layer in range(count)]
    elif kind == "smollm3":
        every = config.get("no_rope_layer_interval") or 4
        rotary = config.get("no_rope_layers") or [(layer + 1) % every != 0 for layer in range(count)]
        used = config["use_sliding_window"] and window is not None
        sliding = [used and not rotary[layer] for layer in range(count)]
    else:
        return []
    return [SLIDING if has_window else FULL for has_window in sliding]
