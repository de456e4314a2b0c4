"""Collects rollouts: runs many trajectories concurrently under one weight version and returns them scored.

`collect_groups` serves a training step, which needs whole groups. `collect_trajectories` serves a measurement, which
saves each sample as it finishes. The admission queue (`inference/admission.py`) decides which trajectories run. A
trajectory that infrastructure lost is marked and returned with the others; the caller excludes it.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from array import array
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TypeVar

from rstar2_train.data.problems import DataError, Problem
from rstar2_train.judge.client.client import JudgeClient
from rstar2_train.judge.types import JudgeUnavailable
from rstar2_train.rollout.agent import Agent, ToolExecutor
from rstar2_train.rollout.agent_program.conversation import Conversations
from rstar2_train.rollout.agent_program.episode import AgentEpisode
from rstar2_train.rollout.agent_program.programs import AgentPrograms
from rstar2_train.rollout.chat_format import ChatFormat, ChatFormatError
from rstar2_train.rollout.context import RolloutContext, RunRollout
from rstar2_train.rollout.environment_episode import EnvironmentEpisode
from rstar2_train.rollout.generation import Backoff, FailoverGenerator, InfrastructureError
from rstar2_train.rollout.jupyter_tool import JupyterTool
from rstar2_train.rollout.remote_tools import RemoteTools
from rstar2_train.rollout.scoring import score_episode, score_trajectory, set_penalties
from rstar2_train.rollout.seeds import derive_seed
from rstar2_train.rollout.trajectory import Trajectory
from rstar2_train.tools.mcp_session import ServerLost

log = logging.getLogger(__name__)

Result = TypeVar("Result")

MAX_LOST_FRACTION = 0.25
"""Largest fraction of rollouts that may be lost to infrastructure before the batch is rejected."""
SERVER_TRIES = 3
"""Tries of a rollout that a server or an agent's program loses. Its state is lost, so it starts again."""
MAX_CONCURRENT = 16384
"""Trajectories that run or wait for an engine at the same time: one step of the paper, more than its engines run."""


class PromptTooLong(ValueError):
    """A prompt and the response budget together exceed the engines' longest sequence."""


async def collect_groups(
    problems: Sequence[Problem],
    *,
    samples: int,
    prompts: Mapping[str, array[int]],
    context: RolloutContext,
    on_group: Callable[[list[Trajectory]], None],
    on_done: Callable[[Trajectory], None] = lambda _: None,
) -> None:
    """Run `samples` trajectories per problem (distinct ids); pass each group to `on_group` when its last one is scored.

    A group is in the order of sample numbers. `on_done`: called with each trajectory, before `on_group`. Raises as
    `collect_trajectories` does.
    """
    unfinished: dict[str, list[Trajectory]] = {problem.id: [] for problem in problems}

    def add(trajectory: Trajectory) -> None:
        on_done(trajectory)
        group = unfinished[trajectory.prompt_id]
        group.append(trajectory)
        if len(group) == samples:
            on_group(sorted(unfinished.pop(trajectory.prompt_id), key=lambda member: member.sample))

    pairs = [(problem, sample) for problem in problems for sample in range(samples)]
    await collect_trajectories(pairs, prompts=prompts, context=context, on_done=add)


def encode_prompts(problems: Sequence[Problem], chat_format: ChatFormat) -> dict[str, array[int]]:
    """Return the tokens of each prompt by problem id. Raises DataError for one that the template does not write."""
    prompts = {}
    for problem in problems:
        try:
            prompts[problem.id] = chat_format.problem_ids(problem)
        except ChatFormatError as error:
            raise DataError(f"problem {problem.id}: {error}") from error
    return prompts


async def tokenise_prompts(problems: Sequence[Problem], chat_format: ChatFormat) -> dict[str, array[int]]:
    """Return `encode_prompts` from a thread: 42,000 prompts take half a minute."""
    return await asyncio.to_thread(encode_prompts, problems, chat_format)


async def collect_trajectories(
    pairs: Sequence[tuple[Problem, int]],
    *,
    prompts: Mapping[str, array[int]],
    context: RolloutContext,
    on_done: Callable[[Trajectory], None],
) -> None:
    """Run one trajectory per pair of problem and sample number; pass each to `on_done` when scored, then release it.

    `prompts`: token ids by problem id. Trajectories start in the order of `pairs`.

    Raises EngineRejected when an engine rejects a request (a defect), PromptTooLong for a prompt that leaves no space
    for the response, and any error of `on_done`. An error or a cancellation stops all requests.
    """
    for prompt_id in dict.fromkeys(problem.id for problem, _ in pairs):
        _check_length(prompt_id, len(prompts[prompt_id]), context)
    remaining = iter(pairs)

    async def run_remaining(run: RunRollout) -> None:
        for problem, sample in remaining:
            on_done(await run(problem, prompts[problem.id], sample))

    with _runner(context) as run:
        tasks = [asyncio.create_task(run_remaining(run)) for _ in range(min(MAX_CONCURRENT, len(pairs)))]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _runner(context: RolloutContext) -> AbstractContextManager[RunRollout]:
    """Return the function that runs the rollouts of a set: in this process, or in its workers."""
    if context.workers is not None:
        return context.workers.serve(context)
    return nullcontext(partial(run_rollout, context))


def fits_engines(prompt_tokens: int, context: RolloutContext) -> bool:
    """Return whether a prompt and the whole budget fit the engines' longest sequence."""
    longest = context.pool.max_model_len
    return longest is None or prompt_tokens + context.agent.sampling.max_response_tokens <= longest


def truncated_trajectory(problem: Problem, prompt_ids: array[int], sample: int) -> Trajectory:
    """Return the rollout of a prompt that leaves no space for the response: truncated before its first turn."""
    trajectory = replace(_new_trajectory(problem, prompt_ids, sample), stop="length")
    set_penalties(trajectory, "")
    return trajectory


def _check_length(prompt_id: str, prompt_tokens: int, context: RolloutContext) -> None:
    """Raise PromptTooLong unless the prompt and the whole budget fit the engines' longest sequence."""
    if not fits_engines(prompt_tokens, context):
        budget, longest = context.agent.sampling.max_response_tokens, context.pool.max_model_len
        raise PromptTooLong(
            f"problem {prompt_id}: {prompt_tokens} prompt tokens plus maxResponseTokens {budget} exceed the engines' "
            f"max-model-len {longest}: raise max-model-len in rollout.engineArgs, or lower the budget"
        )


async def run_rollout(context: RolloutContext, problem: Problem, prompt_ids: array[int], sample: int) -> Trajectory:
    """Run and score one trajectory, or mark it as lost. A rollout that a server loses is run again."""
    for tries in range(1, SERVER_TRIES + 1):
        trajectory = await _try_rollout(problem, prompt_ids, sample, context)
        if trajectory.lost_to != "server" or tries == SERVER_TRIES:
            break
        log.warning("rollout %d of %s: %s; it is run again", sample, problem.id, trajectory.error)
        await asyncio.sleep(Backoff().seconds(tries))
    return trajectory


def _new_trajectory(problem: Problem, prompt_ids: array[int], sample: int) -> Trajectory:
    return Trajectory(
        prompt_id=problem.id,
        sample=sample,
        prompt_ids=prompt_ids,
        gold=problem.answer,
        slice=problem.slice,
        hard=problem.hard,
    )


async def _try_rollout(problem: Problem, prompt_ids: array[int], sample: int, context: RolloutContext) -> Trajectory:
    trajectory = _new_trajectory(problem, prompt_ids, sample)
    try:
        if context.programs is not None:
            await _play_program(trajectory, problem, context, context.programs)
            return trajectory
        agent = await asyncio.to_thread(row_agent, context.agent, problem) if problem.has_own_tools else context.agent
        async with _remote_tools(agent, problem, sample, context) as remote:

            async def run_loop(generator: FailoverGenerator) -> str:
                async with _tool(agent, context.judge) as tool:
                    return await agent.run(trajectory, generate=generator, executor=tool, remote=remote)

            model_text = await _run_in_slot(trajectory, context, run_loop)
            episode = remote.episode
        if episode is not None and context.rewards.is_default:
            assert agent.tools.environment is not None
            correct_from = agent.tools.environment.spec.correct_from
            score_episode(trajectory, model_text, episode.reward, correct_from=correct_from)
            return trajectory
        # The engine slot is released: the next trajectory starts while this one is scored.
        await score_trajectory(
            trajectory,
            model_text,
            chat_format=agent.chat_format,
            judge=context.judge,
            problem=problem,
            rewards=context.rewards,
            files=agent.files,
        )
    except InfrastructureError as error:
        trajectory.mark_lost("engine", error)
    except JudgeUnavailable as error:
        trajectory.mark_lost("judge", error)
    except ServerLost as error:
        trajectory.mark_lost("server", error)
    return trajectory


async def _play_program(
    trajectory: Trajectory, problem: Problem, context: RolloutContext, programs: AgentPrograms
) -> None:
    """Run the agent's program, and score the trajectory by the reward that it posts.

    A sequence has as many tokens as the prompt of the row and the response of any other agent.
    """
    agent = context.agent

    async def run_program(generator: FailoverGenerator) -> tuple[str, float | None]:
        episode = AgentEpisode(
            Conversations(agent.chat_format, max_calls=agent.rollout.max_calls_per_turn),
            generator,
            sequence_tokens=len(trajectory.prompt_ids) + agent.sampling.max_response_tokens,
            max_turns=agent.sampling.max_turns,
            seconds=programs.spec.timeout_seconds,
        )
        model_text = await programs.play(trajectory, problem, episode, seed=_episode_seed(problem, context))
        return model_text, episode.reward

    async with programs.turn():
        model_text, reward = await _run_in_slot(trajectory, context, run_program)
    score_episode(trajectory, model_text, reward, correct_from=programs.spec.correct_from)


async def _run_in_slot(
    trajectory: Trajectory, context: RolloutContext, work: Callable[[FailoverGenerator], Awaitable[Result]]
) -> Result:
    """Run an agent in an engine slot; return its result."""
    tokens = len(trajectory.prompt_ids) + context.agent.sampling.max_response_tokens
    slot = context.pool.admission.request_slot(
        tokens=tokens, prompt_tokens=len(trajectory.prompt_ids), group=trajectory.prompt_id
    )
    finished: int | None = None
    try:
        seed = (*context.seed, trajectory.prompt_id, trajectory.sample)
        generator = FailoverGenerator(context, slot, seed)
        await generator.wait_for_engine()
        started = time.monotonic()
        trajectory.started_at = time.time()
        result = await work(generator)
        trajectory.seconds = time.monotonic() - started
        finished = len(trajectory.prompt_ids) + trajectory.response_tokens
        return result
    finally:
        slot.release(tokens=finished)


def _episode_seed(problem: Problem, context: RolloutContext) -> int:
    """Return the seed of the episodes of a group, which fits into 31 bits, as environments expect."""
    return derive_seed(*context.seed, problem.id) >> 32


def row_agent(agent: Agent, problem: Problem) -> Agent:
    """Return the agent loop of one row: the tools that it allows, and its files, which are read from disk here."""
    return replace(agent, row_tools=agent.tools.select(problem.tools, problem.functions), files=problem.read_files())


def _tool(agent: Agent, judge: JudgeClient) -> AbstractAsyncContextManager[ToolExecutor]:
    """Return the executor of one trajectory's calls: the judge itself, or a session of the judge."""
    return JupyterTool(judge) if agent.tools.has_notebook else nullcontext(judge)


def _remote_tools(agent: Agent, problem: Problem, sample: int, context: RolloutContext) -> RemoteTools:
    """Return the servers' tools of one trajectory. The seed of an episode is the same for the whole group."""
    if agent.tools.environment is None:
        return RemoteTools(agent.tools.servers)
    seed = _episode_seed(problem, context)
    name = f"{problem.id}/{sample}/{uuid.uuid4().hex[:8]}"
    rewards = context.rewards.is_default
    return RemoteTools(
        agent.tools.servers, EnvironmentEpisode(agent.tools.environment, problem, seed=seed, name=name, rewards=rewards)
    )
