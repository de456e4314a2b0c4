"""Which model a folder holds, by content: what results that are kept for later are kept under."""

from __future__ import annotations

import hashlib
from pathlib import Path

_PIECE = 1 << 24


class NoModel(ValueError):
    """A folder without a model that can be used."""


def fingerprint(model: Path) -> str:
    """A hash of what a model folder computes: its config and its weights. Raises NoModel when it has none."""
    weights = sorted(model.glob("*.safetensors"))
    config = model / "config.json"
    if not weights or not config.exists():
        raise NoModel(f"{model} holds no model: config.json and *.safetensors are needed")
    content = hashlib.blake2b(digest_size=16)
    for file in (config, *weights):
        content.update(f"{file.name} {file.stat().st_size} ".encode())
        with file.open("rb") as stream:
            while piece := stream.read(_PIECE):
                content.update(piece)
    return content.hexdigest()
