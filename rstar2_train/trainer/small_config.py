"""The config of a small model with all that is special in a large one: kinds of layers, rotary embedding, factors."""

from __future__ import annotations

from typing import Any

from rstar2_train.capacity.model_defaults import EXPERTS

WINDOW = 8
"""Sliding window of the small model, in tokens."""
_WIDTH, _INNER, _VOCABULARY = 16, 96, 128
_MOST_LAYERS = 8
_INNER_FIELDS = (
    "intermediate_size",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "shared_intermediate_size",
    "ffn_hidden_size",
    "ffn_dim",
    "n_inner",
)
_EXPERTS, _CHOSEN = 8, 3
_SPECIAL_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def small_config(config: Any) -> Any:
    """Return a small copy of a config of transformers. Raises ValueError if its fields do not fit together.

    Heads, layers and widths are fewer. Each kind of layer stays, and so do all factors, flags and rotary parameters.
    """
    values: dict[str, Any] = config.to_dict()
    heads, layers = values.get("num_attention_heads"), values.get("num_hidden_layers")
    if not isinstance(heads, int) or not isinstance(layers, int):
        raise ValueError("its fields num_attention_heads and num_hidden_layers are no numbers, or have other names")
    kv_heads = values.get("num_key_value_heads") or heads
    # Bamba derives its kinds of layers from the numbers of those with attention.
    kept = _layers_of_all_kinds({"layer_types": getattr(config, "layer_types", None), **values}, layers)
    small: dict[str, Any] = {
        "num_hidden_layers": kept,
        "num_attention_heads": 4,
        "hidden_size": 4 * _WIDTH,
        "vocab_size": _VOCABULARY,
        "initializer_range": 0.15,  # so that a difference of one operation is far above rounding
        **_SPECIAL_TOKENS,
    }
    if values.get("num_key_value_heads") is not None:
        small["num_key_value_heads"] = 4 if kv_heads == heads else 1 if kv_heads == 1 else 2
    if values.get("head_dim") is not None:
        small["head_dim"] = _WIDTH
    small |= {name: _INNER for name in _INNER_FIELDS if isinstance(values.get(name), int)}
    if isinstance(values.get("mamba_n_heads"), int):  # Granite 4 has them also without such layers
        small |= {"mamba_n_heads": 4, "mamba_d_head": _WIDTH * int(values.get("mamba_expand") or 2)}
    if isinstance(values.get("mamba_d_ssm"), int):  # Falcon-H1 states the product too
        small["mamba_d_ssm"] = small["mamba_n_heads"] * small["mamba_d_head"]
    if values.get("sliding_window"):
        small["sliding_window"] = WINDOW
    small |= _small_mixture(values)
    small |= {name: value[:kept] for name, value in values.items() if isinstance(value, list) and len(value) == layers}
    if isinstance(values.get("attn_layer_indices"), list):
        small["attn_layer_indices"] = [number for number in values["attn_layer_indices"] if number < kept]
    width = values.get("head_dim") or values["hidden_size"] // heads
    for name in ("rope_parameters", "rope_scaling"):
        if isinstance(values.get(name), dict):
            small[name] = _small_rope(values[name], width)
    names = {"architectures", "dtype", "torch_dtype", "transformers_version", "model_type", "_name_or_path"}
    merged = {name: value for name, value in (values | small).items() if name not in names}
    return type(config)(**merged)


def _small_mixture(values: dict[str, Any]) -> dict[str, Any]:
    """Return fields with few experts. If the model has layers without them, the first layer has none."""
    small: dict[str, Any] = {name: min(_EXPERTS, values[name]) for name in EXPERTS if values.get(name)}
    if isinstance(values.get("num_experts_per_tok"), int):
        small["num_experts_per_tok"] = min(_CHOSEN, values["num_experts_per_tok"])
    if isinstance(values.get("decoder_sparse_step"), int):
        small["decoder_sparse_step"] = min(2, values["decoder_sparse_step"])
    if values.get("mlp_only_layers"):
        small["mlp_only_layers"] = [0]
    return small


def _layers_of_all_kinds(values: dict[str, Any], layers: int) -> int:
    """Return the number of first layers with all values of each list that has one value per layer."""
    needed = 2
    for value in values.values():
        if isinstance(value, list) and len(value) == layers:
            kinds = [str(item) for item in value]
            needed = max(needed, *(kinds.index(kind) + 1 for kind in set(kinds)))
    return min(layers, needed, _MOST_LAYERS)


def _small_rope(rope: dict[str, Any], width: int) -> dict[str, Any]:
    """Return rotary parameters whose factors per frequency, if there are any, have the length of the small heads."""
    small: dict[str, Any] = {}
    for name, value in rope.items():
        if isinstance(value, dict):
            small[name] = _small_rope(value, width)
        elif isinstance(value, list):
            small[name] = value[: max(1, len(value) * _WIDTH // width)]
        else:
            small[name] = value
    return small
