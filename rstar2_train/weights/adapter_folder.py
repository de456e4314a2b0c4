"""The files of an adapter in the form of peft, which peft and vLLM load: one folder per version, and one per model.

    adapter_config.json          peft's, with rank, scale and target layers
    adapter_model.safetensors    float32 tensors in peft's names; the metadata has the hash of the base
    generation_config.json       of a final adapter: the tokens that end its turns, for the merged model

The base of an adapter is the model folder that its stage started from. `base_digest` identifies its weights.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save_file

from rstar2_train.capacity.config_file import GENERATION_CONFIG
from rstar2_train.capacity.weight_files import ADAPTER_CONFIG
from rstar2_train.utils.files import file_sha256
from rstar2_train.weights.shard_file import FileSummary, ShardFileInvalid

CONFIG = ADAPTER_CONFIG
TENSORS = "adapter_model.safetensors"
ADAPTER = "adapter"
"""Subfolder of a merged model folder with the adapter."""
PREFIX = "base_model.model."
"""Of the names of tensors in peft's files, before the name of the layer in the model."""
BASE_FIELD = "base_model_name_or_path"
"""Field of peft's config with the folder or the name of the base."""
BASE_KEY = "rstar2_base_sha256"
"""Key of the base's digest in the metadata of the tensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterIdentity:
    """The values that determine the meaning of an adapter's tensors."""

    base: str
    """Digest of the base's weights, by `base_digest`."""
    rank: int
    alpha: float
    modules: tuple[str, ...]
    """Names of the target layers, such as q_proj."""

    @property
    def scale(self) -> float:
        """Factor of the product B A."""
        return self.alpha / self.rank

    def to_json(self) -> dict[str, Any]:
        """Return JSON values, for `from_json`."""
        return {"base": self.base, "rank": self.rank, "alpha": self.alpha, "modules": list(self.modules)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> AdapterIdentity:
        """Return the identity of JSON values. Raises TypeError for other fields."""
        return cls(**{**content, "modules": tuple(content["modules"])})


def tensor_name(layer: str, matrix: str) -> str:
    """Return the name of a tensor in the file. `layer`: its name in the model; `matrix`: lora_A or lora_B."""
    return f"{PREFIX}{layer}.{matrix}.weight"


def write_adapter(
    folder: Path, tensors: Mapping[str, NDArray[Any]], identity: AdapterIdentity, *, base: Path
) -> list[FileSummary]:
    """Write the two files of an adapter into an existing folder, and return their sizes and hashes.

    Args:
        folder: not yet visible to readers.
        tensors: A [rank, in] and B [out, rank] of each layer by `tensor_name`, float32.
        identity: base, rank, scale and target layers.
        base: the model folder of the base.
    """
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        BASE_FIELD: str(base),
        "r": identity.rank,
        "lora_alpha": identity.alpha,
        "target_modules": list(identity.modules),
        "bias": "none",
        "lora_dropout": 0.0,
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "inference_mode": True,
        "modules_to_save": None,
        "use_dora": False,
        "use_rslora": False,
        "rank_pattern": {},
        "alpha_pattern": {},
    }
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    whole = {name: np.ascontiguousarray(tensor, dtype=np.float32) for name, tensor in tensors.items()}
    # One key: safetensors writes several in a random order, and the same adapter would have another hash.
    save_file(whole, folder / TENSORS, metadata={BASE_KEY: identity.base})
    changed = sum(tensor.size for tensor in whole.values())
    return [_summary(folder / CONFIG, changed=0), _summary(folder / TENSORS, changed=changed)]


@contextmanager
def open_tensors(folder: Path) -> Iterator[Any]:
    """Open the tensors of an adapter. An error of a read in the block is ShardFileInvalid too: the file is damaged."""
    path = folder / TENSORS
    try:
        with safe_open(path, framework="numpy") as file:
            yield file
    except Exception as error:  # safetensors has errors of its own
        raise ShardFileInvalid(f"{path} cannot be read: {error}") from error


def read_tensors(folder: Path) -> dict[str, NDArray[Any]]:
    """Return the tensors of an adapter by name. Raises ShardFileInvalid if its file is missing or damaged."""
    with open_tensors(folder) as file:
        names = list(file.keys())
        return {name: file.get_tensor(name) for name in names}


def adapter_files(folder: Path) -> list[Path]:
    """Return the files of an adapter; a generation config only if it has one."""
    stops = folder / GENERATION_CONFIG
    return [folder / CONFIG, folder / TENSORS, *([stops] if stops.is_file() else [])]


def find_base(folder: Path) -> str | None:
    """Return the digest of the base of an adapter; None: it is of another program, and has none.

    Raises ShardFileInvalid if its file is missing or damaged.
    """
    with open_tensors(folder) as file:
        return (file.metadata() or {}).get(BASE_KEY)


def weight_files(model_dir: Path) -> list[Path]:
    """Return the files with the weights of a model folder, by name."""
    return sorted(model_dir.glob("*.safetensors"))


def base_digest(digests: Iterable[tuple[str, str]]) -> str:
    """Return the digest of a base from the names of its weights files and their SHA-256."""
    return hashlib.sha256(json.dumps(sorted(digests)).encode()).hexdigest()


def folder_digest(model_dir: Path) -> str:
    """Return the digest of a model folder as a base. Reads all its weights."""
    return base_digest((path.name, file_sha256(path)) for path in weight_files(model_dir))


def _summary(path: Path, *, changed: int) -> FileSummary:
    return FileSummary(path.name, path.stat().st_size, file_sha256(path), changed)
