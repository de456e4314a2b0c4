"""The headers of safetensors files, read without their tensors: names, formats, shapes and places. Pure.

A header that its file cannot fulfil is refused: a torn download, a tensor that two shards have, an index that names
another shard. transformers, vLLM and the trainer would each read another tensor, or stop in the middle of a start.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rstar2_train.capacity.model_support import UnsupportedModel
from rstar2_train.capacity.weight_files import INDEX, SINGLE, merge_advice, weight_map
from rstar2_train.utils.json_objects import unique_object
from rstar2_train.utils.text import reason

DOWNLOAD = "download the folder again"
_LENGTH = 8
"""Bytes of the length of a header, at the start of a file."""
_BLOCK = 2**24
"""Bytes that are compared at a time."""


class InvalidWeights(UnsupportedModel):
    """The weight files of a folder cannot be read as one model. The message names the file and the fix."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """The place of a tensor in a file."""

    file: Path
    dtype: str
    """Its format, by its name in safetensors, such as BF16."""
    shape: tuple[int, ...]
    start: int
    """First byte in the file."""
    stop: int

    def has_bytes_of(self, other: StoredTensor) -> bool:
        """Return whether another tensor has the same format, shape and bytes. Reads both."""
        if (self.dtype, self.shape, self.stop - self.start) != (other.dtype, other.shape, other.stop - other.start):
            return False
        with self.file.open("rb") as mine, other.file.open("rb") as theirs:
            mine.seek(self.start)
            theirs.seek(other.start)
            left = self.stop - self.start
            while left > 0:
                size = min(left, _BLOCK)
                if mine.read(size) != theirs.read(size):
                    return False
                left -= size
        return True


def read_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a model folder, by the files of its index or `model.safetensors`.

    Raises:
        InvalidWeights: if the folder has no safetensors, one is torn, or index and files disagree.
    """
    try:
        indexed = weight_map(folder)
    except ValueError as error:
        raise InvalidWeights(f"{error}: {DOWNLOAD}") from error
    if indexed is None:
        if not (folder / SINGLE).is_file():
            others = sorted(path.name for path in folder.iterdir() if path.suffix in _OTHER_FORMATS)
            names = f"; it has {', '.join(others[:3])}" if others else ""
            raise InvalidWeights(
                f"{folder} has no safetensors weights under the names of transformers: neither {SINGLE} nor {INDEX}"
                f"{names}{merge_advice(folder) or ': save the model with save_pretrained of transformers'}"
            )
        return read_header(folder / SINGLE)
    if not indexed:
        raise InvalidWeights(f"{folder / INDEX} names no tensor: {DOWNLOAD}")
    tensors: dict[str, StoredTensor] = {}
    for name in sorted(set(indexed.values())):
        if Path(name).name != name:
            raise InvalidWeights(
                f"{folder / INDEX}: {name} is in another folder, where engines do not read it: move it"
            )
        for tensor, stored in read_header(folder / name).items():
            if tensor in tensors:
                raise InvalidWeights(f"{folder}: {tensor} is in {tensors[tensor].file.name} and in {name}: {DOWNLOAD}")
            tensors[tensor] = stored
    _compare(folder, indexed, tensors)
    return tensors


_OTHER_FORMATS = (".bin", ".gguf", ".h5", ".msgpack", ".pt", ".pth", ".safetensors")


def _compare(folder: Path, indexed: Mapping[str, str], tensors: Mapping[str, StoredTensor]) -> None:
    for name in sorted(indexed.keys() | tensors.keys()):
        stored = tensors[name].file.name if name in tensors else "no file"
        named = indexed.get(name, "no file")
        if stored != named:
            raise InvalidWeights(f"{folder / INDEX}: {name} is in {named} by the index, but in {stored}: {DOWNLOAD}")


def read_header(file: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a safetensors file. Raises InvalidWeights if it is missing, torn or no such file."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(_LENGTH), "little")
            if size < _LENGTH or length > size - _LENGTH:
                raise InvalidWeights(f"{file} is torn or no safetensors file, with {size:,} bytes: {DOWNLOAD}")
            header = json.loads(stream.read(length).decode("utf-8"), object_pairs_hook=unique_object)
        tensors = {
            name: _tensor(file, entry, first=_LENGTH + length)
            for name, entry in header.items()
            if name != "__metadata__"
        }
    except OSError as error:
        raise InvalidWeights(f"{file} cannot be read: {reason(error)}: {DOWNLOAD}") from error
    except InvalidWeights:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InvalidWeights(f"{file} has no header of safetensors: {error!r}: {DOWNLOAD}") from error
    end = max((tensor.stop for tensor in tensors.values()), default=_LENGTH + length)
    if end != size:
        raise InvalidWeights(f"{file} has {size:,} bytes, its header {end:,}: {DOWNLOAD}")
    return tensors


def _tensor(file: Path, entry: Mapping[str, Any], *, first: int) -> StoredTensor:
    start, stop = entry["data_offsets"]
    if not 0 <= start <= stop:
        raise ValueError(f"offsets {start} to {stop}")
    return StoredTensor(file, str(entry["dtype"]), tuple(map(int, entry["shape"])), first + start, first + stop)
