"""The rows of an agent: its pods and programs, and the CPU and memory that the pods request. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from rstar2_train.api.base import amount
from rstar2_train.api.issue import Issue
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.stages import Stage
from rstar2_train.capacity.rollout_processes import most_concurrent
from rstar2_train.plan.row import Row


def agent_rows(job: AgenticRLJob, stage: Stage) -> Iterator[Row]:
    """Yield the rows of a stage that samples; none without an agent, and no pods if it has no image."""
    agent = job.spec.agent
    if agent is None:
        return
    section = "Agent"
    if agent.image is not None:
        yield Row(section, "agentPods", "pods", "count", agent.replicas, "spec.agent.replicas")
        for name, key, label in (("cpu", "agentCpu", "CPUs"), ("memory", "agentMemory", "memory")):
            amount = _requested(job, name)
            yield Row(
                *(section, key, f"{label} that the pods request", "bytes" if name == "memory" else "count"),
                agent.replicas * amount,
                f"{agent.replicas} pods x {amount:g}: the runtimePatches with role agent",
            )
    yield Row(
        *(section, "agentPrograms", "programs at the same time", "count", agent.programs),
        f"spec.agent.maxConcurrentEpisodes {agent.max_concurrent_episodes} per pod; the engines admit "
        f"{most_concurrent(job, stage):,} trajectories",
    )


def too_few_programs(job: AgenticRLJob) -> list[Issue]:
    """Return a warning if engines wait for pods: the simulated rollouts do not wait."""
    agent = job.spec.agent
    most = max((most_concurrent(job, stage) for stage in job.spec.stages if stage.needs_engines), default=0)
    if agent is None or agent.programs >= most:
        return []
    message = f"{agent.programs:,} programs run at the same time, and the engines admit {most:,} trajectories"
    return [Issue("spec.agent.maxConcurrentEpisodes", message, agent.max_concurrent_episodes, warning=True)]


def _requested(job: AgenticRLJob, name: str) -> float:
    """Return how much of a resource each pod requests; a limit without a request is one."""
    for patch in job.spec.runtime_patches:
        if "agent" in patch.roles and patch.resources is not None:
            value = patch.resources.requests.get(name, patch.resources.limits.get(name))
            if value is not None:
                return float(amount(value))
    return 0.0
