"""Collects the rollouts of a step: every problem so many times, under one version of the weights, scored.

`collect` for a step of training, which needs whole groups; `ask` for a measurement, which keeps each sample elsewhere
as it ends. Admission (`inference/scheduler.py`) says which of the waiting trajectories run. What infrastructure lost is
marked as such and comes back with the rest: whoever reads it excludes it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass

from rstar2_train.api.roles import JudgeLimits, RolloutSpec
from rstar2_train.api.stages import Sampling
from rstar2_train.data.problems import Problem
from rstar2_train.grpo_roc.penalties import error_penalty, format_penalty
from rstar2_train.inference.pool import EnginePool
from rstar2_train.judge.types import JudgeUnavailable
from rstar2_train.rewards.extract import count_answers
from rstar2_train.rewards.grade import grade
from rstar2_train.rollout.agent import Agent, ToolExecutor
from rstar2_train.rollout.chat_format import ChatFormat
from rstar2_train.rollout.generation import FailoverGenerator, InfrastructureError
from rstar2_train.rollout.jupyter_tool import JupyterTool, SessionOpener
from rstar2_train.rollout.trajectory import Trajectory
from rstar2_train.tools.parser import JUPYTER

MAX_LOST_FRACTION = 0.25
"""Share of a batch's rollouts that infrastructure may lose; beyond it the rest says too little."""
AT_ONCE = 16384
"""Trajectories that run or wait for admission: a step of the paper's, and more than its engines run at a time."""


class PromptTooLong(ValueError):
    """A prompt with the whole budget is longer than any sequence that the engines take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutContext:
    """What all trajectories of one collection share."""

    pool: EnginePool
    """Its present version must sample all of it; pushing another one meanwhile loses what still runs."""
    judge: SessionOpener
    """Runs the tool calls and verifies answers; patient, and raises JudgeUnavailable when the judge stays away."""
    protocol: ChatFormat
    sampling: Sampling
    rollout: RolloutSpec
    limits: JudgeLimits
    seed: tuple[int | str, ...]
    """Names the collection, such as (job seed, stage, step); with prompt, sample and turn it seeds a request."""


async def collect(
    problems: Sequence[Problem],
    *,
    samples: int,
    sampler: RolloutContext,
    on_done: Callable[[Trajectory], None] | None = None,
) -> list[list[Trajectory]]:
    """`samples` trajectories of each problem, a list a problem in the order of `problems`, whose ids are distinct.

    `on_done`: called with each trajectory as it ends, scored. Raises as `ask` does.
    """
    rows: dict[tuple[str, int], Trajectory] = {}

    def take(trajectory: Trajectory) -> None:
        rows[trajectory.prompt_id, trajectory.sample] = trajectory
        if on_done is not None:
            on_done(trajectory)

    await ask(
        [(problem, sample) for problem in problems for sample in range(samples)],
        prompts={one.id: sampler.protocol.prompt_ids(one.problem, as_is=one.as_is) for one in problems},
        sampler=sampler,
        on_done=take,
    )
    return [[rows[problem.id, sample] for sample in range(samples)] for problem in problems]


async def ask(
    pairs: Sequence[tuple[Problem, int]],
    *,
    prompts: Mapping[str, list[int]],
    sampler: RolloutContext,
    on_done: Callable[[Trajectory], None],
) -> None:
    """One trajectory of each pair of problem and sample number, handed to `on_done` as it ends and not held here.

    `prompts`: token ids by problem id. Begun in the order of `pairs`. Raises EngineRejected when an engine refuses a
    request (a defect), PromptTooLong for a prompt that leaves an engine none, ValueError when no weights were pushed,
    and what `on_done` raises. Then, as when it is cancelled, every request is stopped.
    """
    if sampler.pool.version is None:
        raise ValueError("no weights were pushed to the engines: call pool.update_weights first")
    work = _Collection(
        agent=Agent(
            protocol=sampler.protocol, sampling=sampler.sampling, rollout=sampler.rollout, limits=sampler.limits
        ),
        pool=sampler.pool,
        version=sampler.pool.version,
        judge=sampler.judge,
        seed=sampler.seed,
    )
    for name in dict.fromkeys(problem.id for problem, _ in pairs):
        work.check_room(name, len(prompts[name]))
    left = iter(pairs)

    async def run_some() -> None:
        for problem, sample in left:
            on_done(await work.one(problem, prompts[problem.id], sample))

    tasks = [asyncio.create_task(run_some()) for _ in range(min(AT_ONCE, len(pairs)))]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class _Collection:
    """What all trajectories of one call share."""

    agent: Agent
    pool: EnginePool
    version: str
    judge: SessionOpener
    seed: tuple[int | str, ...]

    def check_room(self, prompt_id: str, prompt_tokens: int) -> None:
        """Raise NoRoom unless the prompt and the whole budget fit an engine's longest sequence."""
        budget = self.agent.sampling.max_response_tokens
        longest = self.pool.max_model_len
        if longest is not None and prompt_tokens + budget > longest:
            raise PromptTooLong(
                f"problem {prompt_id}: {prompt_tokens} prompt tokens and maxResponseTokens {budget} are more than the "
                f"engines' {longest}: raise max-model-len in rollout.engineArgs, or lower the budget"
            )

    async def one(self, problem: Problem, prompt_ids: list[int], sample: int) -> Trajectory:
        """One trajectory, run and scored, or marked as lost."""
        sampling = self.agent.sampling
        trajectory = Trajectory(
            prompt_id=problem.id,
            sample=sample,
            prompt_ids=prompt_ids,
            gold=problem.answer,
            slice=problem.slice,
            hard=problem.hard,
        )
        ticket = self.pool.admission.enter(tokens=len(prompt_ids) + sampling.max_response_tokens)
        try:
            seat = FailoverGenerator(
                pool=self.pool,
                ticket=ticket,
                sampling=sampling,
                version=self.version,
                stop_ids=self.agent.protocol.stop_ids,
                seed=(*self.seed, problem.id, sample),
            )
            await seat.wait()
            started = time.monotonic()
            trajectory.started_at = time.time()
            async with self._tool() as tool:
                written = await self.agent.run(trajectory, generate=seat, executor=tool)
            trajectory.seconds = time.monotonic() - started
        except (InfrastructureError, JudgeUnavailable) as error:
            _lose(trajectory, error)
        finally:
            ticket.leave()
        if not trajectory.failed:
            await self._score(trajectory, written)
        return trajectory

    def _tool(self) -> AbstractAsyncContextManager[ToolExecutor]:
        """What runs a trajectory's calls: the judge itself, or a session of its own."""
        return JupyterTool(self.judge) if self.agent.rollout.tool == JUPYTER else nullcontext(self.judge)

    async def _score(self, trajectory: Trajectory, written: str) -> None:
        """Counts, verdict and penalties. A trajectory that a limit cut off has not answered (reward 0)."""
        trajectory.answer_tags, trajectory.tags_balanced = count_answers(written)
        trajectory.p_err = error_penalty(calls=len(trajectory.calls), errors=trajectory.call_errors)
        trajectory.p_format = format_penalty(
            answers=trajectory.answer_tags, turns=trajectory.turns, balanced=trajectory.tags_balanced
        )
        if trajectory.truncated:
            return
        last_turn = self.agent.protocol.model_text(trajectory.segments[-1].token_ids)
        try:
            score = await grade(written, last_turn, trajectory.gold, judge=self.judge)
        except JudgeUnavailable as error:
            _lose(trajectory, error)
            return
        assert score.verdict is not None
        trajectory.verdict, trajectory.answer, trajectory.reward = score.verdict, score.answer, score.reward


def _lose(trajectory: Trajectory, error: InfrastructureError | JudgeUnavailable) -> None:
    """Mark a trajectory as lost, and to what."""
    role = "judge" if isinstance(error, JudgeUnavailable) else "engine"
    trajectory.stop, trajectory.verdict, trajectory.error = "infrastructure", "internal", f"{role}: {error}"
