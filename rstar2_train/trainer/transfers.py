"""Moves micro-batches to the device: from pinned memory, the next one while the device computes the present one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rstar2_train.grpo_roc.tokens import Counts
from rstar2_train.trainer.batching import MicroBatch


@dataclass(frozen=True, slots=True)
class DeviceBatch:
    """A micro-batch on the device; the fields are those of MicroBatch."""

    ids: Tensor
    positions: Tensor
    targets: Tensor
    sft_weights: Tensor
    advantages: Tensor
    rows: Tensor
    row_tokens: Tensor
    groups: Tensor
    counts: Counts[Tensor]
    engine_logprobs: Tensor | None
    reference_logprobs: Tensor | None
    stale: Tensor | None
    lengths: tuple[int, ...] | None
    routes: tuple[bytes, ...] | None

    @property
    def trained(self) -> Tensor:
        """Whether each token trains; False: padding."""
        return self.sft_weights > 0


def on_device(batches: Sequence[MicroBatch], device: torch.device) -> Iterator[DeviceBatch]:
    """Yield the micro-batches in order. On an accelerator, the next one is copied on a stream of its own."""
    if device.type == "cpu":
        for batch in batches:
            yield _moved(batch, device)
        return
    stream = torch.cuda.Stream(device)
    following = _copied(batches[0], device, stream) if batches else None
    for number in range(len(batches)):
        present = following
        assert present is not None
        torch.cuda.current_stream(device).wait_stream(stream)
        fields = (getattr(present, name) for name in DeviceBatch.__dataclass_fields__)
        for tensor in (*fields, present.counts.group_tokens):
            if isinstance(tensor, Tensor):
                tensor.record_stream(torch.cuda.current_stream(device))
        following = _copied(batches[number + 1], device, stream) if number + 1 < len(batches) else None
        yield present


def _copied(batch: MicroBatch, device: torch.device, stream: Any) -> DeviceBatch:
    with torch.cuda.stream(stream):
        return _moved(batch, device)


def _moved(batch: MicroBatch, device: torch.device) -> DeviceBatch:
    def move(array: NDArray[Any] | None) -> Tensor | None:
        return None if array is None else to_device(array, device)

    return DeviceBatch(
        ids=to_device(batch.ids, device).long(),
        positions=to_device(batch.positions, device),
        targets=to_device(batch.targets, device),
        sft_weights=to_device(batch.sft_weights, device),
        advantages=to_device(batch.advantages, device),
        rows=to_device(batch.rows, device),
        row_tokens=to_device(batch.row_tokens, device),
        groups=to_device(batch.groups, device),
        counts=_moved_counts(batch.counts, device),
        engine_logprobs=move(batch.engine_logprobs),
        reference_logprobs=move(batch.reference_logprobs),
        stale=move(batch.stale),
        lengths=batch.lengths,
        routes=batch.routes,
    )


def _moved_counts(counts: Counts[NDArray[np.int64]], device: torch.device) -> Counts[Tensor]:
    group_tokens = to_device(counts.group_tokens, device)
    return Counts(counts.groups, counts.sequences, counts.tokens, group_tokens)


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Return a copy of an array on the device, without waiting for it."""
    # Arrays from Ray are read-only views of its object store, which torch must not alias.
    copy = torch.tensor(array)
    return copy if device.type == "cpu" else copy.pin_memory().to(device, non_blocking=True)
