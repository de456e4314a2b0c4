"""Executor pods over TCP: each in a real gVisor sandbox, used by a real worker, API and Redis."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.judge.client.client import JudgeClient
from rstar2_train.judge.process_exit import to_result
from rstar2_train.judge.sandbox import wire
from rstar2_train.judge.sandbox.base import ForbiddenTargets, IsolationCheckFailed, SandboxBusy, SandboxError
from rstar2_train.judge.sandbox.remote import RemoteSandbox
from rstar2_train.judge.types import QueuedCall
from rstar2_train.judge.worker.isolation_check import IsolationCheck
from rstar2_train.utils.ports import free_ports
from tests.integration.judge.conftest import require_sandbox
from tests.support.executor_pod import ExecutorPod, write_keys
from tests.support.unsupervised_judge import UnsupervisedJudge
from tests.support.waiting import until_async

HOST = "127.0.0.1"
SLOW = JudgeLimits(wall_seconds=60)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("executors")


@pytest.fixture(scope="module")
def keys(folder: Path) -> tuple[Path, Path]:
    return write_keys(folder)


@pytest.fixture(scope="module")
def pod(folder: Path, keys: tuple[Path, Path]) -> Iterator[ExecutorPod]:
    """An executor. A test that stops it starts it again."""
    require_sandbox()
    pod = ExecutorPod(folder / "pod", host=HOST, port=free_ports(1)[0], public_key=keys[1], lanes=("bare",))
    try:
        pod.start()
        yield pod
    finally:
        pod.kill()


@pytest.fixture
def sandbox(pod: ExecutorPod, keys: tuple[Path, Path]) -> Callable[[], RemoteSandbox]:
    """A function that returns a new connection to the executor."""
    return lambda: RemoteSandbox(pod.address, ("bare",), key=wire.read_private_key(keys[0]), isolated=True)


@pytest.fixture
async def remote_judge(pod: ExecutorPod, keys: tuple[Path, Path], tmp_path: Path) -> AsyncIterator[UnsupervisedJudge]:
    """A judge whose only sandbox is the executor."""
    with UnsupervisedJudge(tmp_path, lanes=("bare",), executors_at=pod.address, key_file=keys[0]) as judge:
        judge.wait_ready()
        yield judge


def call(code: str, limits: JudgeLimits = SLOW) -> QueuedCall:
    return QueuedCall(id="1", reply_to="", code=code, stdin="", limits=limits, deadline=0)


async def test_executor_statuses_equal_those_of_local_sandbox(remote_judge: UnsupervisedJudge) -> None:
    """A call in an executor gets the same status as in a local sandbox, and its memory is watched."""
    cases = {
        "print(6 * 7)": "ok",
        "import sys\nsys.exit(3)": "error",
        "while True: pass": "timeout",
        "print('x' * 70000)": "output_limit",
        "bytearray(10**9)": "memory",
    }
    limits = JudgeLimits(wall_seconds=10, memory_mib=128)
    async with JudgeClient(remote_judge.url) as client:
        results = await asyncio.gather(*(client.run(code, limits=limits) for code in cases))
        assert [result.status for result in results] == list(cases.values())
        assert results[0].stdout == "42\n"
        together = (
            "import os, time\nfor _ in range(8):\n    if os.fork() == 0:\n"
            "        x = bytearray(100 << 20)\n        time.sleep(30)\ntime.sleep(30)"
        )
        assert (await client.run(together, limits=JudgeLimits(wall_seconds=60, memory_mib=128))).status == "memory"
        assert (await client.run("print(1)", limits=SLOW)).status == "ok"
    worker = remote_judge.report()
    assert (worker["executors"], worker["isolation"]) == (1, "gvisor")


async def test_executor_lost_calls_are_run_again(remote_judge: UnsupervisedJudge, pod: ExecutorPod) -> None:
    """Calls in an executor that is killed run again after its restart."""
    async with JudgeClient(remote_judge.url, patience_seconds=300) as client:
        code = "import time\ntime.sleep(0.3)\nprint({0} * {0})"
        calls = [asyncio.create_task(client.run(code.format(n), limits=SLOW)) for n in range(24)]
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        pod.kill()
        await asyncio.to_thread(pod.start)
        results = await asyncio.gather(*calls)
        assert [(result.status, result.stdout) for result in results] == [("ok", f"{n * n}\n") for n in range(24)]
        await asyncio.to_thread(remote_judge.wait_ready)


async def test_executor_serves_one_worker_at_a_time(sandbox: Callable[[], RemoteSandbox]) -> None:
    """A second worker is rejected, and nothing of the first one's calls is left for the next worker."""
    first, second = sandbox(), sandbox()
    await first.start()
    with pytest.raises(SandboxBusy, match="serves another worker"):
        await second.start()
    await second.stop()
    running = first.lanes["bare"].submit(call("import time\nopen('/tmp/mine', 'w').write('x')\ntime.sleep(60)"))
    await asyncio.sleep(1)
    await first.stop()
    with pytest.raises(SandboxError, match="ended during the call"):
        await running
    third = sandbox()
    async with asyncio.timeout(300):
        while True:
            try:
                await third.start()
                break
            except SandboxBusy:  # it is still killing the processes of the first one
                await third.stop()
                third = sandbox()
                await asyncio.sleep(0.1)
    probe = "import os\nprint([p for p in os.listdir('/proc') if p.isdigit()], os.listdir('/tmp'))"
    result = to_result(await third.lanes["bare"].submit(call(probe)))
    assert result.stdout == "['1'] []\n"
    await third.stop()


async def test_executor_rejects_unauthenticated_peers(pod: ExecutorPod, tmp_path: Path) -> None:
    """A peer without the workers' key, or with garbage, is rejected; probes are not logged."""
    for _ in range(3):  # as the kubelet's readiness probe
        socket.create_connection((HOST, pod.port), 5).close()
    other, _ = write_keys(tmp_path)
    stranger = RemoteSandbox(pod.address, ("bare",), key=wire.read_private_key(other), isolated=True)
    with pytest.raises(SandboxError, match="Cannot use the executor at"):
        await stranger.start()
    await stranger.stop()
    await until_async(lambda: "invalid worker signature" in pod.log.read_text(), "the rejection is logged")
    for garbage in (b"\x00" * 100, b"\xff" * 4096, wire.control(signature="zz"), wire.control(signature="00" * 64)):
        reader, writer = await asyncio.open_connection(HOST, pod.port)
        writer.write(garbage)
        async with asyncio.timeout(300):
            response = await reader.read()
        assert b"yours" not in response
        writer.close()


async def test_executor_exits_after_failed_isolation_check(
    pod: ExecutorPod, sandbox: Callable[[], RemoteSandbox], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that finds a leak makes the executor exit with status 70, so that its pod restarts."""
    leaky = sandbox()
    await leaky.start()
    with IsolationCheck(tmp_path) as isolation_check:
        await isolation_check.check(leaky, "bare")
        assert leaky.forbidden is not None
        visible = ForbiddenTargets(("/opt/executor/program.py",), leaky.forbidden.addresses)
        monkeypatch.setattr(leaky, "forbidden", visible)
        with pytest.raises(IsolationCheckFailed, match=r"host file.*visible"):
            await isolation_check.check(leaky, "bare")
    await leaky.stop(failed_check=True)
    assert await asyncio.to_thread(pod.wait) == 70
    await asyncio.to_thread(pod.start)


def test_executor_outside_gvisor_is_refused(keys: tuple[Path, Path]) -> None:
    """An executor outside gVisor exits with the field to set."""
    command = [sys.executable, "-m", "rstar2_train.judge", "executor", "--worker-key-file", str(keys[1])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=dict(os.environ))
    assert done.returncode == 78
    assert "not inside gVisor" in done.stderr and "runtimeClassName" in done.stderr
