"""Fields of rotary embeddings that transformers and vLLM do not read alike are refused."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

import pytest

from rstar2_train.capacity.engine_support import find_engine_obstacles
from rstar2_train.capacity.model_support import PROVEN
from rstar2_train.capacity.rope_fields import ROPE_FIELDS, find_length_faults, find_rope_faults, position_limit

LONG = {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [2.0], "original_max_position_embeddings": 128}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {
    **{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        ({}, ""),
        ({"rope_type": "default", "rope_theta": 1e4}, ""),
        ({"type": "linear", "factor": 4.0}, ""),
        ({"rope_type": "linear", "type": "linear", "factor": 4.0, "partial_rotary_factor": 1.0}, ""),
        (YARN | {"attention_factor": 1.1, "beta_fast": 32, "beta_slow": 1, "truncate": True}, ""),
        (LLAMA3, ""),
        (LONG, ""),
        (LONG | {"factor": 32.0, "attention_factor": 1.3093073414159542}, ""),
        ({"full_attention": {"rope_type": "linear", "factor": 8.0}, "sliding_attention": {"rope_theta": 1e4}}, ""),
        (LONG | {"attention_factor": 2.5}, "attention_factor: 2.5 of the rotary embedding is read by transformers"),
        (LONG | {"factor": 8.0}, "factor: 8.0 of the rotary embedding is read by transformers only"),
        (LONG | {"short_mscale": 1.1}, "short_mscale of the rotary embedding is not supported"),
        ({"rope_type": "longrope", "short_factor": [1.0]}, "needs long_factor"),
        (LONG | {"long_factor": "x"}, "long_factor: 'x' of the rotary embedding is not a number"),
        ({"rope_type": "su"}, "rope_type: 'su' is not supported"),
        ({"rope_type": "nonsense"}, "rope_type: 'nonsense' is not supported"),
        ({"rope_type": ["yarn"]}, "is not supported"),
        ({"rope_type": "proportional"}, "rope_type: 'proportional' is not supported"),
        ({"rope_type": "linear", "type": "yarn", "factor": 2.0}, "type: 'yarn' of the rotary embedding is not"),
        ({"rope_type": "dynamic", "factor": 2.0, "alpha": 2.0}, "alpha of the rotary embedding"),
        ({"rope_type": "default", "mrope_section": [1, 2]}, "mrope_section of the rotary embedding"),
        ({"rope_type": "default", "use_fope": True}, "use_fope of the rotary embedding"),
        ({"rope_type": "linear"}, "rope_type linear needs factor"),
        (YARN | {"beta_fast": 0}, "beta_fast: '0' of the rotary embedding is not a number above 0"),
        (YARN | {"factor": float("nan")}, "factor: 'nan'"),
        ({"full_attention": YARN | {"truncate": False}, "sliding_attention": {}}, "truncate of the rotary embedding"),
        ({"full_attention": YARN, "factor": 8.0}, "factor of the rotary embedding is next to those"),
    ],
)
def test_find_rope_faults_allows_only_what_both_read(rope: dict[str, Any], message: str) -> None:
    """Each type has a list of fields; all others are refused, for trainer and engines."""
    kind = "gemma3_text" if "full_attention" in rope else "llama"
    config = {"model_type": kind, "max_position_embeddings": 4096, "rope_parameters": rope}
    actual = "; ".join(find_rope_faults(config))
    assert message in actual if message else actual == ""
    assert not message or actual in "; ".join(find_engine_obstacles(config, longest=64))


@pytest.mark.parametrize("kind", ["gemma3_text", "olmo3"])
@pytest.mark.parametrize(("field", "is_refused"), [("rope_parameters", True), ("rope_scaling", False)])
def test_rotary_embedding_of_all_kinds_of_layers_is_an_old_form(kind: str, field: str, is_refused: bool) -> None:
    """transformers would add those of the kinds of layers to one in rope_parameters."""
    faults = list(find_rope_faults({"model_type": kind, field: {"rope_type": "default", "rope_theta": 1e4}}))
    assert ["per kind of layer: write" in fault for fault in faults] == [True] * is_refused


@pytest.mark.parametrize("kind", sorted(PROVEN))
def test_rotary_embedding_per_kind_of_layer_needs_its_class(kind: str) -> None:
    """Other classes of transformers look for the fields themselves, and an engine stops at its start."""
    module = kind.removesuffix("_text")
    source = inspect.getsource(import_module(f"transformers.models.{module}.modeling_{module}"))
    faults = list(find_rope_faults({"model_type": kind, "rope_parameters": {"full_attention": {"rope_theta": 1e4}}}))
    assert any("has one rotary embedding" in fault for fault in faults) != ("rope_parameters[layer_type]" in source)


@pytest.mark.parametrize("name", ["rope_parameters", "rope_scaling"])
def test_lengths_that_disagree_are_refused(name: str) -> None:
    """transformers and vLLM take the original length from different places."""
    config = {name: LONG, "original_max_position_embeddings": 64}
    assert any("another value than the model" in fault for fault in find_rope_faults(config))
    both = {"rope_parameters": LONG, "rope_scaling": YARN}
    assert any("rope_parameters is set too" in fault for fault in find_rope_faults(both))


@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
@pytest.mark.parametrize("engines", [False, True])
def test_lengths_above_the_trained_one_are_refused(kind: str, engines: bool) -> None:
    """The frequencies depend on the longest sequence of a batch, or on the longest one that an engine allows."""
    rope = LONG if kind == "longrope" else {"rope_type": "dynamic", "factor": 2.0}
    config = {"rope_parameters": rope, "max_position_embeddings": 128}
    assert not list(find_length_faults(config, longest=128, engines=engines))
    for longest in (129, 0):
        faults = list(find_length_faults(config, longest=longest, engines=engines))
        assert len(faults) == 1 and faults[0].startswith(f"rope_type {kind}: ")


def test_rope_types_are_those_of_transformers() -> None:
    """A type that transformers adds is refused until it is compared with vLLM."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    assert set(ROPE_FIELDS) == {"default", *ROPE_INIT_FUNCTIONS} - {"proportional"}


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        ({"model_type": "new"}, None),
        ({"model_type": "llama"}, 2048),
        ({"max_position_embeddings": 64}, 64),
        ({"max_position_embeddings": 100, "rope_scaling": YARN}, 256),
    ],
)
def test_position_limit_has_the_factor_of_yarn(config: dict[str, Any], limit: int | None) -> None:
    """Qwen's folders with YaRN keep the original max_position_embeddings."""
    assert position_limit(config) == limit
