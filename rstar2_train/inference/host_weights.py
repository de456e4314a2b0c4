"""The host copy of a vLLM worker's process, and its tensors. Imported only inside vLLM."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from rstar2_train.weights.host_copy import HostCopy

_copy = HostCopy()


def host_copy() -> HostCopy:
    """Return the copy of this process: a process has one worker. Deltas and collective transfers share it."""
    return _copy


def host_tensors(copy: HostCopy) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a host copy without copying them."""
    for name, bits in copy.arrays.items():
        signed = torch.from_numpy(bits.view(np.dtype(f"i{bits.itemsize}")))
        yield name, signed.view(getattr(torch, copy.dtypes[name])).view(copy.shapes[name])


def repack_tied_head(model: Any, vllm_config: Any) -> None:
    """Let a tied output head use the new weights of the embedding: on CPU it keeps a packed copy of the old ones."""
    if not vllm_config.model_config.hf_config.tie_word_embeddings:
        return
    head, embedding = model.lm_head, model.model.embed_tokens
    head.weight = embedding.weight
    head.quant_method.process_weights_after_loading(head)
