"""The host copy of a vLLM worker's process, its tensors, and the thread that reads versions into it.

The engine generates while the thread reads: files of gigabytes, or storage that hangs, stop no request. Imported only
inside vLLM.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rstar2_train.weights.host_copy import HostCopy

_copy = HostCopy()
_reader = ThreadPoolExecutor(1, thread_name_prefix="rstar2-read")
_reads: dict[str, Future[int]] = {}
"""The last read by its ticket; at most one."""


def host_copy() -> HostCopy:
    """Return the copy of this process: a process has one worker. Deltas and collective transfers share it."""
    return _copy


def read_versions(ticket: str, folders: Sequence[Path], *, fresh: bool) -> Future[int]:
    """Return the read of a ticket, whose result is its bytes; start it if the last read had another ticket.

    A read that has not started is cancelled. One that runs cannot be, so the new one waits for it.
    """
    if ticket not in _reads:
        for read in _reads.values():
            read.cancel()
        _reads.clear()
        _reads[ticket] = _reader.submit(_read, folders, fresh=fresh)
    return _reads[ticket]


def is_reading() -> bool:
    """Return whether a read has not ended."""
    return any(not read.done() for read in _reads.values())


def _read(folders: Sequence[Path], *, fresh: bool) -> int:
    _copy.update(folders, fresh=fresh)
    return _copy.read_bytes


def host_tensors(copy: HostCopy) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a host copy without copying them."""
    for name, bits in copy.arrays.items():
        signed = torch.from_numpy(bits.view(np.dtype(f"i{bits.itemsize}")))
        yield name, signed.view(getattr(torch, copy.dtypes[name])).view(copy.shapes[name])


def repack_tied_head(model: Any, vllm_config: Any) -> None:
    """Let a tied output head use the new weights of the embedding: on CPU it keeps a packed copy of the old ones.

    Gemma 2 and Cohere have no head of their own: vLLM packs the embedding again itself.
    """
    head = getattr(model, "lm_head", None)
    if head is None or not vllm_config.model_config.hf_config.tie_word_embeddings:
        return
    head.weight = model.model.embed_tokens.weight
    head.quant_method.process_weights_after_loading(head)
