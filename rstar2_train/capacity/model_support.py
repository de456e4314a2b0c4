"""Which models the trainer computes exactly, by their config.json. Pure, without torch.

`rstar2 validate` and the ranks refuse the others by name, before anything starts. `trainer.self_check` measures at each
start whether the trainer's numbers are those of the model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rstar2_train.capacity.config_file import find_faulty_dtype, is_number, read_config
from rstar2_train.capacity.model_defaults import EXPERTS, with_defaults
from rstar2_train.capacity.rope_fields import find_length_faults, find_rope_faults

KINDS = frozenset({"full_attention", "sliding_attention", "attention"})
"""Kinds of layers whose sequences can be packed, by their name in `layer_types`."""
_FACTORS: Mapping[str, frozenset[str]] = {
    "logit_scale": frozenset({"cohere", "cohere2"}),
    "logits_scaling": frozenset({"granite", "granitemoe", "granitemoehybrid", "hyperclovax"}),
}
"""Fields that scale the logits, and the model types in which their meaning is known."""
_DIVISORS = frozenset({"granite", "granitemoe", "granitemoehybrid"})
"""Model types whose `logits_scaling` divides."""
_CAPS = ("final_logit_softcapping", "attn_logit_softcapping")
_CAPPED = ("gemma2", "gemma3_text")
"""Measured model types with a cap of the logits: the classes of the others do not read the field."""
_OUTPUT = re.compile(r"logits?_(scal|mult|soft|cap)|lm_head_(scal|mult)|logit_cap")
"""Names of fields that change the logits."""
_QUANTISED = ("compression_config", "quantization_config")
"""Fields of quantised weights."""
_DEQUANTISED: Mapping[str, str] = {
    # Without save_original_format=False transformers 5.19 writes all experts under one wrong name.
    "mxfp4": ", or save it by transformers: from_pretrained(FOLDER, quantization_config=Mxfp4Config(dequantize=True)), "
    "then save_pretrained(OTHER, save_original_format=False)",
}
"""Formats of quantised weights that have no published folder without them, and how to get one."""
_EXPERT = re.compile(r"expert|router|(^|_)moe(_|$)")
"""Names of fields of mixtures of experts."""
_ROUTER_FIELDS = ("output_router_logits", "router_aux_loss_coef", "router_jitter_noise")
"""Those that dense families have too."""
_NOISE = re.compile(r"dropout|_pdrop$|layerdrop|jitter_noise")
"""Names of fields of noise in training."""
_CAUSAL: Mapping[str, bool] = {"is_causal": True, "use_bidirectional_attention": False}
"""Fields that make attention causal, and their values."""


PROVEN = frozenset(
    {
        *("arcee", "cohere", "cohere2", "ernie4_5", "exaone4", "gemma", "gemma2", "gemma3_text", "glm4"),
        *("gpt_neox", "gpt_oss", "granite", "granitemoe", "granitemoehybrid", "helium", "hyperclovax", "llama"),
        *("ministral", "mistral", "mixtral", "olmo", "olmo2", "olmo3", "olmoe", "phi", "phi3", "qwen2", "qwen2_moe"),
        *("qwen3", "qwen3_moe", "seed_oss", "smollm3", "starcoder2"),
    }
)
"""Model types whose log-probabilities a test compares with transformers, padded and packed: see docs/models.md."""


MIXTURES = ("gpt_oss", "granitemoe", "mixtral", "olmoe", "qwen2_moe", "qwen3_moe")
"""Model types whose mixtures of experts are trained, with a replay of the experts that the engines chose."""


_CLASS_NAMES = {
    **{"cohere": "Cohere", "cohere2": "Cohere2", "ernie4_5": "Ernie4_5", "exaone4": "Exaone4", "gemma": "Gemma"},
    **{"gemma2": "Gemma2", "gemma3_text": "Gemma3", "glm4": "Glm4", "gpt_neox": "GPTNeoX", "granite": "Granite"},
    **{"granitemoe": "GraniteMoe", "granitemoehybrid": "GraniteMoeHybrid", "helium": "Helium", "llama": "Llama"},
    **{"hyperclovax": "HyperCLOVAX", "ministral": "Ministral", "mistral": "Mistral", "mixtral": "Mixtral"},
    **{"olmo": "Olmo", "olmo2": "Olmo2", "olmo3": "Olmo3", "olmoe": "Olmoe", "phi": "Phi", "phi3": "Phi3"},
    **{"qwen2": "Qwen2", "qwen2_moe": "Qwen2Moe", "qwen3": "Qwen3", "qwen3_moe": "Qwen3Moe", "seed_oss": "SeedOss"},
    **{"arcee": "Arcee", "gpt_oss": "GptOss", "smollm3": "SmolLM3", "starcoder2": "Starcoder2"},
}
CAUSAL_CLASSES = {kind: f"{name}ForCausalLM" for kind, name in _CLASS_NAMES.items()}
"""The class of a causal language model of each proven model type. A test compares them with transformers."""


REFUSED: Mapping[str, str] = {
    "bitnet": "its published models compute with ternary weights and 8-bit activations, which the trainer does not "
    "have: use another model",
}
"""Model types that the trainer computes otherwise than their published models, and what to do."""


ADAPTED = (
    *("cohere", "cohere2", "ernie4_5", "exaone4", "gemma", "gemma2", "gemma3_text", "granite", "helium", "hyperclovax"),
    *("llama", "ministral", "mistral", "olmo", "olmo2", "olmo3", "qwen2", "qwen3", "seed_oss", "smollm3"),
)
"""Model types that can be trained with LoRA: each layer has the seven linear layers of `LoRASpec`, under these names in
the files, in transformers and in vLLM."""


@dataclass(frozen=True, slots=True)
class OutputLayer:
    """The changes of a model to the products of the hidden states with its output weight."""

    scale: float = 1.0
    softcap: float | None = None
    """Cap c: logits become c * tanh(logits / c)."""


class UnsupportedModel(ValueError):
    """The trainer cannot compute a model exactly. The message names the field of config.json and the fix."""


def is_proven(folder: Path) -> bool:
    """Return whether a test proves the model type of a folder's config.json. Raises InvalidConfig."""
    return read_config(folder).get("model_type") in PROVEN


def unsupported_mixture(name: str, kind: object) -> str:
    """Return why a model type outside MIXTURES is refused. `name`: of a field, tensor or parameter of its experts."""
    return (
        f"{name}: mixtures of experts of model_type {kind!r} are not supported, only {', '.join(MIXTURES)}: use one of "
        "them, or a dense model"
    )


def expert_fields(config: Mapping[str, Any]) -> list[str]:
    """Return the names of the fields by which a model has experts; those of their number first.

    Any name that speaks of experts counts: families name the number of experts in many ways.
    """
    counts = [name for name in EXPERTS if config.get(name)]
    others = [name for name, value in config.items() if value and _EXPERT.search(name) and name not in _ROUTER_FIELDS]
    if config.get("model_type") == "granitemoehybrid":  # the dense ones have the fields of the mixtures too
        return counts
    return list(dict.fromkeys([*counts, *others]))


def find_notes(config: Mapping[str, Any]) -> list[str]:
    """Return the fields of config.json that change training in other trainers, and that this trainer does not apply.

    They change no log-probability: dropout, noise of routers, auxiliary losses. Custom code is not run.
    """
    names = [name for name, value in config.items() if is_number(value) and value and _NOISE.search(name)]
    notes = [f"{', '.join(names)}: dropout and noise are off in all stages"] if names else []
    if config.get("output_router_logits"):
        notes.append("output_router_logits: the auxiliary loss of the routers is not computed")
    if config.get("auto_map") and config.get("model_type") in PROVEN:
        notes.append("auto_map: custom code is not run; the classes of transformers and vLLM are used")
    return notes


def expert_count(config: Mapping[str, Any]) -> int:
    """Return the experts of a layer of a mixture; 0: the model is none."""
    values = with_defaults(config)
    return next((int(values[name]) for name in EXPERTS if values.get(name)), 0)


def output_layer(config: Mapping[str, Any]) -> OutputLayer:
    """Return the output layer of a model. Raises UnsupportedModel for an unknown field that changes the logits."""
    kind, scale = str(config.get("model_type", "")), 1.0
    for name, value in config.items():
        if not isinstance(value, (int, float)) or isinstance(value, bool) or name in _CAPS or not _OUTPUT.search(name):
            continue
        if kind in _FACTORS.get(name, ()):
            scale = 1.0 / value if kind in _DIVISORS else float(value)
        elif value != 1:
            raise UnsupportedModel(
                f"{name}: {value} changes the logits in a way that the trainer does not know for model_type {kind!r}: "
                "use another model"
            )
    cap = config.get("final_logit_softcapping")
    if cap and kind in PROVEN and kind not in _CAPPED:
        raise UnsupportedModel(
            f"final_logit_softcapping: {cap}: the class of model_type {kind!r} has no cap: remove it"
        )
    return OutputLayer(scale, None if not cap else float(cap))


def find_obstacles(
    config: Mapping[str, Any], *, packed: bool, longest: int = 0, adapter: bool = False
) -> Iterator[str]:
    """Yield why the trainer refuses a model.

    Args:
        config: the content of config.json.
        packed: whether micro-batches are packed.
        longest: tokens of the longest sequence; 0: unknown.
        adapter: whether an adapter is trained in place of the model.
    """
    config = with_defaults(config)
    kind = config.get("model_type")
    if reason := REFUSED.get(str(kind)):
        yield f"model_type {kind!r}: {reason}"
    for name in _QUANTISED:
        if config.get(name) is not None:
            remedy = _DEQUANTISED.get(str(config[name].get("quant_method")), "")
            yield f"{name}: quantised weights cannot be trained; use the folder of the unquantised model{remedy}"
    if fault := find_faulty_dtype(config):
        yield fault
    if config.get("auto_map") and kind not in PROVEN:
        yield (
            f"auto_map: custom code is not run, and model_type {kind!r} is not measured: remove the field if the class "
            "of transformers is the model, or use another model"
        )
    classes = config.get("architectures")
    expected = CAUSAL_CLASSES.get(str(kind))
    if classes and expected and classes != [expected]:
        yield (
            f"architectures: {', '.join(classes)}: the trainer uses the class of the model_type, and vLLM that of this "
            f"field: set it to [{expected!r}], or use another model"
        )
    if any(config.get(name) for name in ("vision_config", "audio_config", "text_config")):
        yield f"model_type {kind!r} is a model for images or audio: save its text model as a folder of its own"
    if adapter and kind not in ADAPTED:
        yield f"model_type {kind!r} is not supported with LoRA, only {', '.join(ADAPTED)}: remove lora"
    if config.get("is_encoder_decoder"):
        yield "is_encoder_decoder: only decoders are trained: use another model"
    if config.get("return_dict", True) is not True:
        yield "return_dict: other than true: the class would return its results without their names: remove the field"
    for name, value in _CAUSAL.items():
        if config.get(name, value) not in (value, None):
            yield f"{name}: {config[name]}: each token would attend to later ones: use a causal model"
    experts = expert_fields(config)
    if experts and kind not in MIXTURES:
        yield unsupported_mixture(experts[0], kind)
    if config.get("sliding_window") == 0:
        yield "sliding_window: 0: classes take it for no window, or for one without tokens: set it to null"
    if kind == "qwen2_moe" and config.get("use_sliding_window"):
        yield "use_sliding_window: the class has its windows only as masks, which packed sequences do not have"
    try:
        output_layer(config)
    except UnsupportedModel as error:
        yield str(error)
    others = sorted(set(config.get("layer_types") or ()) - KINDS)
    if packed and others:
        yield f"layer_types: layers of kind {', '.join(others)} cannot be packed: set spec.trainer.packing: false"
    yield from find_rope_faults(config)
    yield from find_length_faults(config, longest=longest, engines=False)
