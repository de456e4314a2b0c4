"""What a command will ask, of which model, and where: everything that is settled before anything is started.

`rstar2 eval` and `rstar2 filter` each read their files (`evaluate.py`, `filter.py`) and say with a `EvalTask` what is
to be asked. From that and the command line's wishes (`EvalRequest`) comes a `SamplingPlan`: prompts as tokens, limits
that fit the model, and an `AgenticRLJob` with one stage, of which engine and judge are started like any other job's.
`runner.py` carries it out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import ValidationError

from rstar2_train.api.job import AgenticRLJob, Metadata
from rstar2_train.api.roles import AcceleratorSpec, ModelSource, Vendor
from rstar2_train.api.stages import EvaluateStage, FilterStage, GRPODefaults, Sampling, Stage
from rstar2_train.api.state_dir import JobState
from rstar2_train.data.problems import DataError, Problem
from rstar2_train.data.sources import resolve
from rstar2_train.evaluation.sample_cache import cache_key, sampling_settings
from rstar2_train.launch.evaluation.model import find_model, load_protocol
from rstar2_train.launch.local.preflight import PreflightError, read_job, vendor
from rstar2_train.rollout.chat_format import ChatFormat

Settings = TypeVar("Settings", EvaluateStage, FilterStage)


@dataclass(frozen=True)
class EvalRequest:
    """What the command line says, whatever the command."""

    model: str
    """A folder; with an endpoint, the name or root of what is served there, or empty where that is one model."""
    endpoint: str
    engine_token: str
    tokenizer: Path | None
    manifest: Path | None
    settings: Mapping[str, Any]
    """Fields of `Sampling`, `seed`, `samples` and the command's own, as far as given."""
    accelerator: Vendor | None
    state: Path


@dataclass(frozen=True)
class EvalTask:
    """What is asked."""

    command: Literal["eval", "filter"]
    folder: str
    """In the folder of all jobs' state: where the samples of all such commands are kept. No job can have this name."""
    seed_name: str
    """Follows the job's seed in the seed of every request."""
    problems: list[Problem]
    samples: int
    """Of each problem."""
    sampling: Sampling
    stage: Callable[[Sampling], Stage]
    """The stage of a job that asks the same, given the limits that fit the model."""


@dataclass(frozen=True)
class SamplingPlan:
    """A command, settled."""

    job: AgenticRLJob
    """With one stage."""
    model: str
    """For people: the folder, or the name at the endpoint."""
    folder: Path | None
    """The model to serve; None: it is served at `endpoint` as `model`."""
    endpoint: str
    problems: list[Problem]
    samples: int
    """Of each problem."""
    sampling: Sampling
    seed: tuple[int | str, ...]
    """What the seed of every request begins with."""
    protocol: ChatFormat
    prompts: dict[str, list[int]]
    """Token ids by problem id."""
    settings: dict[str, Any]
    """What the samples depend on, beside the prompts."""
    state: JobState
    """Where the samples are kept, and what the children need."""
    note: str
    """What a person should know; may be empty."""


def base_job(manifest: Path | None, *, otherwise: Stage) -> AgenticRLJob:
    """The job whose prompts, tool, engine and judge settings are used: the manifest's, or one with `otherwise` alone.

    Raises PreflightError for a manifest that is not valid.
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
    job, _ = read_job(manifest)
    template = job.spec.model.chat_template
    if template is None:
        return job
    try:
        found = resolve(template, base_dir=manifest.parent, state_dir=manifest.parent, seed=job.spec.seed)
    except DataError as error:
        raise PreflightError(f"{manifest}: spec.model.chatTemplate: {error}") from error
    model = job.spec.model.model_copy(update={"chat_template": str(found.resolve())})
    return job.model_copy(update={"spec": job.spec.model_copy(update={"model": model})})


def adjusted(stage: Settings, given: Mapping[str, Any]) -> Settings:
    """The settings of a stage with what the command line gives over them. Raises PreflightError."""
    sampling = stage.sampling.model_dump(by_alias=False)
    sampling |= {name: given[name] for name in sampling if given.get(name) is not None}
    own = {name: given[name] for name in type(stage).model_fields if given.get(name) is not None}
    try:
        values = {name: getattr(stage, name) for name in type(stage).model_fields}
        return type(stage)(**(values | own | {"sampling": Sampling.model_validate(sampling)}))
    except ValidationError as error:
        first = error.errors()[0]
        raise PreflightError(f"{'.'.join(map(str, first['loc']))}: {first['input']!r}: {first['msg']}") from error


def make_plan(wanted: EvalRequest, base: AgenticRLJob, task: EvalTask) -> SamplingPlan:
    """Settle everything. Raises PreflightError with what is wrong and where: model, endpoint, settings."""
    found = find_model(
        wanted.model,
        endpoint=wanted.endpoint,
        engine_token=wanted.engine_token,
        tokenizer=wanted.tokenizer,
        engine_args=base.spec.rollout.engine_args,
    )
    protocol = load_protocol(found.tokenizer, base)
    prompts = {problem.id: protocol.prompt_ids(problem.problem, as_is=problem.as_is) for problem in task.problems}
    longest = max(prompts, key=lambda name: len(prompts[name]))
    prompt = len(prompts[longest])
    sampling, note = fit(task.sampling, prompt=prompt, named=longest, context=found.context)
    job = _job(base, wanted, task.command, task.stage(sampling), model=str(found.folder or found.name), prompt=prompt)
    settings = {**found.identity, **sampling_settings(job.spec, sampling, seed_name=task.seed_name)}
    slug = re.sub(r"[^A-Za-z0-9]+", "-", Path(found.name).name).strip("-") or "model"
    root = wanted.state / task.folder / f"{slug[:40]}-{cache_key(settings)}"
    return SamplingPlan(
        job=job,
        model=found.name,
        folder=found.folder,
        endpoint=wanted.endpoint,
        problems=task.problems,
        samples=task.samples,
        sampling=sampling,
        seed=(job.spec.seed, task.seed_name),
        protocol=protocol,
        prompts=prompts,
        settings=settings,
        state=JobState(root.resolve()),
        note=note,
    )


def fit(sampling: Sampling, *, prompt: int, named: str, context: int | None) -> tuple[Sampling, str]:
    """The sampling with a response budget that leaves room for the prompt, and what to tell a person. Pure.

    `prompt`: tokens of the longest prompt, that of the problem `named`; `context`: the model's longest sequence in
    tokens, None: not known. Raises PreflightError when the prompt alone fills it.
    """
    if context is None or prompt + sampling.max_response_tokens <= context:
        return sampling, ""
    room = context - prompt
    if room < 1:
        raise PreflightError(f"problem {named}: its prompt takes {prompt} tokens, and the model no more than {context}")
    note = (
        f"responses are limited to {room} tokens, not {sampling.max_response_tokens}: the model takes {context}, "
        f"and the longest prompt ({named}) needs {prompt} of them"
    )
    return sampling.model_copy(update={"max_response_tokens": room}), note


def _job(
    base: AgenticRLJob, wanted: EvalRequest, command: str, stage: Stage, *, model: str, prompt: int
) -> AgenticRLJob:
    """The job of this command: `base` with this one stage. `prompt`: tokens that engines make room for."""
    accelerator = AcceleratorSpec.of_vendor(wanted.accelerator) if wanted.accelerator else None
    seed = wanted.settings.get("seed")
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
