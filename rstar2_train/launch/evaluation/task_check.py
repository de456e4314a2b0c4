"""`rstar2 env check`: one row of data through the agent loop, the tools, the sandbox and the reward of a job.

    cli/env.py -> prepare_check (row, prompt, turns) -> run_check (judge, collector) -> cli/check_view.py

The model is a script (`rollout/script.py`) or a server that runs already. All other parts are those of training.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.sources import BUCKETS, CLAIM, HUB
from rstar2_train.api.stages import Sampling, Stage
from rstar2_train.api.state_dir import JobState
from rstar2_train.data.problems import DataError, Problem, read_problems
from rstar2_train.data.sources import resolve, row_check
from rstar2_train.inference.openai_client import OpenAIClient
from rstar2_train.inference.pool import Connect, EnginePool
from rstar2_train.inference.scripted_client import SCRIPT, ScriptedClient
from rstar2_train.inference.weight_update import FolderUpdate
from rstar2_train.judge.client.client import JudgeClient
from rstar2_train.launch.evaluation.model import resolve_model
from rstar2_train.launch.evaluation.one_stage_job import read_chat_format
from rstar2_train.launch.evaluation.settings import job_chat_format, read_base_job
from rstar2_train.launch.local import preflight
from rstar2_train.launch.local.preflight import PreflightError
from rstar2_train.launch.local.services import RunningServices, Services
from rstar2_train.launch.running_services import check_judge
from rstar2_train.rewards.task_rewards import TaskRewards
from rstar2_train.rollout.agent import Agent
from rstar2_train.rollout.agent_program.programs import AgentPrograms
from rstar2_train.rollout.chat_format import ChatFormat
from rstar2_train.rollout.collector import collect_trajectories
from rstar2_train.rollout.context import RolloutContext
from rstar2_train.rollout.sandbox_check import check_imports
from rstar2_train.rollout.script import default_script, read_script
from rstar2_train.rollout.trajectory import Trajectory
from rstar2_train.tools.sandbox_program import SourceError
from rstar2_train.utils.supervisor import Supervisor, temporary_state
from rstar2_train.utils.text import reason

TINY_MODEL = "generated://tiny-smoke/base"
"""Model whose tokenizer is used if that of the job is not on this machine."""


@dataclass(frozen=True, kw_only=True)
class CheckRequest:
    """Options of the command line."""

    manifest: Path
    row: int
    """Number of the row in its file, from 1."""
    stage: str
    """Stage whose data and limits are used; empty: the first one with problems."""
    data: Path | None
    """File of the row; None: that of the stage."""
    script: Path | None
    """File with the model's turns; None: the default script."""
    running: RunningServices
    """Engine and judge that run already."""
    model: str
    """Name of the model that the engine serves; empty: its only one."""
    tokenizer: Path | None
    """Folder of the tokenizer; None: the job's model."""
    state: Path
    """Folder of the state of all jobs, for generated data."""


@dataclass(frozen=True)
class PreparedCheck:
    """The row, the settings and the turns of a check."""

    job: AgenticRLJob
    problem: Problem
    stage: str
    data: Path
    sampling: Sampling
    tokenizer: Path
    """Folder of the tokenizer."""
    chat_format: ChatFormat
    prompt: array[int]
    running: RunningServices
    """Engine and judge that run already. Without an engine the model is a script."""
    turns: list[str] | None
    """Turns of the script; None: an engine samples them."""
    note: str
    """Message for the user; may be empty."""


def prepare_check(request: CheckRequest) -> PreparedCheck:
    """Decide everything before a process is started. Raises PreflightError: manifest, row, script or tokenizer."""
    job = read_base_job(request.manifest)
    state = JobState((request.state / job.metadata.name).resolve())
    stage, source, sampling = _choose_stage(job, request.stage)
    find = partial(resolve, base_dir=request.manifest.parent, state_dir=state.root, seed=job.spec.seed)
    try:
        data = request.data or find(source)
        problem = _read_row(data, request.row)
        row_check(job)(problem)
        folder, note = _tokenizer(request, job, find)
        if not (folder / "tokenizer.json").is_file():  # transformers would search the Hub for it
            raise DataError(f"{folder}: no tokenizer.json: pass --tokenizer FOLDER with the tokenizer of the model")
        chat_format = read_chat_format(folder, job)
        prompt = chat_format.problem_ids(problem)
        turns = None if request.running.engine else _turns(request, job, problem, chat_format)
    except (DataError, SourceError, ValueError) as error:
        raise PreflightError(str(error)) from error
    except OSError as error:
        raise PreflightError(f"{error.filename}: {reason(error)}") from error
    running = request.running
    if turns is None:
        model = resolve_model(
            request.model, running, tokenizer=folder, rollout=job.spec.rollout, base=None, jobs=request.state
        )
        running = replace(running, model=model.name)
    return PreparedCheck(job, problem, stage, data, sampling, folder, chat_format, prompt, running, turns, note)


def run_check(check: PreparedCheck, *, notify: Callable[[str], None]) -> Trajectory:
    """Run the row; return its trajectory, scored or lost.

    Raises PreflightError, ChildFailed, EngineUnavailable, EngineRejected (also for a script that is too short),
    PromptTooLong or StopRequested.
    """
    with temporary_state("rstar2-check-") as folder:
        return asyncio.run(_run(check, JobState(folder), notify))


async def _run(check: PreparedCheck, state: JobState, notify: Callable[[str], None]) -> Trajectory:
    done: list[Trajectory] = []

    async def sample(supervisor: Supervisor) -> None:
        async with _rollout_context(check, state, supervisor, notify=notify) as context:
            await collect_trajectories(
                [(check.problem, 0)], prompts={check.problem.id: check.prompt}, context=context, on_done=done.append
            )

    async with Supervisor(logs=state.logs, register=state.children_file, notify=notify) as supervisor:
        await supervisor.run_until_stopped(sample(supervisor))
    return done[0]


@asynccontextmanager
async def _rollout_context(
    check: PreparedCheck, state: JobState, supervisor: Supervisor, *, notify: Callable[[str], None]
) -> AsyncIterator[RolloutContext]:
    """Yield the context of the row's rollout. Raises PreflightError for an unusable judge, tool or checker."""
    running, spec, chat_format, packages = check.running, check.job.spec, check.chat_format, None
    starts_judge = spec.needs_judge and not running.judge
    if running.judge:
        await check_judge(running.judge, token=running.judge_token)
    if starts_judge:
        preflight.check_machine(spec.executor, state)
        packages = preflight.prepare_packages(spec.judge, state)
    services = Services.create(spec.executor, state, engines=0, packages=packages, environments=spec.environments)
    if services.environment is not None:
        await services.start_environment(supervisor)
        chat_format = await asyncio.to_thread(job_chat_format, check.tokenizer, check.job, services.environments)
    if starts_judge:
        notify(f"Starting judge (logs: {state.logs})")
        await services.judge.start(supervisor)
    judge_url, token = (
        (running.judge, running.judge_token) if running.judge else (services.judge.url, services.judge_token)
    )
    connect, model = _model(check)
    async with (
        EnginePool([running.engine or SCRIPT], token=running.engine_token, connect=connect) as pool,
        JudgeClient(judge_url, token=token or None, patience_seconds=pool.times.patience) as judge,
        AgentPrograms(spec.agent) if spec.agent else nullcontext() as programs,
    ):
        rewards = TaskRewards(spec.rewards)
        try:
            if spec.needs_judge:
                await check_imports(chat_format.tools, rewards, packages=spec.judge.packages, judge=judge)
        except SourceError as error:
            raise PreflightError(str(error)) from error
        await pool.push(FolderUpdate.make(Path(), model))
        agent = Agent.from_spec(spec, chat_format, check.sampling)
        seed = (spec.seed, "check")
        yield RolloutContext(agent=agent, pool=pool, judge=judge, rewards=rewards, programs=programs, seed=seed)


def _model(check: PreparedCheck) -> tuple[Connect, str]:
    """Return the client's constructor of the engine or the script, and the weight version."""
    if check.turns is None:
        return partial(OpenAIClient, model=check.running.model), check.running.model
    chat_format = check.chat_format
    turns = [[*chat_format.encode_turn(turn), chat_format.end_of_turn_id] for turn in check.turns]
    return partial(ScriptedClient, turns=turns), SCRIPT


def _stages(job: AgenticRLJob) -> Iterator[tuple[Stage, str, Sampling]]:
    """Yield each stage that samples from a data file, the file, and its sampling settings."""
    for stage in job.spec.stages:
        if stage.grpo is not None:
            settings = job.grpo_settings(stage)
            if settings.data:
                yield stage, settings.data, settings.sampling
        if stage.filter is not None:
            yield stage, stage.filter.data, stage.filter.sampling
        if stage.evaluate is not None:
            yield stage, stage.evaluate.benchmarks[0].data, stage.evaluate.sampling


def _choose_stage(job: AgenticRLJob, name: str) -> tuple[str, str, Sampling]:
    """Return the name, the data file and the sampling settings of the stage `name`; empty: the first."""
    stages = {stage.name: (data, sampling) for stage, data, sampling in _stages(job)}
    if not stages:
        raise PreflightError("no stage of the job samples problems from a file of its own: add a GRPO stage with data")
    chosen = name or next(iter(stages))
    if chosen not in stages:
        raise PreflightError(f"--stage {name}: not a stage with problems of its own; the job has {', '.join(stages)}")
    return chosen, *stages[chosen]


def _read_row(data: Path, number: int) -> Problem:
    """Return a row of a file of problems. `number`: from 1."""
    rows = list(islice(read_problems(data), number))
    if len(rows) < number:
        raise PreflightError(f"--row {number}: {data} has {len(rows)} rows; the first is --row 1")
    return rows[-1]


def _tokenizer(request: CheckRequest, job: AgenticRLJob, find: Callable[[str], Path]) -> tuple[Path, str]:
    """Return the folder of the tokenizer, and a note for the user if it is not that of the job's model."""
    source = job.spec.model.source
    if request.tokenizer is not None:
        return request.tokenizer, ""
    if not source.startswith((HUB, CLAIM, *BUCKETS)):
        return find(source), ""
    note = f"{source} is not on this machine: the tokens are those of the tiny model. Pass --tokenizer FOLDER."
    return find(TINY_MODEL), note


def _turns(request: CheckRequest, job: AgenticRLJob, problem: Problem, chat_format: ChatFormat) -> list[str]:
    """Return the turns of the scripted model."""
    if request.script is not None:
        return read_script(request.script)
    rule = TaskRewards(job.spec.rewards).rule(problem.reward)
    answer = "" if problem.raw_prompt else problem.answer
    return default_script(chat_format.tools.select(problem.tools, problem.functions), answer=answer, reward=rule.type)
