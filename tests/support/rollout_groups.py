"""The groups of a set of problems as lists, for tests that need all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rstar2_train.data.problems import Problem
from rstar2_train.rollout.collector import collect_groups, tokenise_prompts
from rstar2_train.rollout.context import RolloutContext
from rstar2_train.rollout.trajectory import Trajectory


async def sample_groups(
    problems: Sequence[Problem],
    *,
    samples: int,
    context: RolloutContext,
    on_done: Callable[[Trajectory], None] = lambda _: None,
) -> list[list[Trajectory]]:
    """Return `samples` scored trajectories of each problem, in the order of `problems`."""
    groups: dict[str, list[Trajectory]] = {}
    await collect_groups(
        problems,
        samples=samples,
        prompts=await tokenise_prompts(problems, context.agent.chat_format),
        context=context,
        on_group=lambda group: groups.update({group[0].prompt_id: group}),
        on_done=on_done,
    )
    return [groups[problem.id] for problem in problems]
