"""Whether a model folder can be a frozen policy of a job: the teacher of an objective, or the reference of a KL term.

The loss compares the log-probabilities of the same tokens, so the tokenizers must be equal; the plan counts a second
copy of the trained model, so the shapes must be. Pure, without torch.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.objectives import ReferenceKL, Teacher
from rstar2_train.api.sources import sources
from rstar2_train.capacity.model_shape import shape_of

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"


def find_frozen_model_errors(job: AgenticRLJob) -> dict[str, str]:
    """Return why a folder cannot be a frozen policy of a job whose sources are paths: field -> error.

    A folder without config.json is reported by the check of the models.
    """
    model = Path(job.spec.model.source)
    errors = {}
    for source in sources(job):
        folder = Path(source.value)
        if not isinstance(source.owner, Teacher | ReferenceKL):
            continue
        if all((path / CONFIG).is_file() for path in (folder, model)) and (error := mismatch(folder, model)):
            errors[source.field] = error
    return errors


def mismatch(folder: Path, model_dir: Path) -> str:
    """Return why `folder` cannot be the frozen policy for the model of `model_dir`; empty: it can."""
    if not (difference := _difference(folder, model_dir)):
        return ""
    return (
        f"{folder}: cannot be the teacher or the reference of {model_dir}: {difference}. The loss compares the "
        "probabilities of the same tokens, and the ranks hold a second copy of the trained model: set the source to a "
        f"model of the same shape, with the same {TOKENIZER}"
    )


def _difference(folder: Path, model_dir: Path) -> str:
    try:
        shapes = [shape_of(json.loads((path / CONFIG).read_bytes()), name="") for path in (folder, model_dir)]
    except ValueError as error:
        return f"their shapes cannot be compared: {error}"
    if shapes[0] != shapes[1]:
        return f"its shape is {shapes[0]}, that of the model {shapes[1]}"
    theirs, own = (_digest(path / TOKENIZER) for path in (folder, model_dir))
    return "" if theirs == own else f"its {TOKENIZER} has SHA-256 {theirs}, that of the model {own}"


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16] if file.is_file() else "none: no such file"
