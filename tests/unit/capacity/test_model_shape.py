"""Shapes of models: parameters by arithmetic against published figures, and the source of a shape."""

import json
from pathlib import Path

import pytest

from rstar2_train.capacity.model_shape import KNOWN_MODELS, UnknownModel, read_shape, shape_of
from rstar2_train.capacity.model_support import ADAPTED
from rstar2_train.data.tiny import policy
from tests.support.config_fields import adapted_embeddings

KNOWN = json.loads(KNOWN_MODELS.read_text(encoding="utf-8"))["models"]


@pytest.mark.parametrize("name", KNOWN)
def test_shape_parameters_equal_published_figure(name: str) -> None:
    """The parameters of each known model are within 2 % of its model card, or of its last printed digit."""
    published = KNOWN[name]["published_billions"]
    assert read_shape(name).parameters / 1e9 == pytest.approx(published, rel=0.02, abs=0.05 if published > 1 else 0.005)


def test_shape_tiny_model_equals_its_folder() -> None:
    """The table's entry for the demo's model has the values with which the demo writes it."""
    shape = read_shape("generated://tiny/base")
    assert (shape.layers, shape.hidden, shape.intermediate) == (policy.LAYERS, policy.HIDDEN, policy.INTERMEDIATE)
    assert (shape.heads, shape.kv_heads, shape.head_dim) == (policy.HEADS, policy.KEY_VALUE_HEADS, policy.HEAD)
    assert shape.vocabulary == policy.VOCABULARY and shape.max_positions == policy.MAX_POSITIONS


@pytest.mark.parametrize(
    ("source", "known"),
    [
        ("hf://Qwen/Qwen3-14B-Base@abc123", "Qwen3-14B"),
        ("pvc://models/Qwen3-14B", "Qwen3-14B"),
        ("/models/qwen3-14b-instruct-2507", "Qwen3-14B"),
        ("hf://mistralai/Mixtral-8x7B-Instruct-v0.1", "Mixtral-8x7B-v0.1"),
        ("hf://Qwen/Qwen1.5-MoE-A2.7B-Chat", "Qwen1.5-MoE-A2.7B"),
        ("hf://allenai/OLMoE-1B-7B-0924-Instruct", "OLMoE-1B-7B-0924"),
        ("hf://ibm-granite/granite-3.1-3b-a800m-instruct", "granite-3.1-3b-a800m"),
        ("hf://Qwen/Qwen2.5-Math-7B-Instruct", "Qwen2.5-7B"),
    ],
)
def test_shape_source_variants_have_one_shape(source: str, known: str) -> None:
    """A source names the model by its last part; variants and revisions have the same shape."""
    assert read_shape(source).parameters == shape_of(KNOWN[known], name=known).parameters


@pytest.mark.parametrize("source", ["hf://mistralai/Mixtral-8x22B-Instruct-v0.1", "hf://Qwen/Qwen3-14B-Embedding"])
def test_shape_of_another_size_is_not_known(source: str) -> None:
    """Only variants of a known size have its shape."""
    with pytest.raises(UnknownModel):
        read_shape(source)


def test_shape_unknown_source_lists_known_models() -> None:
    """The error of an unknown model names the field, and the option that gives its shape."""
    with pytest.raises(UnknownModel, match=r"spec\.model\.source.*--model FOLDER.*Qwen3-14B"):
        read_shape("hf://acme/secret-7b")


def test_shape_config_without_layers_is_rejected(tmp_path: Path) -> None:
    """A config.json without the numbers of a shape is an error that names the missing fields."""
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 8}))
    with pytest.raises(UnknownModel, match="it has no num_hidden_layers"):
        read_shape("anything", folder=tmp_path)


def test_shape_mixture_has_all_and_active_parameters() -> None:
    """A mixture has the parameters of all experts; a token is multiplied with those of the chosen ones."""
    mixture = read_shape("Qwen3-30B-A3B")
    # 3.3 billion in the model card; the embedding is no matrix that multiplies.
    assert mixture.active_parameters / 1e9 == pytest.approx(3.3 - 151936 * 2048 / 1e9, abs=0.07)
    assert mixture.forward_flops(1, 0) == 2 * mixture.active_parameters
    assert mixture.matrix_parameters == mixture.parameters - mixture.embedding_parameters - mixture.hidden
    config = KNOWN["Qwen3-30B-A3B"]
    some_dense = shape_of(config | {"mlp_only_layers": [0], "decoder_sparse_step": 2}, name="")
    assert some_dense.dense_layers == 24


@pytest.mark.parametrize(("name", "billions"), [("Mixtral-8x7B-v0.1", 12.9), ("Qwen1.5-MoE-A2.7B", 2.7)])
def test_shape_active_parameters_equal_published_figure(name: str, billions: float) -> None:
    """The active parameters of a model card: those that multiply, and the embedding."""
    shape = read_shape(name)
    assert (shape.active_parameters + shape.embedding_parameters) / 1e9 == pytest.approx(billions, rel=0.01)


def test_shape_mixture_without_shared_width_is_rejected() -> None:
    """The shared expert would be missing in every figure."""
    config = KNOWN["Qwen1.5-MoE-A2.7B"] | {"shared_expert_intermediate_size": None}
    with pytest.raises(ValueError, match="it has no shared_expert_intermediate_size"):
        shape_of(config, name="moe")


def test_shape_unknown_mixture_is_rejected() -> None:
    """The MLPs of another class may have other parameters: no wrong figure, but an error."""
    with pytest.raises(ValueError, match="mixtures of experts of model_type 'other'"):
        shape_of(KNOWN["Qwen3-30B-A3B"] | {"model_type": "other"}, name="moe")


@pytest.mark.parametrize("kind", ADAPTED)
def test_shape_has_the_wide_slots_of_the_engine(kind: str) -> None:
    """vLLM has matrices for the embedding in each slot, though no adapter of a job has them, of some classes only."""
    assert shape_of(KNOWN["Qwen3-8B"] | {"model_type": kind}, name="").wide_slots == adapted_embeddings(kind)
