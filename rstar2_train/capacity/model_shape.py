"""The shape of a transformer, dense or a mixture of experts: the numbers from which memory and time follow.

Read from the config.json of a local model folder. `known_models.json` has the shapes of models whose source is not on
this machine, such as hf:// or pvc:// sources.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from rstar2_train.capacity.config_file import CONFIG, InvalidConfig, read_config, stored_dtype_name
from rstar2_train.capacity.model_defaults import with_defaults
from rstar2_train.capacity.model_support import ADAPTED, MIXTURES, expert_count

KNOWN_MODELS = Path(__file__).with_name("known_models.json")
SHAPE_KEYS = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
_EXPERT_WIDTH = dict.fromkeys(("gpt_oss", "granitemoe", "mixtral", "olmoe"), "intermediate_size")
"""Field with the width of an expert, by model type; of all others moe_intermediate_size."""
_SHARED_WIDTH = {"qwen2_moe": "shared_expert_intermediate_size"}
"""Field with the width of an expert that computes all tokens, by model type."""
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of a number, by the name of its format in config.json."""
_HEAD_NORMS, _WIDE_NORMS = ("exaone4", "qwen3", "qwen3_moe"), ("olmo2", "olmo3", "olmoe")
"""Model types that normalise queries and keys: each head with the same weights, or all heads together."""
_HEAD_SLOTS = ("ernie4_5", "exaone4", "granite", "hyperclovax", "llama", "qwen3")
"""Model types whose class in vLLM can adapt the output projection too: a slot for an adapter has its matrices."""
_EMBEDDING_SLOTS = (
    *_HEAD_SLOTS,
    *("cohere", "cohere2", "helium", "ministral", "olmo", "olmo2", "olmo3", "seed_oss", "smollm3"),
)
"""Model types whose class in vLLM can adapt the embedding too: `embedding_modules` of its classes."""
_VARIANT = re.compile(r"-(base|chat|instruct|thinking|math|coder|v\d+(\.\d+)*|\d{4})(?=-|$)")
"""Parts of a name that do not change the shape: the purpose of a variant, its version, its date."""


class UnknownModel(ValueError):
    """The shape of a model cannot be found. The message names what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterShape:
    """The size of an adapter (trainer.lora)."""

    parameters: int
    layer_values: int
    """Values per token that the adapters of one layer keep for the backward pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The shape of a model with attention and a gated MLP, or gated experts, in every layer (Qwen3, Qwen2.5, Llama)."""

    name: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool
    """Whether the output projection is the embedding."""
    qk_norm: int
    """Weights of the norms over the queries and keys of a layer; 0: none."""
    qkv_bias: bool
    """Whether queries, keys and values have a bias (Qwen2.5)."""
    max_positions: int | None = None
    """Longest sequence in tokens."""
    experts: int = 0
    """Experts of a layer of a mixture; 0: a dense model."""
    chosen_experts: int = 0
    """Experts that compute a token."""
    expert_intermediate: int = 0
    """Values per token between the matrices of one expert."""
    shared_intermediate: int = 0
    """Values per token between the matrices of an expert that computes all tokens; 0: a layer has none."""
    dense_layers: int = 0
    """Layers of a mixture without experts."""
    stored_bytes: int | None = None
    """Bytes per weight of a final model; None: the source has no config.json on this machine."""
    wide_slots: int = 0
    """Matrices as large as the embedding that an engine can adapt: 0 to 2."""
    adaptable: bool = True
    """Whether the model can be trained with LoRA."""

    @property
    def query_width(self) -> int:
        """Values per token of all query heads."""
        return self.heads * self.head_dim

    @property
    def key_width(self) -> int:
        """Values per token of all key heads."""
        return self.kv_heads * self.head_dim

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer; of a mixture, of one with experts."""
        return self._without_mlp + (self._experts(self.experts) if self.experts else self._dense_mlp)

    @property
    def _dense_mlp(self) -> int:
        return 3 * self.hidden * self.intermediate

    def _experts(self, count: int) -> int:
        """Return the parameters of a router, of some of its experts, and of a shared expert with its gate."""
        shared = 3 * self.shared_intermediate + 1 if self.shared_intermediate else 0
        return self.hidden * (self.experts + 3 * self.expert_intermediate * count + shared)

    @property
    def _without_mlp(self) -> int:
        attention = self.hidden * (2 * self.query_width + 2 * self.key_width)
        norms = 2 * self.hidden + self.qk_norm
        bias = self.query_width + 2 * self.key_width if self.qkv_bias else 0
        return attention + norms + bias

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the embedding, and of an output projection of its own."""
        return self.vocabulary * self.hidden

    @property
    def root_parameters(self) -> int:
        """Parameters outside the layers: embedding, output projection and the last norm."""
        return self.embedding_parameters * (1 if self.tied else 2) + self.hidden

    @property
    def parameters(self) -> int:
        """All parameters; tied ones once."""
        return self._all_layers(self.experts) + self.root_parameters

    def _all_layers(self, experts: int) -> int:
        """Return the parameters of all layers, with some of the experts of each."""
        if not self.experts:
            return self.layers * self.layer_parameters
        mixed = (self.layers - self.dense_layers) * self._experts(experts)
        return self.layers * self._without_mlp + self.dense_layers * self._dense_mlp + mixed

    @property
    def matrix_parameters(self) -> int:
        """Parameters of all matrices that multiply: all but the embedding. A large batch needs all experts."""
        return self._all_layers(self.experts) + self.embedding_parameters

    @property
    def active_parameters(self) -> int:
        """Parameters that every token is multiplied with: of a mixture only the chosen experts."""
        return self._all_layers(self.chosen_experts) + self.embedding_parameters

    def adapter(self, *, rank: int, modules: Collection[str]) -> AdapterShape:
        """Return the size of an adapter. `modules`: names of its target layers, such as q_proj."""
        layer = rank * sum(sum(self._widths[name]) for name in modules)
        return AdapterShape(parameters=self.layers * layer, layer_values=rank * len(modules))

    def slot_values(self, *, rank: int, tensor_parallel: int) -> float:
        """Return the values of a slot for an adapter in one of an engine's GPUs: vLLM has one for all linear layers.

        A layer that is divided by its outputs has a whole A and a part of B, one that is divided by its inputs a part
        of A and a whole B. Embedding and output projection have whole ones, though no adapter of a job has them.
        """
        by_input = ("o_proj", "down_proj")
        layer = 0.0
        for name, (inputs, outputs) in self._widths.items():
            whole, divided = (outputs, inputs) if name in by_input else (inputs, outputs)
            layer += rank * (whole + divided / tensor_parallel)
        return self.layers * layer + self.wide_slots * rank * (self.vocabulary + self.hidden)

    @property
    def _widths(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of the linear layers of a layer."""
        return {
            "q_proj": (self.hidden, self.query_width),
            "k_proj": (self.hidden, self.key_width),
            "v_proj": (self.hidden, self.key_width),
            "o_proj": (self.query_width, self.hidden),
            "gate_proj": (self.hidden, self.intermediate),
            "up_proj": (self.hidden, self.intermediate),
            "down_proj": (self.intermediate, self.hidden),
        }

    def kv_bytes_per_token(self, value_bytes: int) -> int:
        """Return the bytes of keys and values of one token in all layers."""
        return 2 * self.layers * self.key_width * value_bytes

    def forward_flops(self, tokens: float, squares: float) -> float:
        """Return the operations of one forward pass over `tokens` tokens.

        `squares`: sum of the squared lengths of the sequences; causal attention computes half of each square.
        """
        return 2 * self.active_parameters * tokens + 2 * self.layers * self.query_width * squares


def read_shape(source: str, *, folder: Path | None = None) -> ModelShape:
    """Return the shape of a model source.

    `folder`: the local folder of the source, if it has one.

    Raises:
        UnknownModel: if the folder has no usable config.json, or the source is no known model.
    """
    if folder is not None:
        try:
            return shape_of(read_config(folder), name=folder.name)
        except InvalidConfig as error:
            raise UnknownModel(f"spec.model.source: {error}") from error
        except ValueError as error:
            raise UnknownModel(f"spec.model.source: {folder / CONFIG} cannot be used: {error}") from error
    models = _known_models()
    name = source.split("@")[0].split("/")[-1]
    key = "generated" if source.startswith("generated://") else _without_variant(name)
    for known, config in models.items():
        if key == _without_variant(known):
            return replace(shape_of(config, name=name), stored_bytes=None)
    raise UnknownModel(
        f"spec.model.source: the shape of {source} is not known. Pass --model FOLDER with a folder that has its "
        f"config.json, or use one of {', '.join(models)}."
    )


def local_shape(source: str) -> ModelShape | None:
    """Return the shape of a source, which is the path of a folder if it is on this machine; None: it is not known."""
    folder = Path(source)
    try:
        return read_shape(source, folder=folder if folder.is_dir() else None)
    except UnknownModel:
        return None


def _without_variant(name: str) -> str:
    return _VARIANT.sub("", name.lower())


@cache
def _known_models() -> dict[str, dict[str, Any]]:
    models: dict[str, dict[str, Any]] = json.loads(KNOWN_MODELS.read_text(encoding="utf-8"))["models"]
    return models


def shape_of(config: Mapping[str, Any], *, name: str) -> ModelShape:
    """Return the shape in a config.json. Raises ValueError for a missing field or an unknown mixture of experts.

    Fields that the class of the model sets may be missing (`with_defaults`).
    """
    config = with_defaults(config)
    is_mixture = expert_count(config) > 0
    kind = str(config.get("model_type", "qwen3"))
    expert_width = _EXPERT_WIDTH.get(kind, "moe_intermediate_size")
    shared = [_SHARED_WIDTH[kind]] if kind in _SHARED_WIDTH else []
    keys = [*SHAPE_KEYS, *(("num_experts_per_tok", expert_width, *shared) if is_mixture else ())]
    missing = [key for key in keys if not isinstance(config.get(key), int)]
    if missing:
        raise ValueError(f"it has no {', '.join(missing)}")
    if is_mixture and config.get("model_type") not in MIXTURES:
        raise ValueError(
            f"rstar2 plan does not support mixtures of experts of model_type {config.get('model_type')!r}, only "
            f"{', '.join(MIXTURES)}"
        )
    heads = int(config["num_attention_heads"])
    head_dim = int(config.get("head_dim") or config["hidden_size"] // heads)
    kv_heads = int(config.get("num_key_value_heads") or heads)
    qk_norm = 2 * head_dim if kind in _HEAD_NORMS else (heads + kv_heads) * head_dim if kind in _WIDE_NORMS else 0
    positions = config.get("max_position_embeddings")
    return ModelShape(
        name=name,
        layers=int(config["num_hidden_layers"]),
        hidden=int(config["hidden_size"]),
        intermediate=int(config["intermediate_size"]),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocabulary=int(config["vocab_size"]),
        tied=bool(config.get("tie_word_embeddings", False)),
        qk_norm=qk_norm,
        qkv_bias=bool(config.get("attention_bias", False) or config.get("qkv_bias", kind in ("qwen2", "qwen2_moe"))),
        max_positions=positions if isinstance(positions, int) else None,
        stored_bytes=stored_bytes(config),
        adaptable=kind in ADAPTED,
        wide_slots=(kind in _HEAD_SLOTS) + (kind in _EMBEDDING_SLOTS),
        **(_mixture(config, kind, expert_width) if is_mixture else {}),
    )


def stored_bytes(config: Mapping[str, Any]) -> int | None:
    """Return the bytes per weight of a model by its config.json; None: a format that cannot be trained."""
    return _BYTES.get(stored_dtype_name(config))


def folder_bytes(folder: Path) -> int | None:
    """Return the bytes per weight of a model folder; None: it has no config.json. Raises InvalidConfig."""
    return stored_bytes(read_config(folder)) if (folder / CONFIG).is_file() else None


def _mixture(config: Mapping[str, Any], kind: str, expert_width: str) -> dict[str, int]:
    """Return the fields of the shape of a mixture.

    `kind`: its model type; `expert_width`: name of the field with the width of an expert.
    """
    every, dense = config.get("decoder_sparse_step") or 1, config.get("mlp_only_layers") or ()
    layers = range(int(config["num_hidden_layers"]))
    return {
        "experts": expert_count(config),
        "chosen_experts": int(config["num_experts_per_tok"]),
        "expert_intermediate": int(config[expert_width]),
        "shared_intermediate": int(config.get(_SHARED_WIDTH.get(kind, ""), 0)),
        "dense_layers": sum(layer in dense or (layer + 1) % every != 0 for layer in layers),
    }
