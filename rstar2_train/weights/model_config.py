"""Reads the config.json of a model folder, without torch: orchestrator and ranks agree on the stored dtype."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rstar2_train.capacity.config_file import CONFIG, read_config
from rstar2_train.capacity.model_shape import stored_bytes


def model_config(model_dir: Path) -> dict[str, Any]:
    """Return the content of a model's config.json. Raises InvalidConfig, a ValueError."""
    return read_config(model_dir)


def stored_dtype_name(config: dict[str, Any]) -> str:
    """Return the name of the dtype of a model's weights, from its config.json; float32 if it has none."""
    return str(config.get("dtype") or config.get("torch_dtype") or "float32")


def folder_value_bytes(model_dir: Path) -> int | None:
    """Return the bytes per weight of a model folder; None: it has no config.json. Raises InvalidConfig."""
    return stored_bytes(model_config(model_dir)) if (model_dir / CONFIG).is_file() else None
