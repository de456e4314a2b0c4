"""Which models the engines compute otherwise than the trainer: each is refused by its config.json."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import pytest

from rstar2_train.capacity.engine_support import ENGINE_DIFFERS, ENGINE_VALUES, find_engine_obstacles
from rstar2_train.capacity.model_defaults import FULL, SLIDING, with_defaults
from rstar2_train.capacity.model_support import ADAPTED, PROVEN, find_obstacles
from tests.support.config_fields import ENGINE_FILES, engine_fields, trainer_fields
from tests.support.model_families import FAMILIES
from tests.support.model_families import WINDOW as FAMILY_WINDOW
from tests.support.model_families import engine_fields as sizes_of_engines

LONGEST, WINDOW = 100, 64
SIZES = {"num_hidden_layers": 6, "num_attention_heads": 4, "hidden_size": 128, "head_dim": 32}
HARMLESS = frozenset(
    {
        *("_attn_implementation", "attention_dropout", "get_text_config", "hidden_dropout", "image_size"),
        *("image_token_id", "initializer_range", "mm_tokens_per_image", "output_router_logits", "pad_token_id"),
        *("patch_size", "resid_pdrop", "router_aux_loss_coef", "router_jitter_noise", "text_config", "vision_config"),
    }
)
"""Fields of training from scratch, of images, and of the classes themselves: no log-probability depends on them."""
SAME: Mapping[str, frozenset[str]] = {
    "*": frozenset(
        {
            # Lengths of tables.
            *("model_max_length", "original_max_position_embeddings"),
            # Of drafts.
            *("num_nextn_predict_layers", "target_layer_count"),
            # Tests of their own have the windows.
            *("layer_types", "sliding_window", "max_window_layers", "sliding_window_pattern"),
        }
    ),
    # Of layers with a state, and of quantised weights, which are refused.
    "granitemoehybrid": frozenset({"layers_block_type", "mamba_chunk_size", "time_step_limit", "quantization_config"}),
    # Of the classes of images in its file.
    "gemma3_text": frozenset({"layer_norm_eps"}),
    # Of the engine itself, and of quantised weights.
    "gpt_oss": frozenset({"moe_parallel_config", "quantization_config", "tp_rank"}),
    # Of other classes in the file of vLLM, or of a field that is refused.
    "granitemoe": frozenset({"bias", "mlp_bias"}),
    "mistral": frozenset({"ada_rms_norm_t_cond_dim"}),
    "olmoe": frozenset({"num_local_experts"}),
    "qwen3": frozenset({"qk_norm"}),
}
"""Fields that only one file reads, and that change no result or are checked by other names, by model type."""
VALUES: dict[str, Any] = {
    "clip_qkv": 8.0,
    "dual_chunk_attention_config": {"chunk_size": 8},
    "head_dim": 64,
    "hidden_act": "relu",
    "hidden_activation": "gelu",
    "is_causal": False,
    "layer_rope_theta": [0.0, 10_000.0],
    "llama_4_scaling": {"beta": 0.1},
    "norm_eps": 1e-3,
    "swiglu_alpha": 1.0,
    "swiglu_limit": 1.0,
    "rms_norm_eps": 1e-3,
    "shared_expert_intermediate_size": 8,
    "logit_scale": 2.0,
    "attn_logit_softcapping": 20.0,
}
"""Values that no class has by default; of other fields the other truth value."""


GPT_OSS_ROPE = {
    **{"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
    "original_max_position_embeddings": 4096,
}


def obstacles(config: dict[str, Any], longest: int = LONGEST) -> str:
    """Return why a model is refused, by the trainer or for its engines."""
    config = SIZES | config
    return "; ".join(
        [*find_obstacles(config, packed=True, longest=longest), *find_engine_obstacles(config, longest=longest)]
    )


WITHOUT_ENGINES = ("Qwen2.5, sliding window",)
"""Families with which no engine starts."""


@pytest.mark.parametrize(
    "family", [family for family, config in FAMILIES.items() if config().model_type not in ENGINE_DIFFERS]
)
def test_engine_compared_family_is_accepted(family: str) -> None:
    """Each family that a test compares with transformers, as the class has its fields and as a file has them."""
    config = FAMILIES[family](**sizes_of_engines(family))
    for fields in (config.to_dict(), config.to_diff_dict()):
        trainer = find_obstacles(fields, packed=True, longest=LONGEST, adapter=fields["model_type"] in ADAPTED)
        engines = list(find_engine_obstacles(fields, longest=FAMILY_WINDOW))
        assert list(trainer) == []
        assert ["no engine starts" in obstacle for obstacle in engines] == [True] * (family in WITHOUT_ENGINES)


@pytest.mark.parametrize("kind", sorted(PROVEN - set(ENGINE_DIFFERS)))
def test_engine_family_without_special_fields_is_accepted(kind: str) -> None:
    """A table must not refuse the usual models of a family: its sequences are within each window."""
    assert obstacles({"model_type": kind, "num_local_experts": 0} | _attention(kind)) == ""


def _attention(kind: str) -> dict[str, Any]:
    return {"layer_types": [FULL] * 6} if kind == "granitemoehybrid" else {}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, values in ENGINE_VALUES.items() for name in values])
def test_engine_value_of_each_field_is_checked(kind: str, name: str) -> None:
    """Another value is refused with the field; the common ones are accepted."""
    other = [FULL] * 6 if name == "layer_types" else VALUES.get(name, not ENGINE_VALUES[kind][name][0])
    config = {"model_type": kind, "sliding_window": None, **_attention(kind)}
    assert f"{name}: {other!r} is not supported for model_type {kind!r}" in obstacles(config | {name: other})
    for value in ENGINE_VALUES[kind][name]:
        assert f"{name}: " not in obstacles(config | {name: value})


@pytest.mark.parametrize("kind", ENGINE_FILES)
def test_engine_field_that_one_side_reads_is_refused(kind: str) -> None:
    """A field that only transformers or only vLLM reads, with another value than the usual one."""
    fields = trainer_fields(kind) ^ engine_fields(kind)
    for name in sorted(fields - HARMLESS - SAME["*"] - SAME.get(kind, set())):
        usual = ENGINE_VALUES.get(kind, {}).get(name, (False,))[0]
        value = VALUES.get(name, not usual)
        assert f"{name}: " in obstacles({"model_type": kind, "sliding_window": None, name: value}), name


def trained_windows(kind: str, layers: list[str]) -> list[bool]:
    """Return which layers have a window in transformers, by the source of the class."""
    module = kind.removesuffix("_text")
    source = inspect.getsource(import_module(f"transformers.models.{module}.modeling_{module}"))
    if "create_sliding_window_causal_mask" not in source:
        return [False] * 6
    # A Mistral with layer_types is a Ministral for transformers.
    by_layer = "config.layer_types" in source or kind == "mistral"
    return [layer == SLIDING or not by_layer for layer in layers]


def sampled_windows(kind: str, layers: list[str]) -> list[bool]:
    """Return which layers have a window in vLLM: each one in models without layer_types, or if all are sliding."""
    # The file of Cohere has the layers of Cohere2, those of Qwen only refuse some kinds.
    by_layer = kind not in ENGINE_FILES or (
        "layer_types" in engine_fields(kind) and kind not in ("cohere", "granitemoehybrid", "qwen2", "qwen3")
    )
    sliding = [layer == SLIDING for layer in layers] or [True] * 6
    if kind == "gpt_oss":
        return [True, False] * 3
    return sliding if by_layer or all(sliding) else [False] * 6


@pytest.mark.parametrize("kind", sorted(PROVEN))
@pytest.mark.parametrize("layers", [None, [SLIDING, FULL] * 3, [SLIDING] * 6, [FULL] * 6])
def test_engine_window_that_one_side_has_is_refused(kind: str, layers: list[str] | None) -> None:
    """Unless no sequence is longer than the window. A length that is not known counts as longer."""
    config = SIZES | {"model_type": kind, "sliding_window": WINDOW, "use_sliding_window": True, "max_window_layers": 0}
    actual_layers = list(with_defaults(config | {"layer_types": layers}).get("layer_types") or [])
    config["layer_types"] = layers
    differs = trained_windows(kind, actual_layers or [SLIDING] * 6) != sampled_windows(kind, actual_layers)
    reason = "one token longer" if kind == "cohere2" else "transformers has windows in"
    differs |= kind == "cohere2" and SLIDING in actual_layers
    assert [reason in obstacles(config, longest=longest) for longest in (LONGEST, 0, WINDOW)] == [
        differs,
        differs,
        False,
    ]


def test_engine_window_of_an_unknown_family_is_refused() -> None:
    """Its classes were not compared."""
    assert "is not known: limit" in obstacles({"model_type": "new", "sliding_window": WINDOW})
    assert obstacles({"model_type": "new", "sliding_window": WINDOW}, longest=WINDOW) == ""


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "gpt_neox"}, "vLLM computes other log-probabilities"),
        ({"model_type": "gpt_oss"}, ""),
        ({"model_type": "gpt_oss", "rope_parameters": GPT_OSS_ROPE}, ""),
        ({"model_type": "gpt_oss", "rope_parameters": {"rope_theta": 1e4}}, "rope_type: 'default' is not supported"),
        ({"model_type": "gpt_oss", "rope_scaling": GPT_OSS_ROPE | {"attention_factor": 1.2}}, "attention_factor of"),
        ({"model_type": "gpt_oss", "rope_scaling": GPT_OSS_ROPE | {"beta_slow": None}}, "needs beta_slow in vLLM"),
        ({"model_type": "cohere2"}, ""),
        ({"model_type": "cohere2", "layer_types": [FULL] * 6, "sliding_window": WINDOW}, ""),
        ({"model_type": "exaone4", "sliding_window": None, "layer_types": [FULL] * 6}, ""),
        ({"model_type": "exaone4", "layer_types": [FULL] * 6}, "sliding_window: 4096: without sliding layers vLLM has"),
        ({"model_type": "exaone4", "sliding_window": None, "layer_types": [SLIDING] * 6}, "needs sliding_window"),
        ({"model_type": "gemma", "hidden_act": "gelu"}, ""),
        ({"model_type": "gemma", "hidden_act": "gelu_new"}, "hidden_act: 'gelu_new' is not supported"),
        ({"model_type": "llama", "rotary_pct": 0.5}, "rotary_pct: 0.5 is read by vLLM only"),
        ({"model_type": "cohere2", "rotary_pct": 1.0}, ""),
        ({"model_type": "exaone4", "sliding_window_pattern": "LLLG", "layer_types": [SLIDING, FULL] * 3}, ""),
        ({"model_type": "exaone4", "sliding_window_pattern": "LLLG"}, "sliding_window: 4096: without sliding layers"),
        ({"model_type": "llama", "dual_chunk_attention_config": {}}, "dual_chunk_attention_config: .* vLLM only"),
        ({"model_type": "llama", "partial_rotary_factor": 0.5}, "partial_rotary_factor: 0.5: .* whole heads"),
        ({"model_type": "qwen3", "rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor: 0.5"),
        ({"model_type": "phi", "partial_rotary_factor": 0.5}, ""),
        ({"model_type": "phi3", "rope_scaling": {"short_mscale": 1.1}}, "short_mscale of the rotary embedding"),
        ({"model_type": "olmo2", "attn_logit_softcapping": 20.0}, "attn_logit_softcapping: 20.0 .* only for gemma2"),
        ({"model_type": "gemma2"}, ""),
        ({"model_type": "qwen2", "head_dim": 64}, "head_dim: 64 is not supported"),
        ({"model_type": "llama", "head_dim": 64, "attention_bias": True}, ""),
        ({"model_type": "smollm3", "sliding_window": 8, "layer_types": [SLIDING] * 6}, "in 0 of 6 layers, vLLM in 6"),
        ({"model_type": "qwen3", "sliding_window": WINDOW, "use_sliding_window": False}, ""),
        ({"model_type": "llama", "mrope_section": [1, 1, 2]}, "mrope_section: .* is read by vLLM only"),
        *(
            (
                {"model_type": kind, "sliding_window": 8, "use_sliding_window": True, "max_window_layers": layers},
                message,
            )
            for kind in ("qwen2", "qwen3")
            for layers, message in ((2, "no engine starts with windows in some"), (6, ""))
        ),
    ],
)
def test_engine_rules_of_single_families(config: dict[str, Any], message: str) -> None:
    """Rules that hold for a family or two, and their usual values."""
    actual = obstacles(config)
    if message:
        with pytest.raises(AssertionError, match=message):
            raise AssertionError(actual)
    else:
        assert actual == ""
