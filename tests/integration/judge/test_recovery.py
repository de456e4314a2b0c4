"""Recovery from killed processes, a failing Redis and a full queue: every call is answered once and correctly."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from bench.judge_soak import soak
from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.judge.client.client import JudgeClient
from rstar2_train.judge.loadgen import SNIPPETS, measure_load
from rstar2_train.judge.queue import GROUP, Consumer, QueueKeys, connect
from rstar2_train.judge.types import CallResult, JudgeUnavailable
from rstar2_train.judge.worker.worker import CRASHED
from tests.integration.judge.conftest import PatientClient
from tests.support.hostile import HOSTILE
from tests.support.unsupervised_judge import UnsupervisedJudge
from tests.support.waiting import until_async

SLOW = JudgeLimits(wall_seconds=60)


def slow_square(n: int) -> str:
    """Return a program that takes long enough for a kill to hit many of them."""
    return f"import time\ntime.sleep(0.1)\nprint({n} * {n})"


def assert_squares(results: list[CallResult]) -> None:
    assert [result.status for result in results] == ["ok"] * len(results)
    assert [result.stdout for result in results] == [f"{n * n}\n" for n in range(len(results))]


async def start_calls(client: JudgeClient, count: int) -> list[asyncio.Task[CallResult]]:
    """Start calls and return when the first is answered."""
    calls = [asyncio.create_task(client.run(slow_square(n), limits=SLOW)) for n in range(count)]
    await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    return calls


def children(pid: int) -> list[int]:
    """Return the process ids of all descendants."""
    descendants = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the process has ended
            for child in map(int, path.read_text().split()):
                descendants += [child, *children(child)]
    return descendants


def is_sandbox(pid: int) -> bool:
    """Return whether a process of gVisor has this id."""
    try:
        return b"runsc" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def kill_sandboxes(judge: UnsupervisedJudge) -> None:
    """Kill every sandbox, as a crash of gVisor does."""
    for pid in children(judge.processes["worker"].pid):
        with contextlib.suppress(ProcessLookupError):  # it ended with its parent
            os.kill(pid, signal.SIGKILL)


def connect_as(judge: UnsupervisedJudge) -> AsyncRedis:
    """Return a Redis client with the judge's password."""
    return AsyncRedis.from_url(judge.redis_url, password=judge.password, protocol=2)


async def recycled(judge: UnsupervisedJudge, client: JudgeClient) -> int:
    """Return how many sandboxes the only worker has replaced, from a report that it sends after a call."""

    before = judge.report()
    await client.run("1", limits=SLOW)
    await until_async(lambda: judge.report()["calls"] != before["calls"], "the worker reports the call")
    return int(judge.report()["recycled"])


def test_sandbox_runs_on_one_core(own_judge: UnsupervisedJudge) -> None:
    """All processes of a sandbox are bound to the same core."""
    # Its first process starts all others, which inherit the CPU affinity.
    sandboxes = []
    for pid in children(own_judge.processes["worker"].pid):
        with contextlib.suppress(ProcessLookupError):
            sandboxes.append(os.sched_getaffinity(pid))
    assert sandboxes
    assert all(len(cores) == 1 for cores in sandboxes)


async def test_worker_killed_mid_call(own_judge: UnsupervisedJudge) -> None:
    """Calls of a killed worker run again in the next one, and its sandboxes are gone."""
    async with JudgeClient(own_judge.url) as client:
        calls = await start_calls(client, 12)
        descendants = children(own_judge.processes["worker"].pid)
        own_judge.kill("worker")
        own_judge.start_worker()
        assert_squares(await asyncio.gather(*calls))
    await until_async(lambda: not any(map(is_sandbox, descendants)), "its sandboxes die with it")


async def test_redis_killed_and_restarted(own_judge: UnsupervisedJudge) -> None:
    """Calls before and during an outage of Redis are answered."""
    async with JudgeClient(own_judge.url) as client:
        calls = await start_calls(client, 20)
        own_judge.kill("redis")
        more = [asyncio.create_task(client.run(slow_square(n), limits=SLOW)) for n in range(3)]
        await asyncio.sleep(0.5)
        own_judge.start_redis()
        assert_squares(await asyncio.gather(*calls))
        assert_squares(await asyncio.gather(*more))


async def test_redis_restarted_empty(own_judge: UnsupervisedJudge) -> None:
    """Calls that Redis lost are submitted again."""
    async with JudgeClient(own_judge.url) as client:
        before = own_judge.status()["resubmitted"]
        with own_judge.paused("worker"):
            calls = [asyncio.create_task(client.run(slow_square(n), limits=SLOW)) for n in range(20)]
            await until_async(lambda: own_judge.status()["queued"] == 20, "Redis has the calls")
            own_judge.kill("redis")
            for file in (own_judge.folder / "redis" / "appendonlydir").iterdir():
                file.unlink()
            own_judge.start_redis()
        assert_squares(await asyncio.gather(*calls))
    assert own_judge.status()["resubmitted"] > before


async def test_redis_full(own_judge: UnsupervisedJudge) -> None:
    """Calls wait until Redis accepts writes; sessions are rejected with 503 meanwhile."""
    redis = Redis.from_url(own_judge.redis_url, password=own_judge.password)
    async with JudgeClient(own_judge.url) as client:
        calls = await start_calls(client, 20)
        redis.config_set("maxmemory", "1")  # Redis rejects every write
        more = [asyncio.create_task(client.run(slow_square(n), limits=SLOW)) for n in range(3)]
        await asyncio.sleep(2)
        assert not any(call.done() for call in more)
        rejected = httpx.post(f"{own_judge.url}/v1/sessions", trust_env=False, timeout=30)
        assert rejected.status_code == 503 and "Redis is full" in rejected.text
        redis.config_set("maxmemory", "0")
        assert_squares(await asyncio.gather(*calls))
        assert_squares(await asyncio.gather(*more))


async def test_redis_failover(own_judge: UnsupervisedJudge) -> None:
    """Redis becomes the replica of an unreachable master, then a master again: blocking reads end with an error."""
    redis = Redis.from_url(own_judge.redis_url, password=own_judge.password)
    worker = own_judge.processes["worker"]
    async with JudgeClient(own_judge.url) as client:
        calls = await start_calls(client, 20)
        redis.replicaof("127.0.0.1", "1")
        more = [asyncio.create_task(client.run(slow_square(n), limits=SLOW)) for n in range(3)]
        await asyncio.sleep(2)
        assert not any(call.done() for call in more)
        redis.replicaof("NO", "ONE")
        assert_squares(await asyncio.gather(*calls))
        assert_squares(await asyncio.gather(*more))
    assert worker.poll() is None


async def test_redis_connections_start_without_errors(
    judge: UnsupervisedJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of a command at the start of a connection could be mistaken for the reply to the next command."""
    monkeypatch.setenv("RSTAR2_REDIS_PASSWORD", judge.password)
    redis = connect(judge.redis_url)
    try:
        before = await redis.info("errorstats")
        await redis.connection_pool.disconnect()
        assert await redis.info("errorstats") == before
    finally:
        await redis.aclose()


async def test_api_serves_a_thousand_callers(own_judge: UnsupervisedJudge) -> None:
    """Each has its own connection: none is rejected, and every result is correct (`measure_load` checks each)."""
    load = await measure_load(own_judge.url, SNIPPETS["print"], callers=1024, calls=1024)
    assert load.refused == 0


async def test_soak_loses_no_call(tmp_path: Path) -> None:
    """A short version of the soak of `make bench-judge`, which runs 45,000 calls."""
    report = await soak(tmp_path, calls=500, every=0.5, rounds=1, workers=2)
    assert set(report["killsByPart"]) == {"worker", "sandbox", "redis"}
    assert (report["lost"], report["duplicated"], report["wrong"]) == (0, 0, 0)
    assert report["sessions"]["cells"] > 0 and report["sessions"]["wrong"] == 0


async def test_consumer_recreates_a_lost_group(judge: UnsupervisedJudge) -> None:
    """Every command of a worker succeeds after Redis lost its data."""
    redis = connect_as(judge)
    try:
        keys = QueueKeys("empty")
        consumer = Consumer(redis, "worker", keys)
        for command in (
            consumer.pull(keys.calls, 1, block_ms=1),
            consumer.claim(1),
            consumer.renew([b"1-1"]),
            consumer.leave(),
        ):
            await redis.delete(keys.calls)
            await command
            assert await redis.exists(keys.calls)
    finally:
        await redis.aclose()


async def test_call_over_memory_while_lanes_open_is_blamed(tmp_path: Path) -> None:
    """The allowance for lanes that start does not hide a call over its memory limit."""
    attack = next(attack for attack in HOSTILE if attack.name == "memory-of-many-processes")
    with UnsupervisedJudge(tmp_path, executors=1) as judge:
        async with JudgeClient(judge.url) as client:
            kill_sandboxes(judge)
            result = await client.run(attack.program({}), limits=JudgeLimits(**attack.limits))
    assert (result.status, result.stderr) == ("memory", "its processes together took too much memory\n")
    assert result.run_seconds > 0


async def test_sandbox_killed_mid_call(own_judge: UnsupervisedJudge) -> None:
    """Calls of a killed sandbox run again, and the sandbox is replaced once."""
    async with JudgeClient(own_judge.url) as client:
        before = await recycled(own_judge, client)
        calls = await start_calls(client, 8)
        kill_sandboxes(own_judge)
        assert_squares(await asyncio.gather(*calls))
        assert await recycled(own_judge, client) == before + 1


async def test_api_killed_and_restarted(own_judge: UnsupervisedJudge) -> None:
    """The client resends the calls that the killed API had not answered."""
    async with JudgeClient(own_judge.url) as client:
        calls = await start_calls(client, 8)
        own_judge.kill("api")
        own_judge.start_api()
        assert_squares(await asyncio.gather(*calls))


async def test_worker_drains_on_sigterm(own_judge: UnsupervisedJudge) -> None:
    """A worker answers its calls, leaves the group and exits with 0; another one runs the rest."""
    async with JudgeClient(own_judge.url) as client:
        calls = await start_calls(client, 4)
        own_judge.processes["worker"].terminate()
        assert own_judge.processes.pop("worker").wait(300) == 0
        redis = Redis.from_url(own_judge.redis_url, password=own_judge.password)
        assert redis.xinfo_consumers(QueueKeys().calls, GROUP) == []  # it had no lease and left the group
        own_judge.start_worker()
        assert_squares(await asyncio.gather(*calls))


async def test_call_delivered_too_often_is_a_dead_letter(own_judge: UnsupervisedJudge) -> None:
    """A call whose workers always die gets status `internal`, which the client reports as unavailability."""
    own_judge.kill("worker")
    redis = Redis.from_url(own_judge.redis_url, password=own_judge.password)
    before = redis.xlen(QueueKeys().dead)
    async with httpx.AsyncClient(trust_env=False, timeout=600) as http:
        call = asyncio.create_task(http.post(f"{own_judge.url}/v1/run", json={"code": "print(1)"}))
        while not redis.xlen(QueueKeys().calls):
            await asyncio.sleep(0.02)
        redis.xreadgroup(GROUP, "dead", {QueueKeys().calls: ">"})
        entry = redis.xpending_range(QueueKeys().calls, GROUP, "-", "+", 1)[0]["message_id"]
        redis.xclaim(QueueKeys().calls, GROUP, "dead", 0, [entry], idle=60_000, retrycount=3)
        own_judge.start_worker()
        answer = (await call).json()
    assert (answer["status"], answer["stderr"]) == ("internal", CRASHED)
    await until_async(lambda: redis.xlen(QueueKeys().calls) == 0, "the call leaves the queue")
    assert redis.xlen(QueueKeys().dead) == before + 1


async def test_call_that_ends_each_sandbox_is_killed(own_judge: UnsupervisedJudge) -> None:
    """The test kills each sandbox that runs the call; after the third the call is blamed."""
    async with PatientClient(own_judge.url) as client:
        call = asyncio.create_task(client.run("import time\ntime.sleep(600)", limits=JudgeLimits(wall_seconds=600)))
        while not call.done():
            if own_judge.status()["executors"]["busy"]:
                kill_sandboxes(own_judge)
            await asyncio.wait([call], timeout=0.2)
        assert (await call).status == "killed"
        assert (await client.run("print(1)")).stdout == "1\n"


async def test_api_full_queue_delays_the_client(tmp_path: Path, judge: UnsupervisedJudge) -> None:
    """More calls than the limit: 503 with Retry-After; the client waits, and all its calls are answered."""
    command = [sys.executable, "-m", "rstar2_train.judge", "api", "--redis", judge.redis_url, "--max-pending", "4"]
    environment = os.environ | {"RSTAR2_REDIS_PASSWORD": judge.password}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as api:
        try:
            assert api.stdout is not None
            url = f"http://127.0.0.1:{json.loads(api.stdout.readline())['port']}"
            too_many = httpx.post(f"{url}/v1/batch", json={"calls": [{"code": "1"}] * 5}, trust_env=False, timeout=60)
            assert too_many.status_code == 413 and "at most 4" in too_many.text
            async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as http:
                with judge.paused("worker"):
                    slow = asyncio.create_task(http.post("/v1/run", json={"code": "1"}))
                    while not (await http.get("/v1/status")).json()["pending"]:
                        await asyncio.sleep(0.02)
                    answer = await http.post("/v1/batch", json={"calls": [{"code": "1"}] * 4})
                    assert answer.status_code == 503 and int(answer.headers["Retry-After"]) >= 1
                assert (await slow).json()["status"] == "ok"
            async with PatientClient(url) as client:
                blocker = asyncio.create_task(client.run("import time\ntime.sleep(1)", limits=SLOW))
                await asyncio.sleep(0.3)
                results = []
                for n in range(6):
                    results.append(asyncio.create_task(client.run(f"print({n} * {n})")))
                    await asyncio.sleep(0)
                    await asyncio.sleep(0.01)
                assert_squares(await asyncio.gather(*results))
                assert (await blocker).status == "ok"
        finally:
            api.terminate()


async def test_client_unreachable_judge_is_unavailable() -> None:
    """The error of a client whose patience ended names the address."""
    async with JudgeClient("http://127.0.0.1:9", patience_seconds=0.5) as client:
        with pytest.raises(JudgeUnavailable, match=r"127\.0\.0\.1:9"):
            await client.run("print(1)")
