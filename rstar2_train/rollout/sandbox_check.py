"""Checks, before the first rollout, that the sandbox has the job's packages and can import its functions.

    orchestrator.rollout_session, launch.evaluation.runner --> check_imports --> judge (imports each file)

Without this check a tool whose package is missing would be an error of the model in each of its calls, and a checker
would lose every rollout of a step.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.rewards.task_rewards import TaskRewards
from rstar2_train.rewards.verify import SnippetRunner
from rstar2_train.tools.sandbox_program import SourceError
from rstar2_train.tools.toolset import Toolset

IMPORT_SECONDS = 60
"""Time limit of one import: the first import of a large package is slow in gVisor."""
_VERSIONS = """import importlib.metadata, json, re
packages = importlib.metadata.distributions()
print(json.dumps({re.sub(r"[-_.]+", "-", package.name).lower(): package.version for package in packages}))
"""
"""Program that prints the version of each package of the sandbox."""


async def check_imports(
    tools: Toolset, rewards: TaskRewards, *, packages: Sequence[str] = (), judge: SnippetRunner
) -> None:
    """Raise SourceError unless the sandbox has all `packages` and can import all functions of users.

    `packages`: `spec.judge.packages`. The message names the missing packages, the tool or the reward, and the remedy.

    Raises the error of `judge.run` when the judge is unreachable.
    """
    missing = await _missing_packages(packages, judge)
    if missing:
        raise SourceError(
            f"spec.judge.packages: the judge's sandbox lacks {', '.join(missing)}. Build the image of spec.judge.image "
            f'with --build-arg SANDBOX_PACKAGES="{" ".join(packages)}" (images/README.md)'
        )
    for owner, program in _programs(tools, rewards):
        result = await judge.run(program, "", limits=JudgeLimits(wall_seconds=IMPORT_SECONDS))
        if result.status != "ok" and not result.stderr.startswith("FileNotFoundError"):  # a file of a row
            cause = result.stderr.strip()[-300:] or f"status {result.status}"
            raise SourceError(f"{owner}: its file cannot be imported in the sandbox: {cause}{_advice(cause)}")


async def _missing_packages(packages: Sequence[str], judge: SnippetRunner) -> list[str]:
    """Return the packages that the sandbox does not have, or has in another version than a `==` pin."""
    if not packages:
        return []
    result = await judge.run(_VERSIONS, "", limits=JudgeLimits(wall_seconds=IMPORT_SECONDS))
    versions = json.loads(result.stdout) if result.status == "ok" else {}
    missing = []
    for package in packages:
        name, pin, version = package.partition("==")
        existing = versions.get(_plain(re.split(r"[<>=!~]", name)[0]))
        if existing is None or (pin and not version.endswith("*") and existing != version):
            missing.append(package)
    return missing


def _plain(name: str) -> str:
    """Return the normalised name of a package."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _programs(tools: Toolset, rewards: TaskRewards) -> Iterator[tuple[str, str]]:
    """Yield each owner of a user's function and the program that imports it."""
    for tool in tools.tools:
        if tool.program:
            yield f"tool {tool.name}", tool.program
    for name, program in rewards.programs.items():
        yield f"reward {name}", program


def _advice(cause: str) -> str:
    return ". Add its package to spec.judge.packages" if "ModuleNotFoundError" in cause else ""
