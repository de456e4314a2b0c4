"""The safetensors files of a model folder, and their names for the parameters of the model of transformers.

A parameter may have another name in the files (GPT-NeoX: `embed_out.weight` for `lm_head.weight`), which the engines
and the exported folder keep. Old files have tensors that no model reads, such as rotary frequencies.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from safetensors import safe_open

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
BUFFERS = (r"rotary_emb\.inv_freq$", r"(^|\.)position_ids$")
"""Tensors of old files that the constructors compute today."""
WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json", "*.pt", "*.pth")
GENERATION_CONFIG = "generation_config.json"


def copy_companions(source: Path, target: Path, stop_ids: Sequence[int] = ()) -> None:
    """Copy all files of a model folder except its weights.

    `stop_ids`: tokens that end a turn, for the generation config: other programs stop at those; () leaves it unchanged.
    """
    for path in source.iterdir():
        if path.is_file() and not any(path.match(pattern) for pattern in WEIGHTS):
            shutil.copyfile(path, target / path.name)
    if stop_ids:
        file = target / GENERATION_CONFIG
        config = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        file.write_text(json.dumps({**config, "eos_token_id": list(stop_ids)}, indent=2) + "\n", encoding="utf-8")


def tensor_files(model_dir: Path) -> dict[str, Path]:
    """Return the safetensors file of each tensor of a model folder.

    Raises:
        FileNotFoundError: if the folder has none.
    """
    index = model_dir / INDEX
    if index.exists():
        return {name: model_dir / file for name, file in json.loads(index.read_text())["weight_map"].items()}
    single = model_dir / SINGLE
    if not single.exists():
        raise FileNotFoundError(f"{model_dir} has no safetensors weights: neither {SINGLE} nor {INDEX}")
    with safe_open(single, framework="pt") as file:
        return dict.fromkeys(file.keys(), single)


def file_names(model: Any, parameters: Iterable[str], stored: Iterable[str], *, folder: Path) -> dict[str, str]:
    """Return the name of each parameter in the files of its folder.

    Args:
        model: the model of transformers, which defines other names and tensors to skip.
        parameters: names of its parameters, tied ones once.
        stored: names of the tensors in the files.
        folder: for the message.

    Raises:
        ValueError: if a parameter has no tensor, or a tensor no parameter.
    """
    rename = _renaming(model)
    names = {rename(name): name for name in stored}
    missing = sorted(set(parameters) - set(names))
    tied = getattr(model, "_tied_weights_keys", None) or {}
    skipped = [*(getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()), *BUFFERS]
    unknown = sorted(
        stored_name
        for name, stored_name in names.items()
        if name not in parameters
        and not (name in tied and model.config.tie_word_embeddings)
        and not any(re.search(pattern, name) for pattern in skipped)
    )
    if missing or unknown:
        raise ValueError(
            f"{folder}: the weights are not those of a {type(model).__name__}: missing {missing[:3]}, "
            f"unknown {unknown[:3]}"
        )
    return {name: names[name] for name in parameters}


def _renaming(model: Any) -> Any:
    """Return the function from the name of a tensor in the files to that of its parameter."""
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightRenaming
    except ImportError:  # before transformers 5.3: no other names
        return lambda name: name
    renamings = [renaming for renaming in get_model_conversion_mapping(model) if isinstance(renaming, WeightRenaming)]

    def rename(name: str) -> str:
        for renaming in renamings:
            name = renaming.rename_source_key(name)[0]
        return name

    return rename
