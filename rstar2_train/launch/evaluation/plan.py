"""The plan of `rstar2 eval` and `rstar2 filter`: everything that is decided before a process is started.

    cli/eval.py   -> evaluate.py -+
    cli/filter.py -> filter.py ---+-> EvalTask + EvalRequest -> make_plan -> SamplingPlan -> runner.py

`evaluate.py` and `filter.py` read their files and describe the problems to sample (`EvalTask`). `EvalRequest` holds the
options of the command line. The `SamplingPlan` has prompts as tokens, limits that fit the model, and an `AgenticRLJob`
with one stage, whose engine and judge start like those of any other job.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import ValidationError

from rstar2_train.api.job import AgenticRLJob, Metadata
from rstar2_train.api.roles import AcceleratorSpec, ModelSource, Vendor
from rstar2_train.api.sources import sources
from rstar2_train.api.stages import EvaluateStage, FilterStage, GRPODefaults, Sampling, Stage
from rstar2_train.api.state_dir import JobState
from rstar2_train.data.problems import DataError, Problem
from rstar2_train.data.sources import resolve
from rstar2_train.evaluation.sample_cache import cache_key, sampling_settings
from rstar2_train.launch.evaluation.model import resolve_model
from rstar2_train.launch.external import ExternalServices
from rstar2_train.launch.local.preflight import PreflightError, read_job, vendor
from rstar2_train.rollout.chat_format import ChatFormat, ChatFormatError
from rstar2_train.tools.mcp_session import ServerLost
from rstar2_train.tools.sandbox_program import SourceError
from rstar2_train.tools.toolset import job_toolset

Settings = TypeVar("Settings", EvaluateStage, FilterStage)


@dataclass(frozen=True)
class EvalRequest:
    """Options of the command line that both commands have."""

    model: str
    """A folder; with an endpoint, the name or folder of a served model, or empty if it serves only one."""
    external: ExternalServices
    tokenizer: Path | None
    manifest: Path | None
    settings: Mapping[str, Any]
    """Fields of `Sampling`, `seed`, `samples` and the command's own. None: not given."""
    accelerator: Vendor | None
    state: Path


@dataclass(frozen=True)
class EvalTask:
    """The problems of a command and how to sample them."""

    command: Literal["eval", "filter"]
    folder: str
    """Folder of this command's samples in the folder of all jobs. No job can have this name."""
    seed_name: str
    """Follows the job's seed in the seed of every request."""
    problems: list[Problem]
    samples: int
    """Samples per problem."""
    sampling: Sampling
    stage: Callable[[Sampling], Stage]
    """Returns the stage of an equivalent job, for limits that fit the model."""


@dataclass(frozen=True)
class SamplingPlan:
    """All decisions of a command."""

    job: AgenticRLJob
    """A job with one stage."""
    model: str
    """Shown to the user: the folder, or the name at the endpoint."""
    folder: Path | None
    """The model to serve; None: the external engine serves it as `model`."""
    external: ExternalServices
    problems: list[Problem]
    samples: int
    """Samples per problem."""
    sampling: Sampling
    seed: tuple[int | str, ...]
    """Prefix of the seed of every request."""
    chat_format: ChatFormat
    prompts: dict[str, array[int]]
    """Token ids by problem id."""
    settings: dict[str, Any]
    """The settings that determine the samples, except the prompts."""
    state: JobState
    """Folder of the samples and of the children's files."""
    note: str
    """Message for the user; may be empty."""


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
                    "accelerator": AcceleratorSpec.of_vendor(vendor()).model_dump(exclude_none=True),
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
            path = resolve(source.value, base_dir=manifest.parent, state_dir=manifest.parent, seed=job.spec.seed)
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


def make_plan(request: EvalRequest, base: AgenticRLJob, task: EvalTask) -> SamplingPlan:
    """Decide everything. Raises PreflightError with the cause: the model, the endpoint or a setting."""
    model = resolve_model(request.model, request.external, tokenizer=request.tokenizer, rollout=base.spec.rollout)
    chat_format = load_chat_format(model.tokenizer, base)
    prompts = {problem.id: chat_format.problem_ids(problem) for problem in task.problems}
    longest = max(prompts, key=lambda name: len(prompts[name]))
    prompt = len(prompts[longest])
    sampling, note = fit(task.sampling, prompt=prompt, problem=longest, context=model.context)
    job = _job(base, request, task.command, task.stage(sampling), model=str(model.folder or model.name), prompt=prompt)
    settings = {**model.identity, **sampling_settings(job.spec, sampling, seed_name=task.seed_name)}
    slug = re.sub(r"[^A-Za-z0-9]+", "-", Path(model.name).name).strip("-") or "model"
    root = request.state / task.folder / f"{slug[:40]}-{cache_key(settings)}"
    return SamplingPlan(
        job=job,
        model=model.name,
        folder=model.folder,
        external=request.external,
        problems=task.problems,
        samples=task.samples,
        sampling=sampling,
        seed=(job.spec.seed, task.seed_name),
        chat_format=chat_format,
        prompts=prompts,
        settings=settings,
        state=JobState(root.resolve()),
        note=note,
    )


def load_chat_format(tokenizer: Path, base: AgenticRLJob) -> ChatFormat:
    """Return the chat format of a tokenizer's folder with the prompts and tools of a job. Raises PreflightError."""
    try:
        return ChatFormat.load(tokenizer, base.spec.model, tools=job_toolset(base.spec))
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


def _job(
    base: AgenticRLJob, request: EvalRequest, command: str, stage: Stage, *, model: str, prompt: int
) -> AgenticRLJob:
    """Return `base` with only this stage. `prompt`: tokens of the longest prompt, for the engines' context."""
    accelerator = AcceleratorSpec.of_vendor(request.accelerator) if request.accelerator else None
    seed = request.settings.get("seed")
    source: ModelSource = base.spec.model.model_copy(update={"source": model})
    spec = base.spec.model_copy(
        update={
            "model": source,
            "accelerator": accelerator or base.spec.accelerator,
            "seed": base.spec.seed if seed is None else seed,
            "stages": [stage],
            "grpo": GRPODefaults(max_prompt_tokens=prompt),
            "validation": None,
        }
    )
    return base.model_copy(update={"metadata": Metadata(name=command), "spec": spec})
