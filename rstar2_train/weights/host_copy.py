"""An engine worker's copy of all weights in CPU memory, in the layout of the model folder.

A delta contains only the changed elements, but vLLM must be fed whole layers: it allocates a fused layer
again, and leaves the parts that it does not get uninitialised, without an error. So the changes are applied to this
copy, and vLLM loads all tensors from it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rstar2_train.weights import version_store
from rstar2_train.weights.shard_file import BITS, Shard, ShardFile, ShardFileInvalid, bit_sum
from rstar2_train.weights.version_store import VersionManifest

THREADS = 4
"""Files that are decoded at the same time; the files of a version hold disjoint shards."""


class HostCopy:
    """The weights of one version."""

    def __init__(self) -> None:
        self.id: str | None = None
        """Id of the complete version that the copy holds; None: no complete one."""
        self.arrays: dict[str, NDArray[Any]] = {}
        """Flat bit patterns of each tensor, by name."""
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtypes: dict[str, str] = {}
        self.read_bytes = 0
        """Bytes that the last `update` read."""
        self._allocating = threading.Lock()

    def update(self, folders: Sequence[Path], *, fresh: bool = False) -> None:
        """Bring the copy to the last version of a chain, as `apply` does for each version.

        Args:
            folders: the folders of the chain, from a snapshot to the target.
            fresh: start from the snapshot in any case.

        Raises:
            ShardFileInvalid: names the file that is missing or damaged, or that does not fit the copy.
        """
        links = version_store.read_links(folders, have=None if fresh else self.id)
        self.read_bytes = sum(link.manifest.bytes for link in links)
        for link in links:
            self.apply(link.manifest, [partial(ShardFile.read, path, digest=digest) for path, digest in link.files()])

    def apply(
        self, manifest: VersionManifest, reads: Sequence[Callable[[], ShardFile]], *, threads: int = THREADS
    ) -> None:
        """Bring the copy from a version's base to the version.

        All files of a delta are verified before the copy changes. A snapshot is large: each file is applied when it is
        read, and is then dropped. After an error in the middle the copy holds no version, and needs a snapshot.

        Args:
            manifest: of the version.
            reads: return the files of the manifest.
            threads: files that are read or decoded at the same time; 1 keeps the order of `reads`.

        Raises:
            ShardFileInvalid: as `update`.
        """
        if manifest.base is not None and manifest.base != self.id:
            raise ShardFileInvalid(
                f"version {manifest.id} has the changes to version {manifest.base}; the host copy holds {self.id}"
            )
        with ThreadPoolExecutor(threads) as pool:
            if manifest.base is None:
                self.id = None
                self._keep_only(set().union(*pool.map(lambda read: self._apply(read()), reads)))
            else:
                files = list(pool.map(lambda read: read(), reads))
                self.id = None
                list(pool.map(self._apply, files))
        self.id = manifest.id

    def _allocate(self, name: str, shape: Sequence[int], dtype: str) -> NDArray[Any]:
        """Return the flat array of a tensor; create it if it is new or has another shape."""
        with self._allocating:
            if self.shapes.get(name) != tuple(shape) or self.dtypes.get(name) != dtype:
                self.arrays[name] = np.empty(math.prod(shape), BITS[dtype])
                self.shapes[name], self.dtypes[name] = tuple(shape), dtype
            return self.arrays[name]

    def _keep_only(self, names: set[str]) -> None:
        """Remove all other tensors."""
        for name in self.arrays.keys() - names:
            for part in (self.arrays, self.shapes, self.dtypes):
                part.pop(name)

    def clear(self) -> None:
        """Forget the version, but keep the memory: the next update starts from a snapshot."""
        self.id = None

    def _apply(self, file: ShardFile) -> set[str]:
        """Apply a file; return the names of its tensors."""
        names = set()
        for shard in file.shards():
            self._apply_shard(shard, file)
            names.add(shard.name)
        return names

    def _apply_shard(self, shard: Shard, file: ShardFile) -> None:
        if shard.positions is None:
            whole = self._allocate(shard.name, shard.shape, shard.dtype)
        else:
            if self.shapes.get(shard.name) != shard.shape or self.dtypes.get(shard.name) != shard.dtype:
                raise ShardFileInvalid(f"{file.name}: {shard.name} is not a tensor of the version before")
            whole = self.arrays[shard.name]
        part = whole[shard.start : shard.start + shard.count]
        if len(part) != shard.count or (shard.positions is None and len(shard.values) != shard.count):
            values = len(part) if shard.positions is not None else len(shard.values)
            raise ShardFileInvalid(f"{file.name}: {shard.name} has {values} elements, expected {shard.count}")
        if shard.positions is None:
            part[:] = shard.values
        else:
            if len(shard.positions) and int(shard.positions[-1]) >= shard.count:
                raise ShardFileInvalid(f"{file.name}: {shard.name} has a change outside the shard")
            part[shard.positions] = shard.values
        if bit_sum(part) != shard.checksum:
            raise ShardFileInvalid(
                f"{file.name}: {shard.name} differs from the trainer's after the update: the changes were applied to "
                "other weights"
            )
