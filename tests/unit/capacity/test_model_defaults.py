"""The values of missing fields are those of the classes of transformers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from rstar2_train.capacity.model_defaults import DEFAULTS, EXPERTS, with_defaults
from rstar2_train.capacity.model_shape import shape_of
from rstar2_train.capacity.model_support import PROVEN, expert_count

SIZES = {
    "num_hidden_layers": 7,
    "hidden_size": 1280,
    "intermediate_size": 96,
    "num_attention_heads": 8,
    "vocab_size": 200_000,
}
FIELDS = frozenset(name for row in DEFAULTS.values() for name in row) | {"layer_types"}
WINDOWS: tuple[dict[str, Any], ...] = (
    {},
    {"sliding_window": 64},
    {"sliding_window": 64, "use_sliding_window": True},
    {"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 3},
    {"sliding_window": 64, "use_sliding_window": True, "no_rope_layer_interval": 2},
    {"sliding_window": 64, "sliding_window_pattern": 3},
    {"sliding_window": 64, "layer_types": ["full_attention"] * 7},
)


def test_defaults_have_each_measured_family() -> None:
    """A family without a row would have the values of none."""
    assert set(DEFAULTS) >= PROVEN


@pytest.mark.parametrize("kind", DEFAULTS)
def test_defaults_equal_the_class(kind: str) -> None:
    """Each missing field, and the kinds of layers that follow from others, has the value of the class."""
    for window in WINDOWS:
        raw = {"model_type": kind, **SIZES, **window}
        actual, config = with_defaults(raw), CONFIG_MAPPING[kind](**SIZES, **window)
        for name in FIELDS - set(EXPERTS):
            # No value stands for the one that follows from the sizes.
            none = {"head_dim": 160, "num_key_value_heads": 8}.get(name)
            assert (actual.get(name) or none) == (getattr(config, name, None) or none), (name, window)
        assert expert_count(actual) == expert_count(config.to_dict())


@pytest.mark.parametrize("kind", sorted(PROVEN))
def test_shape_of_missing_fields_is_that_of_the_class(kind: str) -> None:
    """The shape of a config.json is that of the config with all fields."""
    raw = {"model_type": kind, **SIZES}
    whole = CONFIG_MAPPING[kind](**SIZES).to_dict()
    if kind == "granitemoehybrid":  # mixtures of this class are refused
        raw, whole = raw | {"num_local_experts": 0}, whole | {"num_local_experts": 0}
    assert asdict(shape_of(raw, name=kind)) == asdict(shape_of(whole, name=kind))
