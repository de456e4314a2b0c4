"""The shared inputs of a set of rollouts: agent settings, engines, judge and seed.

Created once per set by the orchestrator's rollout session or by `rstar2 env check`, and passed to the collector and to
the generation of each turn. A rollout worker makes its own from `SetSettings`: its engines are a link to the
orchestrator's pool.
"""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.api.roles import RolloutSpec
from rstar2_train.api.stages import Sampling
from rstar2_train.data.problems import Problem
from rstar2_train.inference.admission import SlotQueue
from rstar2_train.inference.engine_protocols import TurnClient
from rstar2_train.judge.client.client import JudgeClient
from rstar2_train.rewards.task_rewards import TaskRewards
from rstar2_train.rollout.agent import Agent
from rstar2_train.rollout.agent_program.programs import AgentPrograms
from rstar2_train.rollout.chat_format import ChatFormat
from rstar2_train.rollout.trajectory import Trajectory


class Engines(Protocol):
    """The engines as rollouts use them: an `EnginePool`, or in a rollout worker a `RemotePool`."""

    @property
    def version(self) -> str | None:
        """Weight version that an engine must have to serve; None before the first push."""

    @property
    def max_model_len(self) -> int | None:
        """Tokens of the longest sequence that every engine can take; None if unknown."""

    @property
    def admission(self) -> SlotQueue:
        """Assigns engines to trajectories."""

    def push_number(self, version: str) -> int | None:
        """Return the number of the last push of a version, from 1; None for a version that was never pushed."""

    def client(self, url: str) -> TurnClient:
        """Return the client of an engine. Raises EngineUnavailable if the engine has left the pool."""

    def mark_failed(self, url: str, error: Exception) -> None:
        """Take an engine out of use after a failed request, until it is checked."""


RunRollout = Callable[[Problem, "array[int]", int], Awaitable[Trajectory]]
"""Runs and scores one rollout, or marks it as lost; called with the problem, its prompt's tokens and the sample."""


class Workers(Protocol):
    """Further processes that run rollouts."""

    def serve(self, context: RolloutContext) -> AbstractContextManager[RunRollout]:
        """Return the function that runs the rollouts of a set; on exit those that are unfinished stop."""


class SetSettings(NamedTuple):
    """The part of a context that a rollout worker receives; it has the chat format, and clients of its own."""

    sampling: Sampling
    rollout: RolloutSpec
    limits: JudgeLimits
    rewards: TaskRewards
    seed: tuple[int | str, ...]
    later_versions: bool
    version: str
    records_experts: bool = False

    def context(self, chat_format: ChatFormat, *, pool: Engines, judge: JudgeClient) -> RolloutContext:
        """Return the context of a worker."""
        return RolloutContext(
            agent=Agent(chat_format, self.sampling, self.rollout, self.limits),
            pool=pool,
            judge=judge,
            rewards=self.rewards,
            seed=self.seed,
            later_versions=self.later_versions,
            version=self.version,
            records_experts=self.records_experts,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutContext:
    """The inputs that all rollouts of one set share. Raises ValueError if the pool has no weights yet."""

    agent: Agent
    pool: Engines
    judge: JudgeClient
    """Executes the tool calls and verifies answers; retries, then raises JudgeUnavailable."""
    seed: tuple[int | str, ...]
    """Name of the set, such as (job seed, step). With prompt, sample and turn it seeds each request."""
    rewards: TaskRewards = field(default_factory=TaskRewards)
    """The job's rewards; default: mathematics."""
    programs: AgentPrograms | None = None
    """Programs that play the rollouts in place of the agent loop (`spec.agent`)."""
    later_versions: bool = False
    """Whether versions that are pushed later may sample as well. If not, a later push loses unfinished rollouts."""
    workers: Workers | None = None
    """Processes that run the rollouts; None: this one."""
    records_experts: bool = False
    """Whether the engines report the experts of a mixture for each token, which the trainer replays."""
    version: str = ""
    """Oldest weight version that may sample; default: the pool's version at creation."""

    def __post_init__(self) -> None:
        if self.version:
            return
        if self.pool.version is None:
            raise ValueError("the engines have no weights yet: call pool.push first")
        object.__setattr__(self, "version", self.pool.version)

    @property
    def settings(self) -> SetSettings:
        """The settings of the set, for a rollout worker."""
        agent = self.agent
        return SetSettings(
            agent.sampling,
            agent.rollout,
            agent.limits,
            self.rewards,
            self.seed,
            self.later_versions,
            self.version,
            self.records_experts,
        )

    def accepts(self, version: str) -> bool:
        """Return whether tokens of a weight version belong to this set."""
        if not self.later_versions:
            return version == self.version
        number, oldest = self.pool.push_number(version), self.pool.push_number(self.version)
        return number is not None and oldest is not None and number >= oldest
