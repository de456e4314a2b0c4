"""The job that `rstar2 eval` or `rstar2 filter` runs: one stage, with the model and settings of the command line.

    cli/eval.py   -> evaluate.py -+
    cli/filter.py -> filter.py ---+-> EvalTask + EvalRequest -> make_one_stage_job -> OneStageJob -> measure.py

`evaluate.py` and `filter.py` read their files and describe the problems to sample (`EvalTask`). `EvalRequest` holds the
options of the command line. Everything is decided before a process of the job starts: limits that fit the model, the
engines' context, and the folder of the samples, whose name is a hash of all settings that determine them.
"""

from __future__ import annotations

import asyncio
import re
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rstar2_train.api.job import AgenticRLJob, FailurePolicy, Metadata
from rstar2_train.api.roles import AcceleratorSpec, TrackingSpec, Vendor
from rstar2_train.api.stages import GRPODefaults, Sampling, Stage
from rstar2_train.api.state_dir import JobState, StageState
from rstar2_train.data.problems import DataError, Problem
from rstar2_train.data.sources import row_check
from rstar2_train.evaluation.settings import cache_key, sampling_settings
from rstar2_train.launch.evaluation.model import ResolvedModel, resolve_model
from rstar2_train.launch.evaluation.settings import fit, job_chat_format
from rstar2_train.launch.local.preflight import PreflightError, check_programs
from rstar2_train.launch.local.services import RunningServices, Services
from rstar2_train.orchestrator.sessions import chat_date
from rstar2_train.rollout.chat_format import ChatFormat
from rstar2_train.rollout.collector import encode_prompts
from rstar2_train.utils.supervisor import ChildFailed, Supervisor, temporary_state


@dataclass(frozen=True)
class EvalRequest:
    """Options of the command line that both commands have."""

    model: str
    """A folder; with an endpoint, the name or folder of a served model, or empty if it serves only one."""
    running: RunningServices
    tokenizer: Path | None
    manifest: Path | None
    settings: Mapping[str, Any]
    """Fields of `Sampling`, `seed`, `samples` and the command's own. None: not given."""
    accelerator: Vendor | None
    state: Path
    base: Path | None = None
    """Base of the model, if it is an adapter; None: the one that its config names."""


@dataclass(frozen=True)
class EvalTask:
    """The problems of a command and how to sample them."""

    command: Literal["eval", "filter"]
    """Name of the job and of its stage."""
    folder: str
    """Folder of this command's jobs in the folder of all jobs. No other job can have this name."""
    seed_name: str
    """Follows the job's seed in the seed of every request."""
    problems: list[Problem]
    samples: int
    """Samples per problem."""
    sampling: Sampling
    stage: Callable[[Sampling], Stage]
    """Returns the stage, with limits that fit the model."""


@dataclass(frozen=True)
class OneStageJob:
    """The job of a command, and where it runs."""

    job: AgenticRLJob
    running: RunningServices
    tokenizer: Path
    problems: list[Problem]
    samples: int
    """Samples per problem."""
    sampling: Sampling
    prompts: dict[str, array[int]]
    """Token ids by problem id."""
    model: str
    """Shown to the user: the folder, or the name at the endpoint."""
    settings: dict[str, Any]
    """The settings that determine the samples, except the prompts."""
    state: JobState
    """Folder of the job."""
    note: str
    """Message for the user; may be empty."""

    @property
    def stage(self) -> Stage:
        """The stage of the job."""
        return self.job.spec.stages[0]

    @property
    def folder(self) -> StageState:
        """Folder of the stage."""
        return self.state.stage(self.stage.name)


def make_one_stage_job(request: EvalRequest, base: AgenticRLJob, task: EvalTask) -> OneStageJob:
    """Decide everything. Raises PreflightError with the cause: the model, the endpoint, a row or a setting."""
    model = resolve_model(
        request.model,
        request.running,
        tokenizer=request.tokenizer,
        rollout=base.spec.rollout,
        base=request.base,
        jobs=request.state,
    )
    _check_rows(base, task.problems)
    check_programs(base)
    chat_format = read_chat_format(model.tokenizer, base)
    prompts = _encode_prompts(task.problems, chat_format)
    longest = max(prompts, key=lambda name: len(prompts[name]))
    prompt = len(prompts[longest])
    sampling, note = fit(task.sampling, prompt=prompt, problem=longest, context=model.context)
    job = _job(base, request, task.command, task.stage(sampling), model=model, prompt=prompt)
    settings = {**model.identity, **sampling_settings(job.spec, sampling, seed_name=task.seed_name)}
    slug = re.sub(r"[^A-Za-z0-9]+", "-", Path(model.name).name).strip("-") or "model"
    root = request.state / task.folder / f"{slug[:40]}-{cache_key(settings | {'root': model.root})}"
    state = JobState(root.resolve())
    if chat_format.template.uses_date and state.chat_date_file.exists():  # the first run was on another day
        date = chat_date(state)
        chat_format = ChatFormat.load(model.tokenizer, job.spec.model, tools=chat_format.tools, date=date)
        prompts = _encode_prompts(task.problems, chat_format)
    return OneStageJob(
        job=job,
        running=replace(request.running, model="" if model.folder else model.name),
        tokenizer=model.tokenizer.resolve(),
        problems=task.problems,
        samples=task.samples,
        sampling=sampling,
        prompts=prompts,
        model=model.name,
        settings=settings,
        state=state,
        note=note,
    )


def _check_rows(job: AgenticRLJob, problems: list[Problem]) -> None:
    check = row_check(job)
    try:
        for problem in problems:
            check(problem)
    except DataError as error:
        raise PreflightError(str(error)) from error


def _encode_prompts(problems: list[Problem], chat_format: ChatFormat) -> dict[str, array[int]]:
    try:
        return encode_prompts(problems, chat_format)
    except DataError as error:
        raise PreflightError(str(error)) from error


def read_chat_format(tokenizer: Path, base: AgenticRLJob) -> ChatFormat:
    """Return the chat format. Servers of an environment, which list its actions, run while it is read.

    Raises PreflightError.
    """
    if all(environment.url is not None for environment in base.spec.environments):
        return job_chat_format(tokenizer, base)

    async def read(folder: Path) -> ChatFormat:
        state = JobState(folder)
        services = Services.create(base.spec.executor, state, engines=0, environments=base.spec.environments)
        async with Supervisor(logs=state.logs, register=state.children_file, notify=lambda _: None) as supervisor:

            async def list_actions() -> ChatFormat:
                await services.start_environment(supervisor)
                return await asyncio.to_thread(job_chat_format, tokenizer, base, services.environments)

            return await supervisor.run_until_stopped(list_actions())

    with temporary_state("rstar2-actions-") as folder:
        try:
            return asyncio.run(read(folder))
        except ChildFailed as error:
            raise PreflightError(str(error)) from error


def _job(
    base: AgenticRLJob, request: EvalRequest, command: str, stage: Stage, *, model: ResolvedModel, prompt: int
) -> AgenticRLJob:
    """Return `base` with only this stage. `prompt`: tokens of the longest prompt, for the engines' context.

    An endpoint that others operate is not waited for: after its loss, the same command resumes.
    """
    accelerator = AcceleratorSpec.from_vendor(request.accelerator) if request.accelerator else None
    seed = request.settings.get("seed")
    spec = base.spec.model_copy(
        update={
            "model": base.spec.model.model_copy(update={"source": str(model.folder or model.name)}),
            "accelerator": accelerator or base.spec.accelerator,
            "seed": base.spec.seed if seed is None else seed,
            "stages": [stage],
            "grpo": GRPODefaults(max_prompt_tokens=prompt),
            "validation": None,
            "tracking": TrackingSpec(),
            "failure_policy": base.spec.failure_policy if model.folder else FailurePolicy(max_restarts=0),
        }
    )
    return base.model_copy(update={"metadata": Metadata(name=command), "spec": spec})
