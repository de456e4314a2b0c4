"""Whether a model folder can be a reference policy of a job: the teacher of an objective, or that of grpo.referenceKl.

The ranks hold it, or engines of spec.teacher serve it.

The loss compares the log-probabilities of the same tokens, so the tokenizers must be equal. The shape may be another
one: a larger teacher. Pure, without torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.objectives import ReferenceKL, Teacher
from rstar2_train.api.sources import sources
from rstar2_train.capacity.config_file import CONFIG, TOKENIZER, InvalidConfig, read_config
from rstar2_train.capacity.engine_support import find_engine_obstacles
from rstar2_train.capacity.fit import is_packed, sequence_tokens
from rstar2_train.capacity.model_support import find_obstacles


def find_reference_errors(job: AgenticRLJob) -> dict[str, str]:
    """Return why a folder cannot be a reference policy of a job whose sources are paths: field -> error.

    A folder without config.json is reported by the check of the models.
    """
    model = Path(job.spec.model.source)
    errors = {}
    for field, folder in reference_models(job).items():
        if not all((path / CONFIG).is_file() for path in (folder, model)):
            continue
        longest = longest_sequence(job, field)
        if is_served(job, field):
            error = teacher_error(folder, model, longest=longest)
        else:
            error = reference_error(folder, model, packed=is_packed(job), longest=longest)
        if error:
            errors[field] = error
    return errors


def remote_teachers(job: AgenticRLJob) -> dict[str, Teacher]:
    """Return the teachers of a job behind endpoints: field -> teacher."""
    return {
        f"{at}.objective.teacher.endpoint": teacher
        for at, grpo in job.grpo_fields()
        if grpo.objective and (teacher := grpo.objective.teacher) and teacher.endpoint is not None
    }


def is_served(job: AgenticRLJob, field: str) -> bool:
    """Return whether engines of the job serve the reference policy of a field; else the ranks hold it."""
    return job.spec.teacher is not None and ".objective." in field


def longest_sequence(job: AgenticRLJob, field: str) -> int:
    """Return the tokens of the longest sequence of the stages that use the reference policy of a field."""
    lengths = [0]
    for index, stage in enumerate(job.spec.stages):
        if stage.grpo is None:
            continue
        own = stage.grpo.objective if ".objective." in field else stage.grpo.reference_kl
        if field.startswith("spec.grpo." if own is None else f"spec.stages[{index}]."):
            lengths.append(sequence_tokens(job, stage))
    return max(lengths)


def reference_models(job: AgenticRLJob) -> dict[str, Path]:
    """Return the folders of the reference policies of a job whose sources are paths: field -> folder."""
    owners = (Teacher, ReferenceKL)
    return {source.field: Path(source.value) for source in sources(job) if isinstance(source.owner, owners)}


def reference_error(folder: Path, model_dir: Path, *, packed: bool, longest: int) -> str:
    """Return why `folder` cannot be the reference policy for the model of `model_dir`; empty: it can.

    `packed`: whether micro-batches are packed; `longest`: tokens of the longest sequence, 0: unknown.
    """
    obstacles = partial(find_obstacles, packed=packed, longest=longest)
    reasons = "; ".join(_obstacles(folder, model_dir, longest=longest, of_config=obstacles))
    return f"{folder}: cannot be the teacher or the reference of {model_dir}: {reasons}" if reasons else ""


def teacher_error(folder: Path, model_dir: Path, *, longest: int) -> str:
    """Return why engines of spec.teacher cannot serve `folder` for the model of `model_dir`; empty: they can."""
    longest += 1  # a request for log-probabilities samples one token
    obstacles = partial(find_engine_obstacles, longest=longest)
    reasons = "; ".join(_obstacles(folder, model_dir, longest=longest, of_config=obstacles))
    return f"{folder}: engines cannot serve it as the teacher of {model_dir}: {reasons}" if reasons else ""


def _obstacles(
    folder: Path, model_dir: Path, *, longest: int, of_config: Callable[[Mapping[str, Any]], Iterable[str]]
) -> Iterator[str]:
    try:
        reference, model = read_config(folder), read_config(model_dir)
    except InvalidConfig as error:
        yield str(error)
        return
    theirs, own = (_digest(path / TOKENIZER) for path in (folder, model_dir))
    if theirs != own:
        yield (
            f"its {TOKENIZER} has SHA-256 {theirs}, that of the model {own}: use a model with the same one, because "
            "the loss compares the probabilities of the same tokens"
        )
    entries, own_entries = reference.get("vocab_size"), model.get("vocab_size")
    if not isinstance(entries, int) or not isinstance(own_entries, int) or entries < own_entries:
        yield f"its vocab_size is {entries}, that of the model {own_entries}: it must have each token of the model"
    positions = reference.get("max_position_embeddings")
    if isinstance(positions, int) and positions < longest:
        yield f"its limit is {positions:,} tokens, a sequence of the job may have {longest:,}: lower maxResponseTokens"
    yield from of_config(reference)


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16] if file.is_file() else "none: no such file"
