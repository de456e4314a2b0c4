"""Verifies an adapter before it is used: its files, its rank and scale, and the form of its tensors.

`verify_adapter` is for a published version, before an engine loads it; `inspect_adapter` for any adapter of peft.

vLLM ignores unknown names and fields: it would load a file of another version, another scale, or the layers of another
model without an error. Pure, except for the reads; without torch.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from safetensors import safe_open

from rstar2_train.utils.files import file_sha256
from rstar2_train.weights.adapter_folder import (
    BASE_FIELD,
    CONFIG,
    PREFIX,
    TENSORS,
    AdapterIdentity,
    find_base,
    folder_digest,
    read_tensors,
    tensor_name,
)
from rstar2_train.weights.shard_file import ShardFileInvalid
from rstar2_train.weights.version_store import read_manifest

LayerShapes = dict[str, tuple[int, int]]
"""Rows and columns of the weight of each layer, by the layer's name in the model."""
_FIXED = {"peft_type": "LORA", "bias": "none"}
_INITIALIZATIONS = (None, True, False, "gaussian")
"""Values of init_lora_weights that leave the base as it is."""
_FLOATS = ("F32", "BF16", "F16")
_UNUSED = (
    *("use_dora", "use_rslora", "lora_bias", "fan_in_fan_out", "modules_to_save", "rank_pattern", "alpha_pattern"),
    *("layer_replication", "target_parameters", "trainable_token_indices", "alora_invocation_tokens", "use_qalora"),
    *("use_bdlora", "arrow_config", "kasa_config", "velora_config", "monteclora_config"),
)
"""Fields of peft's config that change the meaning of the tensors, and that no adapter of this project sets."""


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
    if not isinstance(rank, int) or rank < 1 or not isinstance(alpha, int | float):
        raise ShardFileInvalid(f"{folder / CONFIG} has r {rank!r} and lora_alpha {alpha!r}, which are no scale")
    modules = _modules(folder / CONFIG, config)
    layers = _layers(folder / TENSORS, rank=rank, modules=modules, dtypes=_FLOATS)
    identity = AdapterIdentity(base=find_base(folder) or "", rank=rank, alpha=alpha, modules=tuple(modules))
    if config.get("init_lora_weights") not in _INITIALIZATIONS:
        value = config["init_lora_weights"]
        raise ShardFileInvalid(f"{folder / CONFIG} has init_lora_weights {value!r}, which changes the base")
    base = str(config.get(BASE_FIELD) or "")
    return StoredAdapter(identity=identity, base_folder=base, layers=layers)


def find_difference(layers: LayerShapes, model: dict[str, tuple[int, ...]]) -> str:
    """Return the first layer of an adapter that a model does not have; empty if it has all.

    `model`: shapes of all tensors of the model folder.
    """
    for layer, shape in sorted(layers.items()):
        actual = model.get(f"{layer}.weight")
        if actual is None:
            return f"the adapter has layer {layer!r}, which the model does not have"
        if tuple(actual) != tuple(shape):
            return f"the adapter's layer {layer!r} has shape {tuple(shape)}, the model has {tuple(actual)}"
    return ""


def is_zero(folder: Path) -> bool:
    """Return whether an adapter changes nothing, because B is zero in each layer."""
    return not any(tensor.any() for name, tensor in read_tensors(folder).items() if ".lora_B." in name)


def _verify_file(path: Path, *, size: int, digest: str) -> None:
    try:
        actual = path.stat().st_size
        if actual != size:
            raise ShardFileInvalid(f"{path} is damaged or truncated: it has {actual} bytes, expected {size}")
        if file_sha256(path) != digest:
            raise ShardFileInvalid(f"{path} is damaged: its SHA-256 differs from that of the manifest")
    except OSError as error:
        raise ShardFileInvalid(f"{path} cannot be read: {error.strerror}") from error


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
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        values = {name: config.get(name) for name in (*_FIXED, *_UNUSED)}
    except (OSError, ValueError, AttributeError) as error:
        raise ShardFileInvalid(f"{path} is not a config of peft: {error}") from error
    for name, expected in _FIXED.items():
        if values[name] != expected:
            raise ShardFileInvalid(f"{path} has {name} {values[name]!r}, only {expected!r} is supported")
    for name in _UNUSED:
        if values[name]:
            raise ShardFileInvalid(f"{path} sets {name}, which is not supported")
    return config


def _modules(path: Path, config: dict[str, Any]) -> set[str]:
    """Return the target modules of a config. Raises ShardFileInvalid for another form, such as a pattern."""
    modules = config.get("target_modules")
    if not isinstance(modules, list) or not all(isinstance(name, str) for name in modules):
        raise ShardFileInvalid(f"{path} is not a config of peft: target_modules must be a list of names")
    return set(modules)


def _layers(path: Path, *, rank: int, modules: Collection[str], dtypes: tuple[str, ...] = ("F32",)) -> LayerShapes:
    """Return the layers of the tensors; each has A [rank, columns] and B [rows, rank], in one of `dtypes`."""
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
    names = {name.removeprefix(PREFIX).rsplit(".lora_", 1)[0] for name in shapes}
    if not names:
        raise ShardFileInvalid(f"{path} has no tensors")
    layers: LayerShapes = {}
    for layer in sorted(names):
        a, b = shapes.pop(tensor_name(layer, "lora_A"), ()), shapes.pop(tensor_name(layer, "lora_B"), ())
        if len(a) != 2 or len(b) != 2 or a[0] != rank or b[1] != rank:
            raise ShardFileInvalid(f"{path}: {layer} has A {list(a)} and B {list(b)}, which do not have rank {rank}")
        if layer.rsplit(".", 1)[-1] not in modules:
            raise ShardFileInvalid(f"{path}: {layer} is not a target of {CONFIG}")
        layers[layer] = (b[0], a[1])
    if shapes:
        raise ShardFileInvalid(f"{path} has an unknown tensor {min(shapes)!r}")
    return layers
