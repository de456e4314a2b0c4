"""Checks, before the first rollout, that the sandbox can import the job's functions.

    orchestrator.rollout_session, launch.evaluation.runner --> check_imports --> judge (imports each file)

Without this check a tool whose package is missing would be an error of the model in each of its calls, and a checker
would lose every rollout of a step.
"""

from __future__ import annotations

from collections.abc import Iterator

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.rewards.task_rewards import TaskRewards
from rstar2_train.rewards.verify import SnippetRunner
from rstar2_train.tools.sandbox_program import SourceError
from rstar2_train.tools.toolset import Toolset

IMPORT_SECONDS = 60
"""Time limit of one import: the first import of a large package is slow in gVisor."""


async def check_imports(tools: Toolset, rewards: TaskRewards, *, judge: SnippetRunner) -> None:
    """Raise SourceError, which names the tool or reward, unless the sandbox can import all functions of users.

    Raises the error of `judge.run` when the judge is unreachable.
    """
    for owner, program in _programs(tools, rewards):
        result = await judge.run(program, "", limits=JudgeLimits(wall_seconds=IMPORT_SECONDS))
        if result.status != "ok" and not result.stderr.startswith("FileNotFoundError"):  # a file of a row
            cause = result.stderr.strip()[-300:] or f"status {result.status}"
            raise SourceError(f"{owner}: its file cannot be imported in the sandbox: {cause}{_advice(cause)}")


def _programs(tools: Toolset, rewards: TaskRewards) -> Iterator[tuple[str, str]]:
    """Yield each owner of a user's function and the program that imports it."""
    for tool in tools.tools:
        if tool.program:
            yield f"tool {tool.name}", tool.program
    for name, program in rewards.programs.items():
        yield f"reward {name}", program


def _advice(cause: str) -> str:
    return ". The sandbox has the standard library, NumPy and SymPy" if "ModuleNotFoundError" in cause else ""
