"""The shared inputs of a set of rollouts: agent settings, engines, judge and seed.

Created once per set by the orchestrator's rollout session or by `rstar2 eval`, and passed to the collector and to the
generation of each turn.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rstar2_train.inference.pool import EnginePool
from rstar2_train.judge.client.client import JudgeClient
from rstar2_train.rewards.task_rewards import TaskRewards
from rstar2_train.rollout.agent import Agent
from rstar2_train.rollout.agent_program.program import AgentPrograms


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutContext:
    """The inputs that all rollouts of one set share. Raises ValueError if the pool has no weights yet."""

    agent: Agent
    pool: EnginePool
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
    version: str = field(init=False)
    """Oldest weight version that may sample: the pool's version at creation."""

    def __post_init__(self) -> None:
        if self.pool.version is None:
            raise ValueError("the engines have no weights yet: call pool.update_weights first")
        object.__setattr__(self, "version", self.pool.version)

    def accepts(self, version: str) -> bool:
        """Return whether tokens of a weight version belong to this set."""
        if not self.later_versions:
            return version == self.version
        number, oldest = self.pool.push_number(version), self.pool.push_number(self.version)
        return number is not None and oldest is not None and number >= oldest
