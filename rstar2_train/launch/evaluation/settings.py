"""The settings of `rstar2 eval`, `filter` and `env check`: a manifest's, replaced by those of the command line.

The chat format and the response budget follow from the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.roles import AcceleratorSpec
from rstar2_train.api.sources import sources
from rstar2_train.api.stages import EvaluateStage, FilterStage, Sampling, Stage
from rstar2_train.data.problems import DataError
from rstar2_train.data.sources import resolve
from rstar2_train.launch.local.devices import vendor
from rstar2_train.launch.local.preflight import PreflightError, read_job
from rstar2_train.rollout.chat_format import ChatFormat, ChatFormatError
from rstar2_train.tools.mcp_session import ServerLost
from rstar2_train.tools.sandbox_program import SourceError
from rstar2_train.tools.toolset import job_toolset

Settings = TypeVar("Settings", EvaluateStage, FilterStage)


def base_job(manifest: Path | None, *, otherwise: Stage) -> AgenticRLJob:
    """Return the job with the prompts and the settings of tool, engine and judge. Raises PreflightError.

    Without a manifest it is a job with default settings and the one stage `otherwise`.
    """
    if manifest is None:
        return AgenticRLJob.model_validate(
            {
                "metadata": {"name": "none"},
                "spec": {
                    "model": {"source": "-"},
                    "accelerator": AcceleratorSpec.from_vendor(vendor()).model_dump(exclude_none=True),
                    "stages": [otherwise.model_dump(by_alias=True, exclude_none=True)],
                },
            }
        )
    return read_base_job(manifest)


def read_base_job(manifest: Path) -> AgenticRLJob:
    """Return the job of a manifest, with the paths of its chat template, tools and checkers. Raises PreflightError."""
    job = read_job(manifest)[0].model_copy(deep=True)
    for source in sources(job):
        if source.holds not in ("template", "tool", "checker"):
            continue
        try:
            path = resolve(
                source.value,
                base_dir=manifest.parent,
                state_dir=manifest.parent,
                seed=job.spec.seed,
                storage=job.spec.storage,
            )
        except DataError as error:
            raise PreflightError(f"{manifest}: {source.field}: {error}") from error
        source.put(str(path.resolve()))
    return job


def adjusted(stage: Settings, given: Mapping[str, Any]) -> Settings:
    """Return a stage's settings with those of the command line in their place. Raises PreflightError."""
    sampling = stage.sampling.model_dump(by_alias=False)
    sampling |= {name: given[name] for name in sampling if given.get(name) is not None}
    own = {name: given[name] for name in type(stage).model_fields if given.get(name) is not None}
    try:
        values = {name: getattr(stage, name) for name in type(stage).model_fields}
        return type(stage)(**(values | own | {"sampling": Sampling.model_validate(sampling)}))
    except ValidationError as error:
        first = error.errors()[0]
        raise PreflightError(f"{'.'.join(map(str, first['loc']))}: {first['input']!r}: {first['msg']}") from error


def job_chat_format(tokenizer: Path, base: AgenticRLJob, environments: Sequence[str] = ()) -> ChatFormat:
    """Return the chat format of a tokenizer's folder with the prompts and tools of a job. Raises PreflightError.

    `environments`: `HOST:PORT` of the servers of an environment without a URL.
    """
    try:
        return ChatFormat.load(tokenizer, base.spec.model, tools=job_toolset(base.spec, environments))
    except (ChatFormatError, SourceError, ServerLost) as error:
        raise PreflightError(str(error)) from error


def fit(sampling: Sampling, *, prompt: int, problem: str, context: int | None) -> tuple[Sampling, str]:
    """Return the sampling settings with a response budget that leaves space for the prompt, and a note. Pure.

    `prompt`: tokens of the longest prompt, which is that of `problem`. `context`: the model's longest sequence in
    tokens; None: unknown. Raises PreflightError if the prompt alone fills the context.
    """
    if context is None or prompt + sampling.max_response_tokens <= context:
        return sampling, ""
    budget = context - prompt
    if budget < 1:
        raise PreflightError(
            f"The prompt of problem {problem} has {prompt} tokens, but the context of the model only {context}."
        )
    note = (
        f"Responses are limited to {budget} tokens instead of {sampling.max_response_tokens}: the context of the model "
        f"is {context} tokens, and the longest prompt (problem {problem}) has {prompt}."
    )
    return sampling.model_copy(update={"max_response_tokens": budget}), note
