"""The parts of a model that a job refuses or leaves out, by the model's config.json. Pure.

`rstar2 validate` and `plan`, and the checks before a run, print it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.capacity.config_file import CONFIG, InvalidConfig, read_config
from rstar2_train.capacity.engine_support import find_engine_obstacles
from rstar2_train.capacity.fit import is_packed, longest_sequence, sequence_tokens
from rstar2_train.capacity.model_support import (
    CAUSAL_CLASSES,
    UnsupportedModel,
    expert_count,
    find_notes,
    find_obstacles,
)
from rstar2_train.capacity.rope_fields import position_limit
from rstar2_train.capacity.weight_check import find_weight_faults
from rstar2_train.capacity.weight_files import INDEX, SINGLE, ambiguous_weights
from rstar2_train.capacity.weight_headers import read_tensors


def model_obstacles(job: AgenticRLJob, folder: Path) -> list[str]:
    """Return why the trainer or the engines of a job refuse its model, by its config.json; a missing file has none."""
    if not (folder / CONFIG).is_file():
        return []
    try:
        config = read_config(folder)
    except InvalidConfig as error:
        return [error.reason]
    obstacles: list[str] = []
    if learned := [sequence_tokens(job, stage) for stage in job.spec.stages if stage.learns]:
        adapter = any(job.lora(stage) for stage in job.spec.stages)
        obstacles += find_obstacles(config, packed=is_packed(job), longest=max(learned), adapter=adapter)
    if sampled := longest_sequence(job):
        obstacles += find_engine_obstacles(config, longest=sampled)
        if not config.get("architectures"):
            name = CAUSAL_CLASSES.get(str(config.get("model_type")), "NAME_OF_ITS_CLASS")
            obstacles.append(
                f"architectures: none: vLLM takes the model for one that samples no text: set it to [{name!r}]"
            )
    return list(dict.fromkeys([*obstacles, *_long_conversations(job, config)]))


def weight_obstacles(job: AgenticRLJob, folder: Path) -> list[str]:
    """Return why a job refuses the weight files of its model, by their headers; a folder without safetensors has none.

    `folder`: with a config.json that `model_obstacles` accepts.
    """
    if ambiguous := ambiguous_weights(folder):
        return [ambiguous]
    if not any((folder / name).is_file() for name in (INDEX, SINGLE)):
        return []
    try:
        tensors = read_tensors(folder)
    except UnsupportedModel as error:
        return [str(error)]
    if not any(stage.learns for stage in job.spec.stages):
        return []
    return [f"{folder}: {fault}" for fault in find_weight_faults(folder, read_config(folder), tensors)]


def model_notes(job: AgenticRLJob, folder: Path) -> list[str]:
    """Return what a job leaves out of its model or cuts, and what has no effect for it, by config.json.

    A file that cannot be read has no notes.
    """
    try:
        config = read_config(folder)
    except InvalidConfig:
        return []
    notes, limit = find_notes(config), position_limit(config)
    trained = [job.grpo_settings(stage) for stage in job.spec.stages if stage.type == "GRPO"]
    if not expert_count(config) and not all(settings.router_replay for settings in trained):
        notes.append("routerReplay: false has no effect: the model is dense, and has no experts; remove the field")
    for index, stage in enumerate(job.spec.stages):
        tokens = sequence_tokens(job, stage)
        if limit is None or tokens <= limit:
            continue
        end = (
            "engines stop there" if stage.sft is None else "set maxTokens, or keep longer conversations out of the data"
        )
        notes.append(
            f"max_position_embeddings: the model has {limit:,} positions, a sequence of spec.stages[{index}] may have "
            f"{tokens:,} tokens: {end}"
        )
    return notes


def _long_conversations(job: AgenticRLJob, config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the SFT stages whose maxTokens is set to more positions than the model has; the default is a note."""
    limit = position_limit(config)
    for index, stage in enumerate(job.spec.stages):
        if stage.sft is None or limit is None:
            continue
        # By value: a job that was written and read again has all its fields set.
        is_default = stage.sft.max_tokens == type(stage.sft).model_fields["max_tokens"].default
        if stage.sft.max_tokens > limit and not is_default:
            yield (
                f"max_position_embeddings: the model has {limit:,} positions, spec.stages[{index}].sft.maxTokens is "
                f"{stage.sft.max_tokens:,}: set maxTokens to {limit} or less"
            )
