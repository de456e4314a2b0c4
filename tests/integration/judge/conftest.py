"""A real judge for these tests: Redis, API, worker and gVisor sandboxes on free ports, stopped at the end."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.judge.client.client import JudgeClient
from rstar2_train.judge.local import LocalJudge
from rstar2_train.judge.sandbox.oci_bundle import find_runsc
from rstar2_train.judge.sandbox.rootfs import SetupError
from rstar2_train.judge.types import CallResult


def require_sandbox() -> None:
    """Skips, with the reason, where no sandbox can be had."""
    try:
        find_runsc()
    except SetupError as error:
        pytest.skip(str(error))
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed")


@pytest.fixture(scope="session")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalJudge]:
    """A judge with one sandbox, shared by the tests that do not break it."""
    require_sandbox()
    with LocalJudge(tmp_path_factory.mktemp("judge"), executors=1) as stack:
        yield stack


@pytest.fixture(scope="module")
def _breakable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalJudge]:
    require_sandbox()
    with LocalJudge(tmp_path_factory.mktemp("own"), executors=1, lanes=("bare",)) as stack:
        yield stack


@pytest.fixture
def own_judge(_breakable: LocalJudge) -> LocalJudge:
    """A judge whose parts the tests of a module may kill; all parts run again when the next test begins."""
    stack = _breakable
    for name, start in (("redis", stack.start_redis), ("api", stack.start_api)):
        if name not in stack.processes:
            start()
    if not any(name.startswith("worker") for name in stack.processes):
        stack.start_worker()
    stack.wait_ready()
    return stack


@pytest.fixture
async def client(judge: LocalJudge) -> AsyncIterator[JudgeClient]:
    """A client of the shared judge."""
    async with JudgeClient(judge.url) as one:
        yield one


@pytest.fixture
def run(judge: LocalJudge) -> Callable[..., CallResult]:
    """Runs one snippet, from a test that is not async."""

    def run_one(code: str, stdin: str = "", **limits: float) -> CallResult:
        async def call() -> CallResult:
            async with JudgeClient(judge.url) as one:
                return await one.run(code, stdin, limits=JudgeLimits(**limits) if limits else None)

        return asyncio.run(call())

    return run_one
