"""The fields of a rotary embedding that transformers and vLLM read alike, by its type. Pure.

transformers 5.19 and vLLM 0.32 have functions of their own for each `rope_type`. A field that is not listed is read by
one of them, or by none: the model would be another one without an error.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from rstar2_train.capacity.config_file import is_number
from rstar2_train.capacity.model_defaults import DEFAULTS, with_defaults

ORIGINAL = "original_max_position_embeddings"
_COMMON = frozenset({"rope_type", "type", "rope_theta", "partial_rotary_factor"})
ROPE_FIELDS: Mapping[str, frozenset[str]] = {
    "default": frozenset(),
    "dynamic": frozenset({"factor"}),
    "linear": frozenset({"factor"}),
    "llama3": frozenset({"factor", "high_freq_factor", "low_freq_factor", "original_max_position_embeddings"}),
    # factor and attention_factor: transformers reads them, vLLM derives them from the lengths.
    "longrope": frozenset(
        {"attention_factor", "factor", "long_factor", "original_max_position_embeddings", "short_factor"}
    ),
    "yarn": frozenset(
        {
            *("attention_factor", "beta_fast", "beta_slow", "factor", "mscale", "mscale_all_dim"),
            *("original_max_position_embeddings", "truncate"),
        }
    ),
}
"""Fields besides those of all types."""
_NEEDED: Mapping[str, tuple[str, ...]] = {
    "dynamic": ("factor",),
    "linear": ("factor",),
    "llama3": ("factor", "high_freq_factor", "low_freq_factor"),
    "longrope": ("long_factor", "short_factor"),
    "yarn": ("factor",),
}
_LISTS = ("long_factor", "short_factor")
_BY_LAYER = ("gemma3_text", "olmo3")
"""Model types of the table of defaults that have a rotary embedding per kind of layer."""
_BATCH = ("dynamic", "longrope")
"""Types whose frequencies depend on the longest sequence of a batch in transformers, above the trained length, and on
the longest one that an engine allows in vLLM."""


def rope_parts(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the rotary embeddings of a model: one, or one for each kind of layer."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    nested = [part for part in rope.values() if isinstance(part, Mapping)]
    return nested or ([rope] if rope else [])


def find_rope_faults(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the fields of the rotary embeddings that transformers and vLLM do not read alike, or cannot read."""
    if (both := config.get("rope_scaling")) and (rope := config.get("rope_parameters")) and both != rope:
        yield "rope_scaling: rope_parameters is set too, with other values: remove one of them"
        return
    parts, rope = rope_parts(config), config.get("rope_parameters") or config.get("rope_scaling") or {}
    nested = bool(parts) and parts[0] is not rope
    flat = sorted(name for name, value in rope.items() if value is not None and not isinstance(value, Mapping))
    kind = config.get("model_type")
    if nested and kind in DEFAULTS and kind not in _BY_LAYER:
        yield (
            f"rope_parameters: the class of model_type {kind!r} has one rotary embedding for all layers: write its "
            f"fields without {', '.join(rope)} around them"
        )
    if kind in _BY_LAYER and not nested and config.get("rope_parameters"):
        yield (
            f"rope_parameters: the class of model_type {kind!r} has one rotary embedding per kind of layer: write the "
            "fields of each one under full_attention and sliding_attention"
        )
    if nested and flat:
        yield f"{flat[0]} of the rotary embedding is next to those of the kinds of layers: remove it"
    for part in parts:
        yield from _faults(part, config, nested=nested)


def _faults(part: Mapping[str, Any], config: Mapping[str, Any], *, nested: bool) -> Iterator[str]:
    kind, legacy = part.get("rope_type", part.get("type", "default")), part.get("type")
    if not isinstance(kind, str) or kind not in ROPE_FIELDS:
        yield f"rope_type: {kind!r} is not supported, only {', '.join(ROPE_FIELDS)}: use another model"
        return
    if legacy not in (None, kind):
        yield f"type: {legacy!r} of the rotary embedding is not its rope_type, {kind!r}: remove it"
    values = {name: value for name, value in part.items() if value is not None}
    lengths = {length for owner in (part, config) if (length := owner.get(ORIGINAL)) is not None}
    if len(lengths) > 1:
        yield f"{ORIGINAL}: the rotary embedding has another value than the model: remove one of them"
    allowed = _COMMON | ROPE_FIELDS[kind]
    if nested:
        allowed -= {"truncate"}  # transformers reads that of the model, not that of a kind of layers
    for name in sorted(values.keys() - allowed):
        yield (
            f"{name} of the rotary embedding is not supported with rope_type {kind!r}, because transformers and vLLM "
            "do not both read it: remove it, or use another model"
        )
    for name in sorted(values.keys() & allowed - {"rope_type", "type"}):
        if not _is_right(name, values[name]):
            yield f"{name}: {str(values[name])[:40]!r} of the rotary embedding is not a number above 0: correct it"
            return
    missing = [name for name in _NEEDED.get(kind, ()) if name not in values]
    if missing:
        yield f"rope_type {kind} needs {', '.join(missing)}: add it"
    elif kind == "longrope":
        yield from _longrope_faults(values, config)


def _is_right(name: str, value: Any) -> bool:
    if name == "truncate":
        return isinstance(value, bool)
    if name in _LISTS:
        return isinstance(value, list) and value != [] and all(is_number(part) and part > 0 for part in value)
    return is_number(value) and value > 0


def _longrope_faults(part: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[str]:
    """Yield factors that differ from those that vLLM derives from the two lengths."""
    original = original_length(part, config)
    longest = config.get("max_position_embeddings")
    if not original or not longest:
        if "factor" in part or "attention_factor" in part:
            yield "factor of the rotary embedding needs max_position_embeddings and its original length: add them"
        return
    ratio = longest / original
    attention = 1.0 if ratio <= 1 or original == 1 else math.sqrt(1 + math.log(ratio) / math.log(original))
    for name, expected in (("factor", ratio), ("attention_factor", attention)):
        if name in part and not math.isclose(part[name], expected, rel_tol=1e-6):
            yield (
                f"{name}: {part[name]} of the rotary embedding is read by transformers only, vLLM computes with "
                f"{expected:.6g}, from max_position_embeddings and its original length: use another model"
            )


def original_length(part: Mapping[str, Any], config: Mapping[str, Any]) -> int:
    """Return the length for which the frequencies of a model are trained; 0: unknown."""
    return int(part.get(ORIGINAL) or config.get(ORIGINAL) or config.get("max_position_embeddings") or 0)


def position_limit(config: Mapping[str, Any]) -> int | None:
    """Return the tokens of the longest sequence of a model, with the factor of YaRN; None: config.json has no limit."""
    limit = with_defaults(config).get("max_position_embeddings")
    if limit is None:
        return None
    extended = [part["factor"] * original_length(part, config) for part in rope_parts(config) if _extends(part)]
    return int(max([limit, *extended]))


def _extends(part: Mapping[str, Any]) -> bool:
    return part.get("rope_type", part.get("type")) == "yarn" and is_number(part.get("factor"))


def find_length_faults(config: Mapping[str, Any], *, longest: int, engines: bool) -> Iterator[str]:
    """Yield rotary embeddings whose frequencies depend on lengths above the trained one.

    `longest`: tokens of the longest sequence, 0: unknown; `engines`: whether it is that of the engines, which use other
    frequencies for all sequences if they allow a longer one.
    """
    for part in rope_parts(config):
        kind = part.get("rope_type", part.get("type"))
        if kind not in _BATCH:
            continue
        limit = int(config.get("max_position_embeddings") or 0) if kind == "dynamic" else original_length(part, config)
        if longest and longest <= limit:
            continue
        cause = (
            f"an engine that allows more than {limit:,} tokens has other frequencies, for short sequences too"
            if engines
            else f"beyond {limit:,} tokens its frequencies depend on the longest sequence of a batch, so a sequence "
            "would not have the same values in every batch"
        )
        remedy = "in each stage and in spec.validation" if engines else "in each stage that learns"
        yield (
            f"rope_type {kind}: {cause}; the job's longest sequence has {longest or 'an unknown number of'} tokens: "
            f"lower maxPromptTokens, maxResponseTokens and maxTokens {remedy}, or use another rope_type (yarn)"
        )
        return
