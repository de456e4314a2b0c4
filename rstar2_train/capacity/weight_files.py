"""The weight files of a model folder: those of its index, and no other.

The trainer reads the files of the index, or `model.safetensors`. vLLM reads every *.safetensors of a folder without an
index, and Mistral's own `consolidated*.safetensors` (with `params.json`) before all others. So a folder with more files
could be two models. Read by `rstar2 validate`, the preflight, the prepare program and `rstar2 serve`, before anything
starts.
"""

from __future__ import annotations

import json
from pathlib import Path

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_MISTRAL = "consolidated"
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json", "*.pt", "*.pth")


def companions(folder: Path) -> list[Path]:
    """Return the files of a model folder that hold no weights, such as config, tokenizer and chat template, sorted."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    return [path for path in files if not any(path.match(pattern) for pattern in _WEIGHTS)]


def ambiguous_weights(folder: Path) -> str | None:
    """Return why the weights of a model folder are not read as one model, and the fix; None: they are.

    A folder without safetensors is not judged. Raises ValueError for an index that is no JSON object with a
    `weight_map`.
    """
    files = {path.name for path in folder.glob("*.safetensors")}
    if (index := folder / INDEX).is_file():
        home, used = INDEX, set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    elif SINGLE in files:
        home, used = SINGLE, {SINGLE}
    else:
        home, used = "the other files", {name for name in files if not name.startswith(_MISTRAL)}
    others = sorted(files - used)
    if not others:
        return None
    names = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
    return (
        f"{folder}: {names}: weights other than those of {home}, which an engine could load in their place: move them "
        "out of the folder"
    )
