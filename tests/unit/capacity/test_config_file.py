"""A config.json that no class can read is refused with the field, never with a traceback."""

from __future__ import annotations

import contextlib
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from rstar2_train.capacity.config_file import InvalidConfig, read_config
from rstar2_train.capacity.engine_support import find_engine_obstacles
from rstar2_train.capacity.model_shape import UnknownModel, read_shape
from rstar2_train.capacity.model_support import find_notes, find_obstacles

SIZES = {
    **{"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2},
    **{"vocab_size": 96, "intermediate_size": 96, "max_position_embeddings": 64},
}
FIELDS = (
    *SIZES,
    *("architectures", "auto_map", "attn_logit_softcapping", "decoder_sparse_step", "dtype", "final_logit_softcapping"),
    *("head_dim", "is_causal", "layer_types", "logit_scale", "logits_scaling", "max_window_layers", "mlp_only_layers"),
    *("model_type", "moe_num_experts", "no_rope_layer_interval", "no_rope_layers", "num_experts", "num_local_experts"),
    *("partial_rotary_factor", "quantization_config", "rope_parameters", "rope_scaling", "sliding_window"),
    *("sliding_window_pattern", "text_config", "tie_word_embeddings", "use_sliding_window", "rope_theta"),
)
VALUES: tuple[Any, ...] = (None, "x", -1, 0, [], {}, {"a": 1}, True, 1.5, float("nan"), [1], "Infinity", [[]])
KINDS = ("smollm3", "qwen2_moe", "exaone4", "granitemoehybrid", "new")


@pytest.mark.parametrize("kind", KINDS)
def test_any_value_of_a_field_is_read_or_refused(kind: str, tmp_path: Path) -> None:
    """No value of any field raises another error, in any check of config.json."""
    for name, value in itertools.product(FIELDS, VALUES):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, **SIZES, name: value}))
        try:
            config = read_config(tmp_path)
        except InvalidConfig as error:
            assert name in error.reason
            continue
        for packed in (True, False):
            list(find_obstacles(config, packed=packed, longest=32))
        list(find_engine_obstacles(config, longest=32))
        find_notes(config)
        with contextlib.suppress(UnknownModel):
            read_shape("m", folder=tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "download the folder again"),
        ("", "download the folder again"),
        ("\xff", "download the folder again"),
        ("[]", "it is no JSON object"),
        ('{"head_dim": 8, "head_dim": 16}', "an object has the key 'head_dim' twice: download"),
        ('{"rope_scaling": "linear"}', "rope_scaling: 'linear' is not an object"),
        ('{"rope_scaling": []}', "rope_scaling: [] is not an object"),
        ('{"layer_types": 3}', "layer_types: 3 is not a list of texts"),
        (
            '{"layer_types": ["full_attention"], "num_hidden_layers": 2}',
            "layer_types: 1 values, num_hidden_",
        ),
        ('{"sliding_window": "8"}', "sliding_window: '8' is not a whole number"),
        ('{"num_key_value_heads": [1]}', "num_key_value_heads: [1] is not a whole number"),
        ('{"num_attention_heads": 0}', "num_attention_heads: 0 is not a whole number above 0"),
        ('{"num_attention_heads": 4, "num_key_value_heads": 3}', "3 does not divide num_attention_heads, 4"),
        ('{"num_experts": [8]}', "num_experts: [8] is not a whole number"),
        ('{"num_local_experts": 6, "num_experts_per_tok": 7}', "7 is more than the experts of a layer, 6: correct it"),
        ('{"pad_token_id": 96, "vocab_size": 96}', "pad_token_id: 96 is no token of the vocabulary, vocab_size is 96"),
        ('{"logits_scaling": 0}', "logits_scaling: 0 is not a number above 0"),
        ('{"tie_word_embeddings": "yes"}', "tie_word_embeddings: 'yes' is not true or false"),
    ],
)
def test_read_config_names_file_and_field(text: str, message: str, tmp_path: Path) -> None:
    """The reason has a remedy."""
    (tmp_path / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(InvalidConfig) as caught:
        read_config(tmp_path)
    assert message in str(caught.value) and f"{tmp_path / 'config.json'} cannot be used: " in str(caught.value)
