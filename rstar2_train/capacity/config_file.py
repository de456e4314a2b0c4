"""Reads the config.json of a model and checks the kinds of its values, before other code computes with it. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rstar2_train.capacity.model_defaults import EXPERTS
from rstar2_train.utils.json_objects import unique_object
from rstar2_train.utils.text import reason, short_repr

CONFIG, GENERATION_CONFIG, TOKENIZER = "config.json", "generation_config.json", "tokenizer.json"
DTYPES = ("float32", "bfloat16", "float16")
"""Number formats of the weights of a model that can be trained, by their name in config.json."""


class InvalidConfig(ValueError):
    """A config.json cannot be used. The message names the file, the field and the fix."""

    def __init__(self, file: Path, reason: str) -> None:
        super().__init__(f"{file} cannot be used: {reason}")
        self.reason = reason
        """The message without the file."""


def _whole(least: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= least


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(part, str) for part in value)


def _numbers(value: Any) -> bool:
    return isinstance(value, list) and all(_whole(0)(part) for part in value)


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number, which a float can hold."""
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer of more than 308 digits
        return False


_POSITIVE = (
    *("hidden_size", "max_position_embeddings", "moe_intermediate_size", "num_attention_heads", "num_hidden_layers"),
    *("num_key_value_heads", "original_max_position_embeddings", "vocab_size", "head_dim", "intermediate_size"),
    "no_rope_layer_interval",
)
_COUNTS = (
    *("num_experts", "num_local_experts", "n_routed_experts", "num_experts_per_tok", "decoder_sparse_step"),
    *("max_window_layers", "sliding_window", "shared_expert_intermediate_size", "shared_intermediate_size"),
)
_SWITCHES = (
    *("attention_bias", "is_causal", "is_encoder_decoder", "tie_word_embeddings", "use_sliding_window"),
    *("output_router_logits", "norm_topk_prob", "qkv_bias"),
)
_SCALES = ("logit_scale", "logits_scaling", "partial_rotary_factor", "rope_theta")
_FACTORS = (
    *("attn_logit_softcapping", "final_logit_softcapping"),
    *("attention_multiplier", "embedding_multiplier", "residual_multiplier", "rms_norm_eps"),
    *("layer_norm_eps", "query_pre_attn_scalar", "router_aux_loss_coef", "router_jitter_noise"),
)
_OBJECTS = ("rope_parameters", "rope_scaling", "quantization_config", "compression_config", "text_config", "auto_map")
_KINDS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(_POSITIVE, ("a whole number above 0", _whole(1))),
    **dict.fromkeys(_COUNTS, ("a whole number", _whole(0))),
    **dict.fromkeys(_SWITCHES, ("true or false", lambda value: isinstance(value, bool))),
    **dict.fromkeys(_FACTORS, ("a number", is_number)),
    **dict.fromkeys(_SCALES, ("a number above 0", lambda value: is_number(value) and value > 0)),
    **dict.fromkeys(_OBJECTS, ("an object", lambda value: isinstance(value, dict))),
    **dict.fromkeys(("architectures", "layer_types", "layers_block_type"), ("a list of texts", _texts)),
    **dict.fromkeys(("mlp_only_layers", "no_rope_layers"), ("a list of whole numbers", _numbers)),
    "model_type": ("a text", lambda value: isinstance(value, str) and value != ""),
}
"""The fields that this program computes with, and their kinds. All may be null."""


def read_config(folder: Path) -> dict[str, Any]:
    """Return the content of the config.json of a model folder. Raises InvalidConfig."""
    file = folder / CONFIG
    try:
        config = json.loads(file.read_text(encoding="utf-8"), object_pairs_hook=unique_object)
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidConfig(file, f"{reason(error)}: download the folder again") from error
    if not isinstance(config, dict):
        raise InvalidConfig(file, "it is no JSON object: download the folder again")
    if faults := find_faulty_fields(config):
        raise InvalidConfig(file, "; ".join(faults))
    return config


def find_faulty_fields(config: Mapping[str, Any]) -> list[str]:
    """Return the fields of a config.json whose values are of another kind than those that the classes read."""
    faults = []
    for name, (kind, is_right) in _KINDS.items():
        value = config.get(name)
        if value is not None and not is_right(value):
            faults.append(f"{name}: {short_repr(value)} is not {kind}: correct it")
    layers = config.get("num_hidden_layers")
    for name in ("layer_types", "layers_block_type", "no_rope_layers"):
        values = config.get(name)
        if isinstance(values, list) and values and _whole(1)(layers) and len(values) != layers:
            faults.append(f"{name}: {len(values)} values, num_hidden_layers is {layers}: correct one of them")
    return [*faults, *_contradictions(config)]


def _contradictions(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the fields whose value does not fit that of another field."""
    heads, kv_heads = config.get("num_attention_heads"), config.get("num_key_value_heads")
    if isinstance(heads, int) and isinstance(kv_heads, int) and kv_heads > 0 and heads % kv_heads:
        yield f"num_key_value_heads: {kv_heads} does not divide num_attention_heads, {heads}: correct it"
    experts = next((config[name] for name in EXPERTS if _whole(1)(config.get(name))), None)
    chosen = config.get("num_experts_per_tok")
    if experts is not None and _whole(1)(chosen) and chosen > experts:
        yield f"num_experts_per_tok: {chosen} is more than the experts of a layer, {experts}: correct it"
    pad, vocabulary = (config.get(name, -1) for name in ("pad_token_id", "vocab_size"))
    if _whole(0)(pad) and _whole(1)(vocabulary) and pad >= vocabulary:
        yield f"pad_token_id: {pad} is no token of the vocabulary, vocab_size is {vocabulary}: set it to null"


def stored_dtype_name(config: Mapping[str, Any]) -> str:
    """Return the name of the dtype of a model's weights, from its config.json; float32 if it has none."""
    return str(config.get("dtype") or config.get("torch_dtype") or "float32")


def find_faulty_dtype(config: Mapping[str, Any]) -> str | None:
    """Return why the number format of the weights cannot be used; None: it can, or has the default."""
    for name in ("dtype", "torch_dtype"):
        value = config.get(name)
        if value is not None and value not in DTYPES:
            return (
                f"{name}: {short_repr(value)} is not supported: set it to the format of the files, {', '.join(DTYPES)}"
            )
    return None
