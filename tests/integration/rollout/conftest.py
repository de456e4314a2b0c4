"""The engine of the test session, and a judge, for the tests of this package."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from rstar2_train.inference.client import EngineClient
from rstar2_train.inference.pool import EnginePool, PoolTimes
from rstar2_train.judge.client.client import JudgeClient
from tests.support.engine import Engine
from tests.support.engine_fixtures import engine, engine_chat_format, models
from tests.support.unsupervised_judge import UnsupervisedJudge

__all__ = ["engine", "engine_chat_format", "models"]

TIMES = PoolTimes(patience=300, load=60, straggler=2, check_interval=0.5, retry_interval=0.5)
"""Long timeouts for a busy machine, short intervals."""


@pytest.fixture
async def pool(engine: Engine) -> AsyncIterator[EnginePool]:
    """A pool of the engine."""
    async with EnginePool([engine.url], token=engine.token, times=TIMES) as pool:
        yield pool


@pytest.fixture
async def client(pool: EnginePool, engine: Engine) -> EngineClient:
    """The client of the engine."""
    return pool.client(engine.url)


@pytest.fixture(scope="module")
def judge_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UnsupervisedJudge]:
    """A real judge. Here it runs harmless calls without isolation; the sandbox has its own tests."""
    with UnsupervisedJudge(Path(tmp_path_factory.mktemp("judge")), isolation="none") as stack:
        yield stack


@pytest.fixture
async def judge(judge_stack: UnsupervisedJudge) -> AsyncIterator[JudgeClient]:
    """A client of the judge."""
    async with JudgeClient(judge_stack.url, patience_seconds=120) as judge:
        yield judge
