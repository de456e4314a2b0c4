"""Hostile snippets in a local sandbox: each is contained, and the next call in the same sandbox is unharmed."""

import asyncio
import socket
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.judge.client.client import JudgeClient
from rstar2_train.judge.types import CallResult
from tests.support.hostile import CLEAN, HOSTILE, PROBE, Hostile, targets
from tests.support.unsupervised_judge import UnsupervisedJudge

PATIENT = JudgeLimits(wall_seconds=60)


@pytest.fixture(scope="module")
def values(judge: UnsupervisedJudge, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Targets of the attacks: files of this machine with a secret, and listeners on it."""
    secret = tmp_path_factory.mktemp("targets") / "secret"
    secret.write_text("s3cret")
    files = [str(secret), str(judge.folder), str(Path(__file__)), "/etc/shadow", "/root", "/home", "/var", "/usr"]
    with socket.socket() as listener:
        listener.bind(("0.0.0.0", 0))
        listener.listen()
        port = listener.getsockname()[1]
        own = socket.gethostbyname(socket.gethostname())
        ports = [("127.0.0.1", port), (own, port), ("127.0.0.1", judge.redis_port), ("127.0.0.1", judge.port)]
        yield targets(files, ports)


@pytest.fixture(scope="module")
def recovery_seconds() -> Iterator[list[float]]:
    """Seconds from the end of each attack to the result of the next call, printed at the end."""
    seconds: list[float] = []
    yield seconds
    print(f"\nrecovery from {len(seconds)} attacks: p50 {statistics.median(seconds):.3f} s, max {max(seconds):.2f} s")


@pytest.mark.parametrize("attack", HOSTILE, ids=lambda attack: attack.name)
def test_hostile_snippet_is_contained(
    judge: UnsupervisedJudge, values: dict[str, str], recovery_seconds: list[float], attack: Hostile
) -> None:
    """The snippet reaches no target and ends as allowed, and the next call finds a clean sandbox."""

    async def calls() -> tuple[CallResult, CallResult]:
        async with JudgeClient(judge.url) as client:
            if attack.before:
                await client.run(attack.before, limits=PATIENT)
            result = await client.run(attack.program(values), limits=JudgeLimits(**attack.limits))
            start = time.perf_counter()
            probe = await client.run(PROBE, limits=PATIENT)
            recovery_seconds.append(time.perf_counter() - start)
            return result, probe

    result, probe = asyncio.run(calls())
    assert attack.problem(result.status, result.stdout, result.stderr) is None
    assert (probe.status, probe.stdout) == ("ok", CLEAN)
