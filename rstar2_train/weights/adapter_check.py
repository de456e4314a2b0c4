"""Verifies a published adapter before an engine loads it: its files, its rank and scale, and the form of its tensors.

vLLM ignores unknown names and fields: it would load a file of another version, another scale, or the layers of another
model without an error. Pure, except for the reads; without torch.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from safetensors import safe_open

from rstar2_train.utils.files import file_sha256
from rstar2_train.weights.adapter_folder import CONFIG, PREFIX, TENSORS, read_tensors, tensor_name
from rstar2_train.weights.shard_file import ShardFileInvalid
from rstar2_train.weights.version_store import read_manifest

LayerShapes = dict[str, tuple[int, int]]
"""Rows and columns of the weight of each layer, by the layer's name in the model."""
_FIXED = {"peft_type": "LORA", "bias": "none"}
_UNUSED = ("use_dora", "use_rslora", "lora_bias", "fan_in_fan_out", "modules_to_save", "rank_pattern", "alpha_pattern")
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
    rank: int
    alpha: int
    """Both of the job, which the files must agree with."""

    @property
    def scale(self) -> float:
        """Factor of the product B A."""
        return self.alpha / self.rank

    def to_json(self) -> dict[str, Any]:
        """Return JSON values, for `from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """Return the order of JSON values. Raises TypeError for other fields."""
        return cls(**content)


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
    modules = _verify_config(folder / CONFIG, order)
    return _layers(folder / TENSORS, rank=order.rank, modules=modules)


def find_difference(layers: LayerShapes, model: dict[str, tuple[int, ...]]) -> str:
    """Return the first layer of an adapter that a model does not have; empty if it has all.

    `model`: shapes of all tensors of the model folder.
    """
    for layer, shape in sorted(layers.items()):
        actual = model.get(f"{layer}.weight")
        if actual is None:
            return f"the adapter has layer {layer!r}, which the engine's model does not have"
        if tuple(actual) != tuple(shape):
            return f"the adapter's layer {layer!r} has shape {tuple(shape)}, the engine's model has {tuple(actual)}"
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


def _verify_config(path: Path, order: AdapterOrder) -> set[str]:
    """Return the target modules of the config. Raises ShardFileInvalid if it is not that of the order."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        values = {name: config.get(name) for name in ("r", "lora_alpha", *_FIXED)}
        modules = set(config["target_modules"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ShardFileInvalid(f"{path} is not a config of peft: {error}") from error
    for name, expected in {"r": order.rank, "lora_alpha": order.alpha, **_FIXED}.items():
        if values[name] != expected:
            raise ShardFileInvalid(f"{path} has {name} {values[name]!r}, the job has {expected!r}")
    for name in _UNUSED:
        if config.get(name):
            raise ShardFileInvalid(f"{path} sets {name}, which no adapter of a job has")
    return modules


def _layers(path: Path, *, rank: int, modules: set[str]) -> LayerShapes:
    """Return the layers of the tensors; each has A [rank, columns] and B [rows, rank], in float32."""
    shapes: dict[str, tuple[int, ...]] = {}
    try:
        with safe_open(path, framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                part = file.get_slice(name)
                if part.get_dtype() != "F32":
                    raise ShardFileInvalid(f"{path}: {name} has dtype {part.get_dtype()}, expected F32")
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
