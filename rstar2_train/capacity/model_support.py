"""Which models the trainer computes exactly, by their config.json. Pure, without torch.

`rstar2 validate` and the ranks refuse the others by name, before anything starts. `trainer.self_check` measures at each
start whether the trainer's numbers are those of the model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rstar2_train.capacity.model_defaults import EXPERTS, with_defaults

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
_CAUSAL: Mapping[str, bool] = {"is_causal": True, "use_bidirectional_attention": False}
"""Fields that make attention causal, and their values."""
_BATCH_ROPE = ("dynamic", "longrope")
"""Rotary embeddings whose frequencies depend on the longest sequence of a batch, above the trained length."""


PROVEN = frozenset(
    {
        *("arcee", "cohere", "cohere2", "ernie4_5", "exaone4", "gemma", "gemma2", "gemma3_text", "glm4"),
        *("gpt_neox", "granite", "granitemoe", "granitemoehybrid", "helium", "hyperclovax", "llama", "ministral"),
        *("mistral", "mixtral", "olmo", "olmo2", "olmo3", "olmoe", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3"),
        *("qwen3_moe", "seed_oss", "smollm3", "starcoder2"),
    }
)
"""Model types whose log-probabilities a test compares with transformers, padded and packed: see docs/models.md."""


MIXTURES = ("granitemoe", "mixtral", "olmoe", "qwen2_moe", "qwen3_moe")
"""Model types whose mixtures of experts are trained, with a replay of the experts that the engines chose."""


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
    """Return whether a test proves the model type of a folder's config.json."""
    return json.loads((folder / "config.json").read_text(encoding="utf-8")).get("model_type") in PROVEN


def expert_count(config: Mapping[str, Any]) -> int:
    """Return the experts of a layer of a mixture; 0: the model is none."""
    return next((int(config[name]) for name in EXPERTS if config.get(name)), 0)


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
                f"{name}: {value} changes the logits in a way that the trainer does not know for model_type {kind!r}"
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
    if config.get("quantization_config"):
        yield "quantization_config: quantised weights cannot be trained; use the folder of the unquantised model"
    if any(config.get(name) for name in ("vision_config", "audio_config", "text_config")):
        yield f"model_type {kind!r} is a model for images or audio: save its text model as a folder of its own"
    if adapter and kind not in ADAPTED:
        yield f"model_type {kind!r} is not supported with LoRA, only {', '.join(ADAPTED)}: remove lora"
    if config.get("is_encoder_decoder"):
        yield "is_encoder_decoder: only decoders are trained"
    for name, value in _CAUSAL.items():
        if config.get(name, value) not in (value, None):
            yield f"{name}: {config[name]}: each token would attend to later ones; only causal models are trained"
    experts = next((name for name in EXPERTS if config.get(name)), None)
    if experts and kind not in MIXTURES:
        yield (
            f"{experts}: mixtures of experts of model_type {kind!r} are not supported, only {', '.join(MIXTURES)}: use "
            "one of them, or a dense model"
        )
    if kind == "qwen2_moe" and config.get("use_sliding_window"):
        yield "use_sliding_window: the class has its windows only as masks, which packed sequences do not have"
    try:
        output_layer(config)
    except UnsupportedModel as error:
        yield str(error)
    others = sorted(set(config.get("layer_types") or ()) - KINDS)
    if packed and others:
        yield f"layer_types: layers of kind {', '.join(others)} cannot be packed: set spec.trainer.packing: false"
    yield from _rope_obstacles(config, longest)


def _rope_obstacles(config: Mapping[str, Any], longest: int) -> Iterator[str]:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    nested = [rope, *(part for part in rope.values() if isinstance(part, Mapping))]
    kinds = {part.get("rope_type", part.get("type")) for part in nested}
    for kind in _BATCH_ROPE:
        if kind not in kinds:
            continue
        limits = [part.get("original_max_position_embeddings") for part in nested]
        limits = [config.get("original_max_position_embeddings"), *limits]
        if kind == "dynamic":
            limits = [config.get("max_position_embeddings")]
        limit = next((int(value) for value in limits if value), 0)
        if not longest or longest > limit:
            yield (
                f"rope_type {kind}: beyond {limit:,} tokens its frequencies depend on the longest sequence of a batch, "
                f"so a sequence would not have the same values in every batch; the job's longest sequence has "
                f"{longest or 'an unknown number of'} tokens: lower maxResponseTokens, or use another rope_type (yarn)"
            )
