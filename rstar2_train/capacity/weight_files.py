"""The weight files of a model folder: those of its index, and no other.

The trainer reads the files of the index, or `model.safetensors`. vLLM reads every *.safetensors of a folder without an
index, and Mistral's own `consolidated*.safetensors` (with `params.json`) before all others. So a folder with more files
could be two models. Read by `rstar2 validate`, the preflight, the prepare program and `rstar2 serve`, before anything
starts.
"""

from __future__ import annotations

import json
from pathlib import Path

from rstar2_train.utils.json_objects import unique_object

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
"""Of peft: the folder has an adapter."""
_MISTRAL = "consolidated"
_NAMED_TEMPLATES = "additional_chat_templates/*.jinja"
"""Chat templates besides the default one, as transformers stores them: it takes `tool_use` if a prompt has tools."""
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json", "*.pt", "*.pth")


def companions(folder: Path) -> list[Path]:
    """Return the files of a model folder that hold no weights, such as config, tokenizer and chat template, sorted."""
    files = sorted(path for path in (*folder.iterdir(), *folder.glob(_NAMED_TEMPLATES)) if path.is_file())
    return [path for path in files if not any(path.match(pattern) for pattern in _WEIGHTS)]


def weight_map(folder: Path) -> dict[str, str] | None:
    """Return the file of each tensor by the index of a model folder; None: it has no index.

    Raises ValueError, which names the index, for one that is no JSON object with a `weight_map` of texts.
    """
    index = folder / INDEX
    if not index.is_file():
        return None
    try:
        files = dict(json.loads(index.read_text(encoding="utf-8"), object_pairs_hook=unique_object)["weight_map"])
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{index} is no index of weight files: {error!r}") from error
    if not all(isinstance(file, str) for file in files.values()):
        raise ValueError(f"{index} is no index of weight files: a name is no text")
    return files


def merge_advice(folder: Path) -> str:
    """Return how to get the whole model of an adapter, as the end of a message; empty: the folder has no adapter."""
    if not (folder / ADAPTER_CONFIG).is_file():
        return ""
    return f": it is an adapter; write the whole model with `rstar2 export {folder} FOLDER --merge`, and use FOLDER"


def ambiguous_weights(folder: Path) -> str | None:
    """Return why the weights of a model folder are not read as one model, and the fix; None: they are.

    A folder without safetensors is not judged.
    """
    files = {path.name for path in folder.glob("*.safetensors")}
    try:
        indexed = weight_map(folder)
    except ValueError as error:
        return f"{error}: download the folder again"
    if indexed is not None:
        home, used = INDEX, set(indexed.values())
    elif SINGLE in files:
        home, used = SINGLE, {SINGLE}
    elif advice := merge_advice(folder):
        return f"{folder} has no weights of a model{advice}"
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
