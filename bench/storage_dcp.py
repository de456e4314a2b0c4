"""torch.distributed.checkpoint of `bench.storage`: the tensors of a checkpoint, to a folder and to a bucket with s3fs.

    python -m bench.storage_dcp CHECKPOINT FOLDER s3://BUCKET/PREFIX --endpoint URL --repeats N

Runs with the packages of s3fs first in PYTHONPATH. Prints JSON: the median seconds of saves and restores. Every restore
is compared with the checkpoint.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

Tensors = dict[str, Any]


def read(checkpoint: Path) -> Tensors:
    """Return the tensors of a checkpoint that ranks wrote."""
    reader = dcp.FileSystemReader(checkpoint)
    described = reader.read_metadata().state_dict_metadata
    tensors: Tensors = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in described.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    dcp.load(tensors, storage_reader=reader, no_dist=True)
    return tensors


def measure(tensors: Tensors, writer: Callable[[], Any], reader: Callable[[], Any]) -> tuple[float, float]:
    """Return the seconds of one save, and those of one restore. Raises RuntimeError if a tensor differs."""
    started = time.perf_counter()
    dcp.save(tensors, storage_writer=writer(), no_dist=True)
    saved = time.perf_counter()
    restored = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    loading = time.perf_counter()
    dcp.load(restored, storage_reader=reader(), no_dist=True)
    loaded = time.perf_counter()
    for name, tensor in tensors.items():
        if not torch.equal(tensor, restored[name]):
            raise RuntimeError(f"{name} was restored with other values")
    return saved - started, loaded - loading


def main() -> None:
    """Measure both, in turns."""
    parser = argparse.ArgumentParser(prog="python -m bench.storage_dcp", description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("url")
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--repeats", type=int, required=True)
    options = parser.parse_args()
    key, secret = os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
    access = {"key": key, "secret": secret, "endpoint_url": options.endpoint}
    tensors = read(options.checkpoint)
    rows: dict[str, list[float]] = {}
    for number in range(options.repeats):
        folder, url = options.folder / str(number), f"{options.url}/{number}"
        places: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
            "dcp_folder": (
                lambda folder=folder: dcp.FileSystemWriter(folder, sync_files=True),  # type: ignore[misc]
                lambda folder=folder: dcp.FileSystemReader(folder),  # type: ignore[misc]
            ),
            "dcp": (
                lambda url=url: FsspecWriter(url, **access),  # type: ignore[misc]
                lambda url=url: FsspecReader(url, **access),  # type: ignore[misc]
            ),
        }
        for name, (writer, reader) in places.items():
            save, restore = measure(tensors, writer, reader)
            rows.setdefault(f"{name}_save_s", []).append(save)
            rows.setdefault(f"{name}_restore_s", []).append(restore)
            print(name, round(save, 2), round(restore, 2), file=sys.stderr, flush=True)
        shutil.rmtree(folder)
    print(json.dumps({name: round(median(values), 3) for name, values in rows.items()}))


if __name__ == "__main__":
    main()
