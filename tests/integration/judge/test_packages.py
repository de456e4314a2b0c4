"""A job's packages in a real sandbox: imported before the first call; missing ones are refused with the remedy."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rstar2_train.api.contracts import StageFailed
from rstar2_train.judge.client.client import JudgeClient
from rstar2_train.judge.sandbox.packages import install
from rstar2_train.orchestrator.rollout_session import RolloutSession
from rstar2_train.rewards.task_rewards import TaskRewards
from rstar2_train.rollout.sandbox_check import check_imports
from rstar2_train.tools.sandbox_program import SourceError
from rstar2_train.tools.toolset import Toolset
from tests.integration.judge.conftest import require_sandbox
from tests.support.stage_attempt import create_attempt
from tests.support.unsupervised_judge import UnsupervisedJudge
from tests.support.wheels import use_only, write_wheel

LOADED = "import os\nPROCESS = os.getpid()\n"
NOTHING = Toolset(())


@pytest.fixture
async def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[JudgeClient]:
    """A client of a judge whose sandbox has the package `orbit_loaded`."""
    require_sandbox()
    use_only(tmp_path, monkeypatch)
    write_wheel(tmp_path, "orbit_loaded", "1.0", LOADED)
    packages = install(["orbit_loaded"], lock=tmp_path / "packages.lock", cache=tmp_path / "cache")
    with UnsupervisedJudge(tmp_path / "judge", executors=1, lanes=("bare", "packages"), packages=packages) as judge:
        async with JudgeClient(judge.url) as client:
            yield client


async def test_sandbox_imports_packages_before_calls(packaged: JudgeClient) -> None:
    """A call finds the package loaded by the interpreter that started it, and nothing else of the host's packages."""
    result = await packaged.run("import orbit_loaded, os\nprint(orbit_loaded.PROCESS == os.getpid())")
    assert (result.status, result.stdout) == ("ok", "False\n"), result.stderr
    assert (await packaged.run("import orbit_loaded, yaml")).status == "error"
    await check_imports(NOTHING, TaskRewards(), packages=["Orbit.Loaded==1.0", "numpy>=1"], judge=packaged)


async def test_check_imports_names_missing_packages(client: JudgeClient) -> None:
    """A sandbox without a package, or with another version, is refused; the message has the build argument."""
    with pytest.raises(SourceError, match=r'lacks scipy, numpy==0\.1\. .*SANDBOX_PACKAGES="scipy sympy numpy==0\.1"'):
        await check_imports(NOTHING, TaskRewards(), packages=["scipy", "sympy", "numpy==0.1"], judge=client)


async def test_stage_without_its_packages_fails(judge: UnsupervisedJudge, tmp_path: Path) -> None:
    """A stage whose judge lacks a package fails before its first rollout, and is not retried."""
    ctx = create_attempt(tmp_path, judge={"packages": ["scipy"]})
    ctx.endpoints = dataclasses.replace(ctx.endpoints, engines=("http://127.0.0.1:9",), judge=judge.url)
    chat_format: Any = SimpleNamespace(tools=NOTHING)
    async with RolloutSession(ctx, chat_format) as rollouts:
        with pytest.raises(StageFailed, match="sandbox lacks scipy") as caught:
            await rollouts._check_sandbox()
    assert (caught.value.reason, caught.value.retryable) == ("BadConfiguration", False)
