"""Whether the trainer computes with the weights of a model folder as they are, by their headers. Pure.

`find_weight_faults` is called by `rstar2 validate`, before a job starts, and by each rank before it reads the tensors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rstar2_train.capacity.config_file import stored_dtype_name
from rstar2_train.capacity.model_defaults import with_defaults
from rstar2_train.capacity.model_support import MIXTURES, unsupported_mixture
from rstar2_train.capacity.weight_headers import StoredTensor

BUFFERS = (r"rotary_emb\.inv_freq$", r"(^|\.)position_ids$", r"(attn|attention)\.(masked_)?bias$")
"""Tensors of old files that the constructors compute today."""
FORMATS: Mapping[str, str] = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""Formats of weights that can be trained: name in safetensors, and in config.json."""
_HEADS = ("lm_head.weight", "embed_out.weight")
_EMBEDDING = re.compile(r"(^|\.)(embed_tokens|embed_in)\.weight$")
_EXPERT_TENSOR = re.compile(r"(^|[._])(experts?|router|moe)([._]|$)|(^|\.)gate\.weight$")
_FOREIGN: Mapping[str, str] = {
    "adapter_config.json": "transformers would add an adapter to the model: move it out of the folder",
    "hf_quant_config.json": "quantised weights cannot be trained: use the folder of the unquantised model",
    "quant_config.json": "quantised weights cannot be trained: use the folder of the unquantised model",
    "quantize_config.json": "quantised weights cannot be trained: use the folder of the unquantised model",
}
"""Files that change the model for other programs, and what to do."""


def find_weight_faults(
    folder: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, StoredTensor],
    *,
    written: bool = True,
    tied: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[str]:
    """Yield why the trainer does not compute with these weights.

    Args:
        folder: the model folder.
        config: the content of config.json.
        tensors: those of its files.
        written: whether the job writes the weights, in the format of config.json; a frozen model is only read.
        tied: tensors that are others by `tie_word_embeddings`, besides the usual output layer and embedding.
    """
    for name, remedy in _FOREIGN.items():
        if (folder / name).is_file():
            yield f"{name}: {remedy}"
    yield from _format_faults(config, tensors, written=written)
    yield from _tie_faults(config, tensors, {**_tied_names(tensors), **tied})
    experts = next(filter(is_expert, tensors), None)
    if experts and config.get("model_type") not in MIXTURES:
        yield unsupported_mixture(experts, config.get("model_type"))


def is_expert(name: str) -> bool:
    """Return whether a tensor or parameter is a part of a mixture of experts, by its name."""
    return _EXPERT_TENSOR.search(name) is not None


def _format_faults(config: Mapping[str, Any], tensors: Mapping[str, StoredTensor], *, written: bool) -> Iterator[str]:
    stored = {
        tensor.dtype: name
        for name, tensor in reversed(list(tensors.items()))
        if not any(re.search(pattern, name) for pattern in BUFFERS)
    }
    target = stored_dtype_name(config)
    for dtype, name in sorted(stored.items()):
        if dtype not in FORMATS:
            yield (
                f"{name} is stored as {dtype}, only {', '.join(FORMATS)} can be trained: use the folder of the "
                "unquantised model, or save the model as float32"
            )
        elif written and target not in ("float32", FORMATS[dtype]):
            yield (
                f"dtype: {target!r}, but {name} is stored as {FORMATS[dtype]}, which the trained model would not keep: "
                f"set dtype to {'float32' if len(stored) > 1 else FORMATS[dtype]!r}, or save the model as {target}"
            )


def _tied_names(tensors: Mapping[str, StoredTensor]) -> dict[str, str]:
    embedding = next(filter(_EMBEDDING.search, tensors), None)
    return {} if embedding is None else dict.fromkeys(_HEADS, embedding)


def _tie_faults(
    config: Mapping[str, Any], tensors: Mapping[str, StoredTensor], tied: Mapping[str, str]
) -> Iterator[str]:
    if not with_defaults(config).get("tie_word_embeddings"):
        return
    for name, other in tied.items():
        if name in tensors and other in tensors and not tensors[name].has_bytes_of(tensors[other]):
            yield (
                f"tie_word_embeddings: true, but {name} has other values than {other} in the files, and transformers "
                "and vLLM compute with both: set it to false, or remove the tensor from the files"
            )
