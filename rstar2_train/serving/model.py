"""Which model is served, and how it was taught to call its tool: a folder, or what a job has trained.

First step of `rstar2 serve` (cli/serve.py). A model that lies in a job's state is served with that job's prompt, tool
and limits, since a model that was taught one prompt does poorly with another.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rstar2_train.api.roles import AcceleratorSpec, ExecutorSpec, JudgeSpec, ModelSource, RolloutSpec, ToolName
from rstar2_train.api.state_dir import JobState
from rstar2_train.inference.server import EngineCommand, engine_command
from rstar2_train.inference.tool_call_args import tool_call_arguments
from rstar2_train.rollout.chat_format import ChatFormat

LONGEST_CONTEXT = 32768
"""Tokens of prompt and answer together, unless --context says otherwise; less when the model takes less."""


class ModelNotFound(Exception):
    """Why a model cannot be served, and what to give instead."""


@dataclass(frozen=True, slots=True)
class ServingModel:
    """A model and the settings that it is served with."""

    name: str
    """What clients call it."""
    folder: Path
    source: ModelSource
    """Its prompts and chat template."""
    rollout: RolloutSpec
    judge: JudgeSpec
    executor: ExecutorSpec
    config: dict[str, Any]
    """Its config.json."""
    context: int
    """Tokens of prompt and answer together."""
    accelerator: AcceleratorSpec = field(default_factory=lambda: AcceleratorSpec.of_vendor("None"))
    """Of this machine; a job's own may be another's."""

    def protocol(self) -> ChatFormat:
        """How its conversations become tokens. Raises ProtocolError, and OSError for files that are not there."""
        return ChatFormat.load(self.folder, self.source, tool=self.rollout.tool)

    def engine(self, *, port: int) -> EngineCommand:
        """Command line of its engine, which reads the calls of a client's own tools too. Raises ValueError."""
        arguments = self.rollout.engine_args | tool_call_arguments(self.source) | {"max-model-len": self.context}
        return engine_command(
            rollout=self.rollout.model_copy(update={"engine_args": arguments}),
            accelerator=self.accelerator,
            model=self.folder,
            config=self.config,
            max_model_len=self.context,
            seed=0,
            port=port,
        )


def find(model: str, *, jobs: Path) -> ServingModel:
    """The model that a person named: a Hugging Face folder, a job, or a job's stage (`tiny/rl-3`).

    `jobs`: the folder of all jobs' state. Raises ModelNotFound.
    """
    folder = Path(model)
    if (folder / "config.json").is_file():
        return _in_folder(folder.resolve())
    name, _, stage = model.partition("/")
    state = JobState(folder if (folder / "job.json").is_file() else jobs / name)
    if not state.job_file.is_file():
        raise ModelNotFound(
            f"{model}: no such model. Give a Hugging Face folder (with config.json, tokenizer.json and *.safetensors), "
            f"or JOB or JOB/STAGE of a job in {jobs}"
        )
    return _of_job(state, "" if state.root == folder else stage)


def adjusted(
    served: ServingModel,
    *,
    context: int | None = None,
    system_prompt: str | None = None,
    prompt_prefix: str | None = None,
    tool: ToolName | None = None,
    accelerator: AcceleratorSpec | None = None,
    executors: int | None = None,
) -> ServingModel:
    """The model with what a person set over its settings; None leaves one as it is. Raises ModelNotFound."""
    if context is not None and context > (limit := _limit(served.config, context)):
        raise ModelNotFound(f"--context {context} is more than the {limit} tokens that the model takes")
    prompts = {"system_prompt": system_prompt, "prompt_prefix": prompt_prefix}
    given = {key: value for key, value in prompts.items() if value is not None}
    return replace(
        served,
        context=context or served.context,
        source=served.source.model_copy(update=given),
        rollout=served.rollout.model_copy(update={"tool": tool}) if tool else served.rollout,
        accelerator=accelerator or served.accelerator,
        executor=served.executor.model_copy(update={"replicas": executors}) if executors else served.executor,
    )


def _of_job(state: JobState, stage: str) -> ServingModel:
    """What a stage of a job handed on; without a name, the last that handed on a model."""
    try:
        stages = [one.name for one in state.job().spec.stages]
    except (ValidationError, OSError) as error:
        raise ModelNotFound(f"{state.job_file} cannot be read: {error}") from error
    trained = [name for name in stages if (state.stage(name).model / "config.json").is_file()]
    if not trained or (stage and stage not in trained):
        what = f"has no model of stage {stage!r}" if stage else "has no trained model yet"
        raise ModelNotFound(f"{state.root} {what}; it has: {', '.join(trained) or 'none'}")
    return _in_folder(state.stage(stage or trained[-1]).model.resolve())


def _in_folder(folder: Path) -> ServingModel:
    """A Hugging Face folder, with the settings of the job in whose state it lies, if it lies in one."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelNotFound(f"{folder / 'config.json'} cannot be read: {error}") from error
    for needed in ("tokenizer.json", "*.safetensors"):
        if not any(folder.glob(needed)):
            raise ModelNotFound(f"{folder} holds no {needed}: it is not the Hugging Face folder of a model")
    context = _limit(config, LONGEST_CONTEXT)
    state = JobState(folder.parents[2]) if folder.match("stages/*/model") else None
    if state is None or not state.job_file.is_file():
        return ServingModel(
            name=folder.name,
            folder=folder,
            source=ModelSource(source=str(folder)),
            rollout=RolloutSpec(),
            judge=JudgeSpec(),
            executor=ExecutorSpec(),
            config=config,
            context=context,
        )
    job = state.job()
    return ServingModel(
        name=f"{job.metadata.name}/{folder.parent.name}",
        folder=folder,
        source=job.spec.model,
        rollout=job.spec.rollout,
        judge=job.spec.judge,
        executor=job.spec.executor,
        config=config,
        context=context,
    )


def _limit(config: dict[str, Any], wanted: int) -> int:
    """So many tokens as wanted, or as many as the model takes."""
    return min(wanted, int(config.get("max_position_embeddings", wanted)))
