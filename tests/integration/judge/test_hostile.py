"""Hostile snippets against a local sandbox: none gets anywhere, and the next call on the same sandbox is unharmed."""

import asyncio
import socket
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.judge.client.client import JudgeClient
from rstar2_train.judge.local import LocalJudge
from rstar2_train.judge.types import CallResult
from tests.support.hostile import HOSTILE, PROBE, PROBED, Hostile, baits


@pytest.fixture(scope="module")
def values(judge: LocalJudge, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What the attacks are tempted with: a secret on this machine, listeners on it."""
    secret = tmp_path_factory.mktemp("bait") / "secret"
    secret.write_text("s3cret")
    files = [str(secret), str(judge.folder), str(Path(__file__)), "/etc/shadow", "/root", "/home", "/var", "/usr"]
    with socket.socket() as listener:
        listener.bind(("0.0.0.0", 0))
        listener.listen()
        port = listener.getsockname()[1]
        own = socket.gethostbyname(socket.gethostname())
        ports = [("127.0.0.1", port), (own, port), ("127.0.0.1", judge.redis_port), ("127.0.0.1", judge.port)]
        yield baits(files, ports)


@pytest.fixture(scope="module")
def ready_again() -> Iterator[list[float]]:
    """Seconds from the end of an attack to the answer of the next call."""
    seconds: list[float] = []
    yield seconds
    print(
        f"\nready again after {len(seconds)} attacks: p50 {statistics.median(seconds):.3f} s, max {max(seconds):.2f} s"
    )


@pytest.mark.parametrize("attack", HOSTILE, ids=lambda attack: attack.name)
def test_attack(judge: LocalJudge, values: dict[str, str], ready_again: list[float], attack: Hostile) -> None:
    async def calls() -> tuple[CallResult, CallResult]:
        async with JudgeClient(judge.url) as client:
            if attack.before:
                await client.run(attack.before)
            result = await client.run(attack.program(values), limits=JudgeLimits(**attack.limits))
            began = time.perf_counter()
            probe = await client.run(PROBE)
            ready_again.append(time.perf_counter() - began)
            return result, probe

    result, probe = asyncio.run(calls())
    assert attack.problem(result.status, result.stdout, result.stderr) is None
    assert (probe.status, probe.stdout) == ("ok", PROBED)


IN_FLIGHT = """
import array, socket
for _ in range(12):
    a, b = socket.socketpair()
    for one in (a, b):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        one.setblocking(False)
    both = array.array('i', [a.fileno(), b.fileno()])
    a.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, both)])
    try:
        while True: a.send(bytes(65536))
    except BlockingIOError:
        pass
    a.close(); b.close()
"""


def test_what_calls_leave_in_gvisor_itself_is_given_back(judge: LocalJudge) -> None:
    """Sockets on their way through each other are nobody's, and gVisor never frees them: only a new sandbox does."""

    def recycled() -> int:
        return sum(worker["recycled"] for worker in judge.status()["workers"])

    async def leave_much() -> tuple[CallResult, CallResult]:
        async with JudgeClient(judge.url) as client:
            before, deadline = recycled(), time.monotonic() + 120
            while recycled() == before:
                assert time.monotonic() < deadline, "nothing was replaced"
                left = await client.run(IN_FLIGHT, limits=JudgeLimits(wall_seconds=20))
            return left, await client.run(PROBE)

    left, probe = asyncio.run(leave_much())
    assert left.status == "ok"
    assert (probe.status, probe.stdout) == ("ok", PROBED)
