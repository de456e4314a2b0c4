"""A model folder in the Hugging Face format: check its files and read its context length.

Used before anything is started, by `rstar2 serve` (serving/model.py), `eval` and `filter` (evaluation/model.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rstar2_train.api.loader import MANIFESTS
from rstar2_train.api.state_dir import JobState
from rstar2_train.api.state_files import UnreadableState
from rstar2_train.capacity.weight_files import ambiguous_weights
from rstar2_train.launch.local.preflight import PreflightError
from rstar2_train.launch.local.upload import fetched_state
from rstar2_train.utils.text import reason


class ModelNotFound(PreflightError):
    """No usable model under this name. The message, for the user, names what to pass instead."""


def fetched_model(model: str, *, jobs: Path) -> Path | None:
    """Return the model folder that MANIFEST or MANIFEST/STAGE names, after a download of the newest state in the
    bucket of the manifest; None for another name.

    `jobs`: folder of the state of all jobs. Raises PreflightError.
    """
    path = Path(model)
    for manifest, stage in ((path, ""), (path.parent, path.name)):
        if manifest.suffix in MANIFESTS and manifest.is_file():
            return model_of_job(fetched_state(manifest, jobs=jobs), stage)
    return None


def model_of_job(state: JobState, stage: str) -> Path:
    """Return the model folder of a job's stage; without a stage, that of the last stage with a model.

    Raises ModelNotFound.
    """
    try:
        stages = [stage.name for stage in state.job().spec.stages]
    except UnreadableState as error:
        raise ModelNotFound(f"{error}.") from error
    except OSError as error:
        raise ModelNotFound(f"{state.job_file} cannot be read: {reason(error)}") from error
    trained = [name for name in stages if (state.stage(name).model / "config.json").is_file()]
    if not trained or (stage and stage not in trained):
        missing = f"has no model of stage {stage!r}" if stage else "has no trained model yet"
        raise ModelNotFound(f"{state.root} {missing}. Stages with a model: {', '.join(trained) or 'none'}.")
    return state.stage(stage or trained[-1]).model.resolve()


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
        raise ModelNotFound(f"{folder / 'config.json'} cannot be read: {reason(error)}") from error
    return config


def context_length(config: dict[str, Any]) -> int | None:
    """Return the longest sequence in tokens that a config.json allows; None if it has none."""
    longest = config.get("max_position_embeddings")
    return longest if isinstance(longest, int) else None
