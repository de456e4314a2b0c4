"""Verifies an adapter before it is used: its files, its rank and scale, and the form of its tensors.

`verify_adapter` is for a published version, before an engine loads it; `inspect_adapter` for any adapter of peft.

vLLM ignores unknown names and fields: it would load a file of another version, another scale, or the layers of another
model without an error. Pure, except for the reads; without torch.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from safetensors import safe_open

from rstar2_train.capacity.config_file import is_number
from rstar2_train.capacity.weight_headers import DOWNLOAD, InvalidWeights, StoredTensor, read_header, read_tensors
from rstar2_train.utils.files import file_sha256, read_object
from rstar2_train.utils.text import reason
from rstar2_train.weights.adapter_folder import (
    BASE_FIELD,
    CONFIG,
    PREFIX,
    TENSORS,
    AdapterIdentity,
    find_base,
    folder_digest,
    open_tensors,
    tensor_name,
)
from rstar2_train.weights.shard_file import ShardFileInvalid
from rstar2_train.weights.version_store import read_manifest

LayerShapes = dict[str, tuple[int, int]]
"""Rows and columns of the weight of each layer, by the layer's name in the model."""
_FIXED: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "task_type": (None, "CAUSAL_LM"),
    # Other initialisations change the base.
    "init_lora_weights": (None, True, False, "gaussian"),
}
"""Field of peft's config -> its values with the meaning of plain LoRA."""
_READ = ("r", "lora_alpha", "target_modules")
_WITHOUT_EFFECT = (
    *(BASE_FIELD, "revision", "auto_mapping", "inference_mode", "lora_dropout", "megatron_core", "peft_version"),
    "qalora_group_size",
)
"""Fields of peft's config that do not change a forward pass of a trained adapter. Any other one must be unset."""
_UNSET: tuple[Any, ...] = (None, False)
"""Values of an unset field. 0 is none of them, although it equals False: peft takes it as the number of a layer."""
_LISTS = (
    *("rank_pattern", "alpha_pattern", "loftq_config", "layers_to_transform", "layers_pattern", "exclude_modules"),
    *("modules_to_save", "target_parameters", "layer_replication"),
)
"""Fields that are unset if they are empty. Others are set then: peft applies an empty kasa_config."""
_EXPONENTS: dict[str, tuple[Any, int]] = {
    "F32": (np.uint32, 0x7F800000),
    "BF16": (np.uint16, 0x7F80),
    "F16": (np.uint16, 0x7C00),
}
"""Dtype -> integers of its size, and the bits that are all set in NaN and infinity."""
_TRANSPOSED = ("gpt2", "openai-gpt")
"""Types of models whose layers are transformers' Conv1D; the shape of a square one does not show it."""
_TENSOR = re.compile(re.escape(PREFIX) + r"(.+)\.(lora_[AB])\.weight")
_WHOLE_COPIES = re.compile(r"\.base_layer\.|\.modules_to_save\.|lora_embedding_")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterOrder:
    """The adapter that an engine must load."""

    folder: str
    """Absolute path of its version."""
    version: str
    """Weight version that the engine reports."""
    version_id: str
    """Id of this version of this run."""
    adapter: AdapterIdentity
    """The adapter that the ranks train, which the files must agree with."""

    def to_json(self) -> dict[str, Any]:
        """Return JSON values, for `from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """Return the order of JSON values. Raises TypeError for other fields."""
        return cls(**{**content, "adapter": AdapterIdentity.from_json(content["adapter"])})


def verify_adapter(order: AdapterOrder) -> LayerShapes:
    """Read and verify all files of a version; return the layers that it adapts.

    Raises:
        ShardFileInvalid: names the file that is missing or damaged, or that is not the adapter of the order.
    """
    folder = Path(order.folder)
    manifest = read_manifest(folder)
    if (manifest.id, manifest.version) != (order.version_id, order.version):
        actual, wanted = f"{manifest.version} ({manifest.id})", f"{order.version} ({order.version_id})"
        raise ShardFileInvalid(f"{folder} has version {actual}, expected {wanted}")
    if {file.name for file in manifest.files} != {CONFIG, TENSORS}:
        raise ShardFileInvalid(f"{folder} is not a version of an adapter: it must have {CONFIG} and {TENSORS}")
    for file in manifest.files:
        _verify_file(folder / file.name, size=file.bytes, digest=file.digest)
    _verify_config(folder / CONFIG, order.adapter)
    layers = _layers(folder / TENSORS, rank=order.adapter.rank, modules=order.adapter.modules)
    if (base := find_base(folder)) != order.adapter.base:
        raise ShardFileInvalid(f"{folder / TENSORS} has the base {base}, the job has {order.adapter.base}")
    return layers


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAdapter:
    """The form of an adapter in a folder, which may be of another program."""

    identity: AdapterIdentity
    """Its `base` is empty if the file has no digest."""
    base_folder: str
    """The base that its config names: a folder, or a name in a registry."""
    layers: LayerShapes


def check_layers(adapter: Path, form: StoredAdapter, base: Path) -> dict[str, StoredTensor]:
    """Compare the layers of an adapter with those of a model folder; return the tensors of the folder.

    Raises:
        ShardFileInvalid: for a folder that cannot be read, that has other layers, or that stores them transposed.
    """
    try:
        tensors = read_tensors(base)
    except InvalidWeights as error:
        raise ShardFileInvalid(str(error)) from error
    if (kind := read_base_config(base).get("model_type")) in _TRANSPOSED:
        raise ShardFileInvalid(
            f"{base} has model_type {kind!r}, which stores the weights of its layers transposed: merge {adapter} with "
            "the program that trained it"
        )
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    if difference := find_difference(form.layers, shapes, modules=form.identity.modules):
        raise ShardFileInvalid(f"{adapter} is not an adapter of {base}: {difference}")
    return tensors


def read_base_config(base: Path) -> dict[str, Any]:
    """Return the config of a model folder. Raises ShardFileInvalid if it cannot be read."""
    try:
        return read_object(base / "config.json")
    except ValueError as error:
        raise ShardFileInvalid(f"{error}: {DOWNLOAD}") from error


def check_base(adapter: Path, identity: AdapterIdentity, base: Path) -> None:
    """Compare a model folder with the digest of an adapter's base, if it has one. Reads all weights of the folder.

    Raises:
        ShardFileInvalid: for other weights than those of the training.
    """
    if identity.base and folder_digest(base) != identity.base:
        raise ShardFileInvalid(f"{adapter} was trained on other weights than those of {base}: their SHA-256 differs")


def inspect_adapter(folder: Path) -> StoredAdapter:
    """Return the form of an adapter: peft's two files with plain LoRA of linear layers.

    Raises:
        ShardFileInvalid: names the file that cannot be read, or its field or tensor that has another meaning.
    """
    config = _read_config(folder / CONFIG)
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if type(rank) is not int or rank < 1 or alpha is None or not is_number(alpha) or alpha == 0:
        raise ShardFileInvalid(f"{folder / CONFIG} has r {rank!r} and lora_alpha {alpha!r}, which are no scale")
    modules = _modules(folder / CONFIG, config)
    if not (folder / TENSORS).exists() and (other := sorted(folder.glob("adapter_model*"))):
        raise ShardFileInvalid(
            f"{folder} has {other[0].name} and no {TENSORS}: save the adapter again, in one file, with "
            "PeftModel.save_pretrained(FOLDER, safe_serialization=True)"
        )
    layers = _layers(folder / TENSORS, rank=rank, modules=modules, dtypes=tuple(_EXPONENTS))
    if unused := sorted(module for module in modules if not any(_is_target(layer, [module]) for layer in layers)):
        raise ShardFileInvalid(
            f"{folder / TENSORS} has no tensors of the target {unused[0]!r} of {CONFIG}: copy the adapter again, or "
            "remove the target if the model does not have it"
        )
    identity = AdapterIdentity(base=find_base(folder) or "", rank=rank, alpha=alpha, modules=tuple(modules))
    base = str(config.get(BASE_FIELD) or "")
    return StoredAdapter(identity=identity, base_folder=base, layers=layers)


def find_difference(layers: LayerShapes, model: dict[str, tuple[int, ...]], *, modules: Collection[str] = ()) -> str:
    """Return the first layer that only one of an adapter and a model has; empty if both have the same.

    `model`: shapes of all tensors of the model folder. `modules`: targets of the adapter, of which it needs each layer.
    """
    for layer, shape in sorted(layers.items()):
        actual = model.get(f"{layer}.weight")
        if actual is None:
            return f"the adapter has layer {layer!r}, which the model does not have"
        if tuple(actual) != tuple(shape):
            return f"the adapter's layer {layer!r} has shape {tuple(shape)}, the model has {tuple(actual)}"
    targets = (name.removesuffix(".weight") for name in sorted(model) if name.endswith(".weight"))
    if missing := next((layer for layer in targets if layer not in layers and _is_target(layer, modules)), ""):
        return f"the model has the target layer {missing!r}, which the adapter does not have: copy the adapter again"
    return ""


def is_zero(folder: Path) -> bool:
    """Return whether an adapter changes nothing, because B is zero in each layer. Reads up to the first other B."""
    with open_tensors(folder) as file:
        names = list(file.keys())
        return not any(file.get_tensor(name).any() for name in names if ".lora_B." in name)


def _verify_file(path: Path, *, size: int, digest: str) -> None:
    try:
        actual = path.stat().st_size
        if actual != size:
            raise ShardFileInvalid(f"{path} is damaged or truncated: it has {actual} bytes, expected {size}")
        if file_sha256(path) != digest:
            raise ShardFileInvalid(f"{path} is damaged: its SHA-256 differs from that of the manifest")
    except OSError as error:
        raise ShardFileInvalid(f"{path} cannot be read: {reason(error)}") from error


def _verify_config(path: Path, adapter: AdapterIdentity) -> None:
    """Raise ShardFileInvalid if a config is not that of an adapter."""
    config = _read_config(path)
    for name, expected in {"r": adapter.rank, "lora_alpha": adapter.alpha}.items():
        if config.get(name) != expected:
            raise ShardFileInvalid(f"{path} has {name} {config.get(name)!r}, the job has {expected!r}")
    if (modules := _modules(path, config)) != set(adapter.modules):
        raise ShardFileInvalid(f"{path} has target_modules {sorted(modules)}, the job has {sorted(adapter.modules)}")


def _read_config(path: Path) -> dict[str, Any]:
    """Return the content of a config. Raises ShardFileInvalid if a field gives the tensors another meaning."""
    try:
        config = read_object(path)
    except ValueError as error:
        raise ShardFileInvalid(f"{path} is not a config of peft: {error}") from error
    for name, expected in _FIXED.items():
        if not _is_one_of(value := config.get(name), expected):
            raise ShardFileInvalid(f"{path} has {name} {value!r}, supported: {expected}")
    for name, value in config.items():
        unset = (*_UNSET, [], {}) if name in _LISTS else _UNSET
        if name not in _FIXED and name not in (*_READ, *_WITHOUT_EFFECT) and not _is_one_of(value, unset):
            raise ShardFileInvalid(
                f"{path} sets {name}, which is not supported: merge the adapter with the program that trained it"
            )
    return config


def _is_one_of(value: Any, values: tuple[Any, ...]) -> bool:
    """Return whether a value equals one of others of its own type: 0 is not False."""
    return any(type(value) is type(other) and value == other for other in values)


def _modules(path: Path, config: dict[str, Any]) -> set[str]:
    """Return the target modules of a config. Raises ShardFileInvalid for another form, such as a pattern."""
    modules = config.get("target_modules")
    if not isinstance(modules, list) or not all(isinstance(name, str) for name in modules):
        raise ShardFileInvalid(
            f"{path} has target_modules {modules!r}, which must be a list of names: write the names of the layers in "
            "the place of a pattern"
        )
    return set(modules)


def _is_target(layer: str, modules: Collection[str]) -> bool:
    """Return whether the name of a layer is, or ends with, one of the target modules, as peft selects them."""
    return any(layer == module or layer.endswith(f".{module}") for module in modules)


def _unknown_tensor(path: Path, name: str) -> ShardFileInvalid:
    """Return the error of a tensor that is not A or B of a linear layer."""
    if _WHOLE_COPIES.search(name):
        return ShardFileInvalid(
            f"{path} has {name!r}: adapters of embeddings and whole copies of layers are not supported: train without "
            "them; save_pretrained(FOLDER, save_embedding_layers=False) omits a copy of the output layer"
        )
    return ShardFileInvalid(
        f"{path} has {name!r}, which is not named as peft saves it ({PREFIX}LAYER.lora_A.weight): save the adapter "
        "again with PeftModel.save_pretrained"
    )


def _check_finite(path: Path) -> None:
    """Raise ShardFileInvalid, with the name of the tensor, for NaN and infinity. One tensor at a time is in memory."""
    try:
        for name, tensor in sorted(read_header(path).items()):
            integers, bits = _EXPONENTS[tensor.dtype]
            count = (tensor.stop - tensor.start) // np.dtype(integers).itemsize
            values = np.fromfile(path, integers, count=count, offset=tensor.start)
            if ((values & bits) == bits).any():
                raise ShardFileInvalid(
                    f"{path}: {name} has values that are not finite: use an adapter of an earlier step"
                )
    except (InvalidWeights, OSError) as error:
        raise ShardFileInvalid(f"{path} cannot be read: {error}") from error


def _layers(path: Path, *, rank: int, modules: Collection[str], dtypes: tuple[str, ...] = ("F32",)) -> LayerShapes:
    """Return the layers of the tensors; each has finite A [rank, columns] and B [rows, rank], in one of `dtypes`."""
    shapes: dict[str, tuple[int, ...]] = {}
    try:
        with safe_open(path, framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                part = file.get_slice(name)
                if part.get_dtype() not in dtypes:
                    wanted = " or ".join(dtypes)
                    raise ShardFileInvalid(f"{path}: {name} has dtype {part.get_dtype()}, expected {wanted}")
                shapes[name] = tuple(part.get_shape())
    except ShardFileInvalid:
        raise
    except Exception as error:  # safetensors has errors of its own
        raise ShardFileInvalid(f"{path} cannot be read: {error}") from error
    if not shapes:
        raise ShardFileInvalid(f"{path} has no tensors")
    names = set()
    for name in sorted(shapes):
        if (match := _TENSOR.fullmatch(name)) is None or _WHOLE_COPIES.search(name) or match[1].endswith(".default"):
            raise _unknown_tensor(path, name)
        names.add(match[1])
    layers: LayerShapes = {}
    for layer in sorted(names):
        a, b = shapes.pop(tensor_name(layer, "lora_A"), ()), shapes.pop(tensor_name(layer, "lora_B"), ())
        if len(a) != 2 or len(b) != 2 or a[0] != rank or b[1] != rank:
            raise ShardFileInvalid(f"{path}: {layer} has A {list(a)} and B {list(b)}, which do not have rank {rank}")
        if not _is_target(layer, modules):
            raise ShardFileInvalid(f"{path}: {layer} is not a target of {CONFIG}")
        layers[layer] = (b[0], a[1])
    _check_finite(path)
    return layers
