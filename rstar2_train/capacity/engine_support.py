"""Which models vLLM computes as the trainer does, by their config.json. Pure, without vLLM.

transformers and vLLM have classes of their own for most families, which read different fields. An engine would sample
from another model than the trainer's, without an error. The tables name, by model type, which side reads which field:
from the sources of transformers 5.19 and vLLM 0.32, and measured with tiny models on the CPU. Families without a class
in vLLM run in the class of transformers there, with the attention of vLLM (`Transformers modeling backend`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rstar2_train.capacity.model_defaults import SLIDING, with_defaults
from rstar2_train.capacity.model_support import PROVEN
from rstar2_train.capacity.rope_fields import find_length_faults, find_rope_faults, rope_parts

ENGINE_DIFFERS: Mapping[str, str] = {
    "gpt_neox": "vLLM computes other log-probabilities than transformers (several nats): use another model",
}
"""Model types that vLLM computes wrongly, and what to do."""


_OFF = (False, None)
_SILU: Mapping[str, tuple[Any, ...]] = {"hidden_act": ("silu",)}
_TANH: Mapping[str, tuple[Any, ...]] = {"hidden_activation": ("gelu_pytorch_tanh",)}
_NO_BIASES: Mapping[str, tuple[Any, ...]] = dict.fromkeys(("attention_bias", "bias", "mlp_bias"), _OFF)
"""Biases that a class of vLLM has, and the class of transformers does not."""
_AS_LLAMA: Mapping[str, tuple[Any, ...]] = {**_NO_BIASES, "qkv_bias": (None, False), **_SILU}
"""For classes without biases in transformers that have the layers of Llama in vLLM, with four fields of biases."""
_COHERE: Mapping[str, tuple[Any, ...]] = {
    "attention_bias": _OFF,  # linear layers of vLLM have no bias
    "rms_norm_eps": (None,),  # vLLM takes RMSNorm for LayerNorm if the field exists
    "tie_word_embeddings": (True,),  # the output layer of vLLM is the embedding
    **_SILU,
}
_GRANITE: Mapping[str, tuple[Any, ...]] = {
    # Fields of GraniteSWA, a class of its own in transformers. With layer_types vLLM expects sinks in the files.
    "attention_sinks": _OFF,
    "layer_rope_theta": (None,),
    "layer_types": (None,),
    **_SILU,
}
ENGINE_VALUES: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "cohere": _COHERE,
    # Only the class of Cohere has these norms in transformers, both have them in vLLM.
    "cohere2": {**_COHERE, "use_qk_norm": _OFF},
    # transformers reads use_bias, vLLM the fields of Llama.
    "ernie4_5": {**_AS_LLAMA, "use_bias": (False,)},
    "exaone4": {**_NO_BIASES, **_SILU},
    "gemma": {
        "attention_bias": _OFF,  # linear layers of vLLM have no bias
        # transformers reads hidden_act, in which gelu means the approximation; vLLM reads hidden_activation.
        "hidden_act": ("gelu_pytorch_tanh", "gelu"),
        "hidden_activation": ("gelu_pytorch_tanh", None),
    },
    # vLLM has one activation in these classes, and refuses to start with another one.
    "gemma2": {**_TANH, "tie_word_embeddings": (True,)},  # the output layer of vLLM is the embedding
    "gemma3_text": _TANH,
    "glm4": _SILU,
    # vLLM reads none of these.
    "gpt_oss": {
        "attention_bias": (True,),
        "rms_norm_eps": (1e-5,),
        "swiglu_alpha": (1.702,),
        "swiglu_limit": (7.0,),
        "tie_word_embeddings": _OFF,
    },
    "granitemoehybrid": _SILU,
    "hyperclovax": _SILU,
    "granite": {**_GRANITE, "bias": _OFF},
    "granitemoe": {**_GRANITE, "attention_bias": _OFF},
    # vLLM reads qkv_bias in place of attention_bias.
    "llama": {"bias": _OFF, "qkv_bias": (None,), **_SILU},
    # Fields of Mistral Large 3 and of a model of speech.
    "mistral": {**_AS_LLAMA, "ada_rms_norm_t_cond": _OFF, "llama_4_scaling": (None,)},
    "mixtral": _SILU,
    "nemotron": {"bias": _OFF},
    # vLLM reads none of these.
    "olmoe": {
        "attention_bias": _OFF,
        "clip_qkv": (None,),
        "norm_topk_prob": _OFF,
        "rms_norm_eps": (1e-5,),
        "tie_word_embeddings": _OFF,
        **_SILU,
    },
    "phi3": _AS_LLAMA,
    # vLLM has norms of BAGEL, which uses the class.
    "qwen2": {"qk_norm": _OFF, **_SILU},
    # vLLM has these biases always.
    "qwen2_moe": {"qkv_bias": (True,), **_SILU},
    # With attention_bias transformers has a bias in o_proj too.
    "qwen3": {"attention_bias": _OFF, **_SILU},
    # vLLM adds a shared expert, which transformers does not have.
    "qwen3_moe": {"attention_bias": _OFF, "shared_expert_intermediate_size": (None, 0), **_SILU},
    # vLLM reads norm_eps before layer_norm_eps, and none of the others.
    "stablelm": {"norm_eps": (None,), "qk_layernorm": _OFF, "use_parallel_residual": _OFF, **_SILU},
}
"""Fields that one side does not read, or reads otherwise: the values with which both compute the same model, by model
type. The first one is that of a missing field."""


_ENGINE_FIELDS: Mapping[str, Any] = {
    "dual_chunk_attention_config": None,
    "mrope_section": None,
    "rotary_emb_base": None,
    "rotary_emb_fraction": 1,
    "rotary_pct": 1,
    "xdrope_section": None,
}
"""Fields that vLLM reads for any model type, and no class of transformers whose model vLLM computes: values without an
effect."""
_PARTIAL = ("glm4", "gpt_neox", "nemotron", "phi", "phi3", "stablelm")
"""Measured model types whose class turns a part of each head only (`partial_rotary_factor`); vLLM does so for all."""
_GPT_OSS_ROPE = ("beta_fast", "beta_slow", "factor", "original_max_position_embeddings")
"""Fields of the rotary embedding of GPT-OSS that vLLM needs: it computes YaRN for any type."""
_CAPPED = ("gemma2",)
"""Model types whose class caps the scores of attention in transformers and in vLLM."""
_ENGINE_HEADS = ("granitemoe", "granitemoehybrid", "olmoe", "qwen2", "qwen2_moe", "stablelm")
"""Model types whose `head_dim` vLLM does not read."""


_LAYER_WINDOWS = (
    *("cohere2", "exaone4", "gemma2", "gemma3_text", "gpt_oss", "ministral", "olmo3", "qwen2", "qwen2_moe", "qwen3"),
    "smollm3",
)
"""Model types whose class in transformers has the window in the sliding layers of `layer_types`."""
_MODEL_WINDOWS = ("mistral", "mixtral", "phi3", "qwen3_moe", "starcoder2")
"""Model types whose class in transformers has the window in all layers. Those of the other measured types ignore it."""
_ENGINE_MODEL_WINDOWS = (
    *("cohere", "gemma", "glm4", "granitemoehybrid", "hyperclovax", "mixtral", "nemotron", "olmoe", "qwen2"),
    *("qwen2_moe", "qwen3", "qwen3_moe", "stablelm"),
)
"""Model types whose class in vLLM does not read `layer_types`: its layers have a window only if all are sliding, or if
there are no `layer_types`. The other classes, and the one for all families, read it for each layer."""


def find_engine_obstacles(config: Mapping[str, Any], *, longest: int = 0) -> Iterator[str]:
    """Yield why engines would sample from another model than the trainer's.

    `config`: the content of config.json; `longest`: tokens of the longest sequence, 0: unknown.
    """
    config = with_defaults(config)
    kind = str(config.get("model_type"))
    if kind in ENGINE_DIFFERS:
        yield f"model_type {kind!r}: {ENGINE_DIFFERS[kind]}"
    yield from _window_obstacles(config, kind, longest)
    yield from find_rope_faults(config)
    yield from find_length_faults(config, longest=longest, engines=True)
    yield from _rope_obstacles(config, kind)
    if (
        kind in _ENGINE_HEADS
        and (width := config.get("head_dim"))
        and width * config["num_attention_heads"] != config["hidden_size"]
    ):
        yield f"head_dim: {width} is not supported for model_type {kind!r}: vLLM divides hidden_size by the heads"
    if kind not in _CAPPED and (cap := config.get("attn_logit_softcapping")):
        capped = ", ".join(_CAPPED)
        yield (
            f"attn_logit_softcapping: {cap} is not supported for model_type {kind!r}, only for {capped}: use another "
            "model"
        )
    for name, values in ENGINE_VALUES.get(kind, {}).items():
        if config.get(name, values[0]) not in values:
            yield (
                f"{name}: {config[name]!r} is not supported for model_type {kind!r}: transformers and vLLM compute the "
                f"same model only with {values[0]!r}: use another model"
            )


def _window_obstacles(config: Mapping[str, Any], kind: str, longest: int) -> Iterator[str]:
    """Yield why the layers have other windows in an engine. `config`: complete."""
    window, layers = config.get("sliding_window"), list(config.get("layer_types") or ())
    if kind == "exaone4" and window is not None and SLIDING not in layers:
        yield (
            f"sliding_window: {window}: without sliding layers vLLM has rotary embeddings in each layer, transformers "
            "only if sliding_window is null: use another model"
        )
    if (
        kind in ("qwen2", "qwen3")
        and len(set(layers)) > 1
        and config["max_window_layers"] != config["num_hidden_layers"]
    ):
        yield (
            f"max_window_layers: {config['max_window_layers']}: no engine starts with windows in some of the layers: "
            "set use_sliding_window to false if no sequence is longer than the window, or use another model"
        )
    if not window:
        if SLIDING in layers:
            yield f"layer_types: {SLIDING} needs sliding_window, which is {window}"
        return
    if longest and longest <= window:
        return
    trained, sampled = _trained_windows(config, kind, layers), _sampled_windows(kind, layers)
    limit = f"limit prompt and response to {window:,} tokens together"
    if kind == "cohere2" and SLIDING in layers:
        yield (
            f"sliding_window: {window}: vLLM's window is one token longer than that of transformers, and the longest "
            f"sequence has {longest or 'an unknown number of'} tokens: {limit}"
        )
    elif trained is None:
        yield (
            f"sliding_window: {window}: whether transformers and vLLM have the same windows for model_type {kind!r} is "
            f"not known: {limit}"
        )
    elif trained != sampled:
        yield (
            f"sliding_window: {window}: of model_type {kind!r} with these layer_types transformers has windows in "
            f"{sum(trained)} of {len(trained)} layers, vLLM in {sum(sampled)}: {limit}, or use another model"
        )


def _trained_windows(config: Mapping[str, Any], kind: str, layers: list[str]) -> list[bool] | None:
    """Return which layers have a window in transformers; None: not known. `layers`: `layer_types`, may be empty."""
    if kind in _LAYER_WINDOWS or (kind == "mistral" and layers):  # transformers takes it for a Ministral then
        used = kind != "smollm3" or config["use_sliding_window"]
        return [used and layer == SLIDING for layer in layers]
    if kind in PROVEN:
        return [kind in _MODEL_WINDOWS] * max(1, len(layers))
    return None


def _sampled_windows(kind: str, layers: list[str]) -> list[bool]:
    """Return which layers have a window in vLLM. `layers`: `layer_types`, may be empty."""
    if kind == "gpt_oss":  # by their number only
        return [number % 2 == 0 for number in range(len(layers))]
    sliding = [layer == SLIDING for layer in layers] or [True]
    return sliding if all(sliding) or kind not in _ENGINE_MODEL_WINDOWS else [False] * len(layers)


def _rope_obstacles(config: Mapping[str, Any], kind: str) -> Iterator[str]:
    """Yield which fields of the rotary embedding only vLLM reads."""
    parts = [config, *rope_parts(config)]
    if kind == "gpt_oss":
        yield from _gpt_oss_rope_obstacles(parts[1:])
    for name, value in _ENGINE_FIELDS.items():
        if config.get(name) not in (None, value):
            yield f"{name}: {config[name]} is read by vLLM only: remove the field, which transformers ignores"
    if kind in PROVEN and kind not in _PARTIAL:
        factors = [factor for part in parts if (factor := part.get("partial_rotary_factor")) not in (None, 1)]
        if factors:
            yield (
                f"partial_rotary_factor: {factors[0]}: transformers turns whole heads of model_type {kind!r}, vLLM a "
                "part: use another model"
            )


def _gpt_oss_rope_obstacles(parts: list[Mapping[str, Any]]) -> Iterator[str]:
    """Yield why vLLM turns the heads of a GPT-OSS otherwise. `parts`: the rotary embeddings in config.json."""
    for part in parts:
        kind = part.get("rope_type", part.get("type", "default"))
        others = [name for name in ("attention_factor", "mscale", "mscale_all_dim") if part.get(name) is not None]
        missing = [name for name in _GPT_OSS_ROPE if part.get(name) is None]
        if kind != "yarn":
            yield f"rope_type: {kind!r} is not supported for model_type 'gpt_oss', only 'yarn': use another model"
        elif others:
            yield f"{others[0]} of the rotary embedding is not read by vLLM for model_type 'gpt_oss': use another model"
        elif missing:
            yield f"rope_type yarn of model_type 'gpt_oss' needs {', '.join(missing)} in vLLM: add it"
