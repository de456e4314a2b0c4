"""A model folder in the Hugging Face format: check its files and read its context length.

Used before anything is started, by `rstar2 serve` (serving/model.py), `eval` and `filter` (evaluation/model.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rstar2_train.capacity.weight_files import ambiguous_weights
from rstar2_train.launch.local.preflight import PreflightError


class ModelNotFound(PreflightError):
    """No usable model under this name. The message, for the user, names what to pass instead."""


def read_config(folder: Path, *, needs_tokenizer: bool) -> dict[str, Any]:
    """Return the config.json of a model folder. Raises ModelNotFound if the folder or one of its files is missing."""
    if not folder.is_dir():
        raise ModelNotFound(f"{folder}: no such folder. Download Hub models first with `hf download`.")
    needed = {"config.json": ["config.json"], "*.safetensors": ["*.safetensors", "*.bin"]}
    if needs_tokenizer:
        needed["tokenizer.json"] = ["tokenizer.json"]
    missing = [name for name, patterns in needed.items() if not any(any(folder.glob(pattern)) for pattern in patterns)]
    if missing:
        raise ModelNotFound(f"{folder} is not a model in the Hugging Face format: it has no {' and no '.join(missing)}")
    if ambiguous := ambiguous_weights(folder):
        raise ModelNotFound(ambiguous)
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelNotFound(f"{folder / 'config.json'} cannot be read: {error}") from error
    return config


def context_length(config: dict[str, Any]) -> int | None:
    """Return the longest sequence in tokens that a config.json allows; None if it has none."""
    longest = config.get("max_position_embeddings")
    return longest if isinstance(longest, int) else None
