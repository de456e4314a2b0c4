"""Which models the trainer refuses by their config.json."""

from __future__ import annotations

from typing import Any

import pytest

from rstar2_train.capacity.model_support import (
    CAUSAL_CLASSES,
    PROVEN,
    OutputLayer,
    UnsupportedModel,
    find_notes,
    find_obstacles,
    output_layer,
)

LONGROPE = {"rope_type": "longrope", "long_factor": [2.0], "short_factor": [1.0]}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"model_type": "qwen3"}, OutputLayer()),
        ({"model_type": "granite", "logits_scaling": 8.0}, OutputLayer(scale=0.125)),
        ({"model_type": "granitemoe", "logits_scaling": 8.0}, OutputLayer(scale=0.125)),
        ({"model_type": "hyperclovax", "logits_scaling": 8.0}, OutputLayer(scale=8.0)),
        ({"model_type": "cohere2", "logit_scale": 0.25}, OutputLayer(scale=0.25)),
        ({"model_type": "gemma2", "final_logit_softcapping": 30.0}, OutputLayer(softcap=30.0)),
        ({"model_type": "gemma3_text", "final_logit_softcapping": None}, OutputLayer()),
        ({"model_type": "mixtral", "output_router_logits": False, "lm_head_multiplier": 1.0}, OutputLayer()),
    ],
)
def test_output_layer_of_each_family(config: dict[str, Any], expected: OutputLayer) -> None:
    """Granite divides by its factor, HyperCLOVA X and Cohere multiply; other models have none."""
    assert output_layer(config) == expected


@pytest.mark.parametrize("field", ["logits_scaling", "logit_scale", "lm_head_multiplier", "output_logit_soft_cap"])
def test_output_layer_unknown_field_is_refused(field: str) -> None:
    """The same name has different meanings in different families: only known ones are computed."""
    with pytest.raises(UnsupportedModel, match=rf"{field}: 2.0 changes the logits .* model_type 'new'"):
        output_layer({"model_type": "new", field: 2.0})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"num_local_experts": 8}, "num_local_experts: mixtures of experts"),
        ({"model_type": "qwen3_moe", "num_experts": 8, "quantization_config": {"bits": 4}}, "quantised weights"),
        (
            {"model_type": "qwen2_moe", "num_experts": 8, "use_sliding_window": True},
            "use_sliding_window: .* only as masks",
        ),
        ({"quantization_config": {"bits": 4}}, "quantised weights cannot be trained"),
        ({"quantization_config": {}}, "quantised weights cannot be trained"),  # no program can read such a folder
        *(({"return_dict": value}, "return_dict: other .* remove the field") for value in (False, None, 0, "false")),
        ({"compression_config": {"bits": 4}}, "compression_config: quantised weights cannot be trained"),
        ({"model_type": "ernie4_5_moe", "moe_num_experts": 64}, "moe_num_experts: mixtures of experts"),
        ({"model_type": "aria_text", "moe_topk": 2}, "moe_topk: mixtures of experts"),
        ({"model_type": "llama", "n_expert": 8}, "n_expert: mixtures of experts"),
        ({"router_hidden": 8}, "router_hidden: mixtures of experts"),
        ({"dtype": "bf16"}, "dtype: 'bf16' is not supported: set it to .* float32, bfloat16, float16"),
        ({"torch_dtype": "auto"}, "torch_dtype: 'auto' is not supported"),
        ({"dtype": "float64"}, "dtype: 'float64' is not supported"),
        ({"dtype": "float8_e4m3fn"}, "dtype: 'float8_e4m3fn' is not supported"),
        ({"dtype": {"a": 1}}, "dtype: {'a': 1} is not supported"),
        ({"auto_map": {"AutoModelForCausalLM": "m.X"}}, "auto_map: custom code is not run"),
        ({"model_type": "llama", "architectures": ["MistralForCausalLM"]}, "architectures: MistralForCausalLM: the"),
        ({"model_type": "llama", "architectures": ["LlamaForSequenceClassification"]}, "set it to .'LlamaForCausalLM'"),
        ({"text_config": {"hidden_size": 8}}, "save its text model"),
        ({"is_encoder_decoder": True}, "only decoders"),
        ({"model_type": "llama", "sliding_window": 0}, "sliding_window: 0: "),
        ({"is_causal": False}, "is_causal: False: each token would attend to later ones"),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "use_bidirectional_attention: True"),
        (
            {"model_type": "llama", "final_logit_softcapping": 30.0},
            "final_logit_softcapping: 30.0: .* has no cap",
        ),
        ({"model_type": "bitnet"}, "model_type 'bitnet': .* ternary weights"),
        ({"logit_scale": 2.0}, "logit_scale: 2.0 changes the logits"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "linear_attention cannot be packed"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}, "max_position_embeddings": 64}, "rope_type dynamic"),
        (
            {"rope_parameters": LONGROPE, "original_max_position_embeddings": 64},
            "rope_type longrope: beyond 64 tokens .* has 100 tokens",
        ),
    ],
)
def test_find_obstacles_names_field_and_fix(config: dict[str, Any], message: str) -> None:
    """Each model that the trainer does not compute exactly is refused with the field."""
    with pytest.raises(UnsupportedModel, match=message):
        raise UnsupportedModel("; ".join(find_obstacles({"model_type": "new"} | config, packed=True, longest=100)))


def test_find_obstacles_accepts_what_is_exact() -> None:
    """Dense models, windows, and rotary embeddings that no sequence of the job scales."""
    windows = {"model_type": "gemma3_text", "layer_types": ["sliding_attention", "full_attention"]}
    assert not list(find_obstacles(windows, packed=True))
    hybrid = {"model_type": "new", "layer_types": ["linear_attention"]}
    assert not list(find_obstacles(hybrid, packed=False))
    long = {"rope_parameters": LONGROPE | {"original_max_position_embeddings": 64}}
    assert not list(find_obstacles(long, packed=True, longest=64))
    for kind, field in (
        ("olmoe", "num_experts"),
        ("mixtral", "num_local_experts"),
        ("granitemoe", "num_local_experts"),
    ):
        assert not list(find_obstacles({"model_type": kind, field: 8}, packed=True))
    mixture = {"model_type": "qwen3_moe", "num_experts": 8}
    assert not list(find_obstacles(mixture, packed=True))
    assert any("not supported with LoRA" in obstacle for obstacle in find_obstacles(mixture, packed=True, adapter=True))
    assert not list(find_obstacles({"num_local_experts": 0, "model_type": "granitemoehybrid"}, packed=True))


def test_find_obstacles_reads_missing_fields_from_the_class() -> None:
    """A Granite 4 without these fields is a mixture, with layers that cannot be packed."""
    obstacles = list(find_obstacles({"model_type": "granitemoehybrid", "num_hidden_layers": 2}, packed=True))
    assert [obstacle.partition(":")[0] for obstacle in obstacles] == ["num_local_experts", "layer_types"]


@pytest.mark.parametrize(
    ("config", "notes"),
    [
        ({"model_type": "llama", "attention_dropout": 0.0}, []),
        ({"model_type": "llama", "attention_dropout": 0.1}, ["attention_dropout: dropout and noise are off"]),
        ({"model_type": "phi", "resid_pdrop": 0.1, "embd_pdrop": 0.2}, ["resid_pdrop, embd_pdrop: dropout"]),
        ({"model_type": "mixtral", "router_jitter_noise": 0.1}, ["router_jitter_noise: dropout and noise"]),
        ({"model_type": "mixtral", "output_router_logits": True}, ["output_router_logits: the auxiliary loss"]),
        ({"model_type": "phi3", "auto_map": {"AutoConfig": "c.Phi3Config"}}, ["auto_map: custom code is not run"]),
    ],
)
def test_find_notes_names_fields_that_are_not_applied(config: dict[str, Any], notes: list[str]) -> None:
    """Fields without an effect on log-probabilities are stated, not refused."""
    assert not list(find_obstacles(config, packed=True, longest=64))
    actual = find_notes(config)
    assert len(actual) == len(notes) and all(text.startswith(note) for text, note in zip(actual, notes, strict=True))


def test_causal_classes_are_those_of_transformers() -> None:
    """vLLM chooses its class by `architectures`, transformers by the model type."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    assert {kind: MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind] for kind in PROVEN} == CAUSAL_CLASSES
