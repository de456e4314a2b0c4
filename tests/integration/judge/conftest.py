"""Fixtures: a real judge with Redis, API, worker and gVisor sandboxes on free ports, and clients of it."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.judge.client.client import JudgeClient
from rstar2_train.judge.client.session import JudgeSession
from rstar2_train.judge.sandbox.oci_bundle import find_runsc
from rstar2_train.judge.sandbox.rootfs import SetupError
from rstar2_train.judge.types import CallResult
from tests.support.unsupervised_judge import UnsupervisedJudge


def require_sandbox() -> None:
    """Skip the test, with the reason, if no sandbox can be started here."""
    try:
        find_runsc()
    except SetupError as error:
        pytest.skip(str(error))
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed")


class PatientClient(JudgeClient):
    """A client whose calls and cells have the time that a loaded or paused machine needs, unless a test sets it."""

    async def run(
        self, code: str, stdin: str = "", *, limits: JudgeLimits | None = None, script: bool = False
    ) -> CallResult:
        """Run one snippet."""
        return await super().run(code, stdin, limits=patient(limits), script=script)

    def session(self) -> JudgeSession:
        """Return a new session."""
        return PatientSession(self._http, self._routes, cells=self._cells, patience_seconds=self._patience)


class PatientSession(JudgeSession):
    """A session of a PatientClient."""

    async def run(self, code: str, *, limits: JudgeLimits | None = None) -> CallResult:
        """Run a cell."""
        return await super().run(code, limits=patient(limits))


def patient(limits: JudgeLimits | None) -> JudgeLimits:
    """Return limits with a minute of time, unless they set the time."""
    limits = limits or JudgeLimits()
    return limits if "wall_seconds" in limits.model_fields_set else limits.model_copy(update={"wall_seconds": 60.0})


@pytest.fixture(scope="session")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UnsupervisedJudge]:
    """A judge with one sandbox, shared by the tests that do not stop its processes."""
    require_sandbox()
    with UnsupervisedJudge(tmp_path_factory.mktemp("judge"), executors=1) as judge:
        yield judge


@pytest.fixture(scope="module")
def _module_judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UnsupervisedJudge]:
    require_sandbox()
    with UnsupervisedJudge(tmp_path_factory.mktemp("own"), executors=1, lanes=("bare",)) as judge:
        yield judge


@pytest.fixture
def own_judge(_module_judge: UnsupervisedJudge) -> UnsupervisedJudge:
    """A judge whose processes the tests of a module may kill; missing ones are started before the next test."""
    judge = _module_judge
    for name, start in (("redis", judge.start_redis), ("api", judge.start_api)):
        if name not in judge.processes:
            start()
    if not any(name.startswith("worker") for name in judge.processes):
        judge.start_worker()
    judge.wait_ready()
    return judge


@pytest.fixture
async def client(judge: UnsupervisedJudge) -> AsyncIterator[JudgeClient]:
    """A client of the shared judge."""
    async with PatientClient(judge.url) as client:
        yield client


@pytest.fixture
def run(judge: UnsupervisedJudge) -> Callable[..., CallResult]:
    """A function that runs one snippet, for tests that are not async."""

    def run_snippet(code: str, stdin: str = "", **limits: float) -> CallResult:
        async def call() -> CallResult:
            async with PatientClient(judge.url) as client:
                return await client.run(code, stdin, limits=JudgeLimits(**limits))

        return asyncio.run(call())

    return run_snippet
