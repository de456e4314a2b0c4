"""Sessions: state between cells, isolation of sessions, reported ends, and no cell that runs twice."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack

import httpx
import pytest

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.judge.client.client import JudgeClient
from rstar2_train.judge.types import NO_FREE_SLOT
from rstar2_train.rollout.jupyter_tool import KERNEL_RESTARTED, JupyterTool
from tests.integration.judge.conftest import PatientClient, require_sandbox
from tests.integration.judge.test_recovery import kill_sandboxes, recycled
from tests.support.hostile import SESSIONS
from tests.support.unsupervised_judge import UnsupervisedJudge
from tests.support.waiting import until_async

IDLE_SECONDS = 5


@pytest.fixture(scope="module")
def idle_judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UnsupervisedJudge]:
    """A judge that closes a session without a cell after IDLE_SECONDS."""
    require_sandbox()
    arguments = ("--session-idle", str(IDLE_SECONDS))
    folder = tmp_path_factory.mktemp("idle")
    with UnsupervisedJudge(folder, executors=1, lanes=("bare",), worker_arguments=arguments) as judge:
        yield judge


async def test_session_keeps_state_between_cells(client: JudgeClient) -> None:
    """Names and files stay; an error or an exit ends only the cell; stdin is empty."""
    async with client.session() as session:
        first = await session.run("import math\nx = 40\ndef f(n): return x + n")
        assert (first.status, first.session_lives) == ("ok", True)
        assert (await session.run("f(2)")).stdout == "42\n"
        failed = await session.run("x = 50\nprint('before')\n1 / 0")
        assert (failed.status, failed.stdout, failed.session_lives) == ("error", "before\n", True)
        assert failed.stderr.endswith("ZeroDivisionError: division by zero\n")
        assert (await session.run("print(f(2), math.pi > 3)")).stdout == "52 True\n"
        assert (await session.run("open('/tmp/kept', 'w').write('here')")).status == "ok"
        assert (await session.run("open('/tmp/kept').read()")).stdout == "'here'\n"
        exited = await session.run("raise SystemExit(3)")  # ends a cell, not the session
        assert (exited.status, exited.exit_code, exited.session_lives) == ("error", 3, True)
        assert (await session.run("input()")).stderr.endswith("EOFError: EOF when reading a line\n")


async def test_session_is_isolated_from_other_sessions_and_calls(client: JudgeClient) -> None:
    """Another session, or a call, finds neither its files nor its processes and names."""
    probe = "import os\n(os.listdir('/tmp'), [p for p in os.listdir('/proc') if p.isdigit()], 'secret' in globals())"
    async with client.session() as session, client.session() as other:
        assert (await session.run("secret = 's3cret'\nopen('/tmp/mine', 'w').write(secret)")).status == "ok"
        assert (await other.run(probe)).stdout == "([], ['1'], False)\n"
        assert (await client.run(probe)).stdout == "([], ['1'], False)\n"
        assert (await session.run("secret")).stdout == "'s3cret'\n"


@pytest.mark.parametrize(
    ("code", "limits", "status"),
    [
        ("while True: pass", JudgeLimits(wall_seconds=1), "timeout"),
        ("while True: print('x' * 999)", JudgeLimits(output_bytes=4096), "output_limit"),
        ("import os\nos._exit(5)", JudgeLimits(), "error"),
        ("import os\nos.close(63)\nos.closerange(3, 64)", JudgeLimits(), "error"),
        ("import ctypes\nctypes.string_at(0)", JudgeLimits(), "error"),
    ],
)
async def test_session_ends_with_a_cell_over_its_limits(
    client: JudgeClient, code: str, limits: JudgeLimits, status: str
) -> None:
    """A cell over a limit, or that breaks its process, ends the session; later cells are lost."""
    async with client.session() as session:
        assert (await session.run("x = 1")).session_lives
        last = await session.run(code, limits=limits)
        assert (last.status, last.session_lives) == (status, False)
        assert (await session.run("x")).status == "session_lost"
    assert (await client.run("print(1)")).stdout == "1\n"


async def test_session_with_all_its_processes_harms_no_other(client: JudgeClient) -> None:
    """The process limit counts the processes of one session, and not those of other sessions and calls."""
    bomb = "import os, time\nn = 0\ntry:\n    while True:\n        if os.fork() == 0: time.sleep(600)\n        n += 1\n"
    bomb += "except OSError: print(n)"
    threads = "import threading, time\nt = [threading.Thread(target=time.sleep, args=(0.3,)) for _ in range(16)]\n"
    threads += "for one in t: one.start()\nprint(len(t))"
    async with client.session() as session, client.session() as other:
        limits = JudgeLimits(processes=16, wall_seconds=60)
        assert (await session.run(bomb, limits=limits)).stdout == "16\n"
        assert (await other.run(threads)).stdout == "16\n"
        assert (await client.run(threads)).stdout == "16\n"


async def test_session_memory_is_limited(client: JudgeClient) -> None:
    """The memory limit applies to all cells of a session together."""
    async with client.session() as session:
        limits = JudgeLimits(memory_mib=64)
        assert (await session.run("kept = []", limits=limits)).status == "ok"
        grown = [await session.run("kept.append(bytearray(20 << 20))", limits=limits) for _ in range(5)]
        assert "memory" in [result.status for result in grown]
        assert (await session.run("print(len(kept) < 5)", limits=limits)).stdout == "True\n"
        exited = await session.run("import sys\nsys.exit(85)", limits=limits)
        assert (exited.status, exited.exit_code, exited.session_lives) == ("error", 85, True)


async def test_cell_printing_a_judge_message_is_not_retried(client: JudgeClient) -> None:
    """The text of a judge's message in the output of a cell must not look like that message."""
    async with client.session() as session:
        await session.run("n = 0")
        forged = await session.run(f"import sys\nn += 1\nsys.stderr.write({NO_FREE_SLOT!r})\nsys.exit(n)")
        assert (forged.status, forged.stderr, forged.exit_code) == ("error", NO_FREE_SLOT, 1)
        assert (await session.run("n")).stdout == "1\n"


async def test_cell_forked_child_does_not_end_the_cell(client: JudgeClient) -> None:
    """A forked child that reaches the end of the code does not report it for the cell."""
    async with client.session() as session:
        first = await session.run("import os, time\nif os.fork() == 0: time.sleep(0.2)\nprint(os.getpid())")
        assert first.session_lives and "1\n" in first.stdout
        wait = "try: os.wait()\nexcept ChildProcessError: pass"
        assert (await session.run(f"{wait}\nprint('second', os.getpid())")).stdout.endswith("second 1\n")


async def test_session_second_cell_in_flight_is_rejected(judge: UnsupervisedJudge) -> None:
    """A session runs one cell at a time; another one gets 409. A closed session is lost."""
    async with httpx.AsyncClient(base_url=judge.url, trust_env=False, timeout=60) as http:
        session = (await http.post("/v1/sessions")).json()["session"]
        with judge.paused("worker"):
            slow = asyncio.create_task(http.post(f"/v1/sessions/{session}/cells", json={"code": "1"}))
            while not (await http.get("/v1/status")).json()["pending"]:
                await asyncio.sleep(0.02)
            assert (await http.post(f"/v1/sessions/{session}/cells", json={"code": "1"})).status_code == 409
        assert (await slow).json()["status"] == "ok"
        assert (await http.delete(f"/v1/sessions/{session}")).status_code == 204
        lost = await http.post(f"/v1/sessions/{session}/cells", json={"code": "1"})
        assert (lost.status_code, lost.json()["status"]) == (200, "session_lost")


async def test_session_unknown_id_is_lost(judge: UnsupervisedJudge) -> None:
    """A cell of an unknown session gets status `session_lost`."""
    async with httpx.AsyncClient(base_url=judge.url, trust_env=False, timeout=60) as http:
        response = await http.post("/v1/sessions/guessed/cells", json={"code": "1"})
        assert response.json()["status"] == "session_lost"


async def test_session_and_calls_share_a_sandbox(client: JudgeClient) -> None:
    """Cells run while more calls wait than sandboxes exist, and the calls run too."""
    async with client.session() as session:
        assert (await session.run("y = 1")).status == "ok"
        answered, cells_done = 0, False

        async def call_again(n: int) -> None:
            nonlocal answered
            while not cells_done:
                assert (await client.run(f"print({n})", limits=JudgeLimits(wall_seconds=60))).stdout == f"{n}\n"
                answered += 1

        calls = [asyncio.create_task(call_again(n)) for n in range(40)]
        for n in range(5):
            assert (await session.run("y += 1\nprint(y)")).stdout == f"{n + 2}\n"
        cells_done = True
        await asyncio.gather(*calls)
        assert answered >= 40


async def test_session_without_free_slot_waits(client: JudgeClient) -> None:
    """New sessions wait for a free slot. Cells and ends of live sessions, and calls, run meanwhile."""
    sessions = [client.session() for _ in range(24)]
    for session in sessions:
        await session.__aenter__()
    try:
        for n, session in enumerate(sessions[:16]):
            assert (await session.run(f"mine = {n}")).status == "ok"
        late = [asyncio.create_task(session.run(f"mine = {n}")) for n, session in enumerate(sessions[16:], start=16)]
        await asyncio.sleep(2)
        assert not any(cell.done() for cell in late)
        assert (await sessions[15].run("mine")).stdout == "15\n"
        assert (await client.run("print(1)")).stdout == "1\n"
        for session in sessions[:8]:
            await session.__aexit__(None, None, None)
        assert [(await cell).status for cell in late] == ["ok"] * 8
        assert [(await session.run("mine")).stdout for session in sessions[8:]] == [f"{n}\n" for n in range(8, 24)]
    finally:
        for session in sessions[8:]:
            await session.__aexit__(None, None, None)


async def test_session_cell_longer_than_idle_limit_is_kept(idle_judge: UnsupervisedJudge) -> None:
    """The idle time of a session starts at the end of its last cell."""
    seconds = IDLE_SECONDS + 3
    async with PatientClient(idle_judge.url) as client, asyncio.timeout(600):
        is_late = True
        while is_late:  # on a machine that paused, the second cell may follow after the idle time
            start = time.monotonic()
            async with client.session() as session:
                assert (await session.run(f"import time\nx = 1\ntime.sleep({seconds})")).session_lives
                kept = await session.run("x")
            is_late = time.monotonic() - start > seconds + IDLE_SECONDS
        assert kept.stdout == "1\n"


@pytest.mark.parametrize("code", SESSIONS.values(), ids=SESSIONS.keys())
async def test_session_hostile_cell_harms_only_itself(client: JudgeClient, code: str) -> None:
    """Calls and another session of the same sandbox work as before."""
    async with client.session() as good, client.session() as bad:
        assert (await good.run("kept = 'here'")).status == "ok"
        await bad.run(code, limits=JudgeLimits(wall_seconds=2))
        for _ in range(3):
            await bad.run("print('again')", limits=JudgeLimits(wall_seconds=2))
            assert (await client.run("print(2 + 2)", limits=JudgeLimits(wall_seconds=20))).stdout == "4\n"
            assert (await good.run("kept", limits=JudgeLimits(wall_seconds=20))).stdout == "'here'\n"
    probe = await client.run("import os\nprint([p for p in os.listdir('/proc') if p.isdigit()], os.listdir('/tmp'))")
    assert probe.stdout == "['1'] []\n"


async def test_session_memory_between_cells_harms_no_call(judge: UnsupervisedJudge, client: JudgeClient) -> None:
    """Processes that a cell left take memory during a later call. That ends the sandbox and session, not the call."""
    limits = JudgeLimits(memory_mib=64)
    code = (
        "import os, time\nfor _ in range(10):\n    if os.fork() == 0:\n"
        "        while not os.path.exists('/tmp/go'): time.sleep(0.05)\n        time.sleep(1)\n"
        "        x = bytearray(60 << 20)\n        time.sleep(60)"
    )
    async with AsyncExitStack() as stack, asyncio.timeout(600):
        lives = False
        while not lives:  # on a machine that paused, they may take the memory during the cell
            before = await recycled(judge, client)
            session = await stack.enter_async_context(client.session())
            assert (await session.run(code, limits=limits)).session_lives
            lives = (await session.run("open('/tmp/go', 'w').close()")).session_lives
        while judge.report()["recycled"] == before:
            assert (await client.run("import time; time.sleep(0.5); print(1)", limits=limits)).stdout == "1\n"
        assert (await session.run("1")).status == "session_lost"


@pytest.mark.parametrize("draw", ["numpy.random.rand()", "sympy.core.random.rng.random()", "random.random()"])
async def test_call_random_numbers_differ(client: JudgeClient, draw: str) -> None:
    """Each call has its own seeds."""
    drawn = {(await client.run(f"import {draw.split('.')[0]}\n{draw}")).stdout for _ in range(3)}
    assert len(drawn) == 3 and "" not in drawn


async def test_session_idle_is_closed(idle_judge: UnsupervisedJudge) -> None:
    """A session without a cell is closed after the idle time; one with cells is not."""
    async with PatientClient(idle_judge.url) as client, asyncio.timeout(600):
        while not await closes_only_the_idle(idle_judge, client):
            pass


async def closes_only_the_idle(judge: UnsupervisedJudge, client: JudgeClient) -> bool:
    """Let one of two sessions idle until it is closed. Return False if the machine paused, and both were idle."""
    async with client.session() as used, client.session() as idle:
        await idle.run("x = 1")
        await used.run("n = 0")
        n, both, last = 0, False, time.monotonic()
        while not both or judge.report()["sessions"] == 2:  # two sessions, and then one
            both = both or judge.report()["sessions"] == 2
            n, start = n + 1, time.monotonic()
            cell = await used.run("n += 1\nprint(n)")
            if time.monotonic() - last > IDLE_SECONDS:
                return False
            assert cell.stdout == f"{n}\n"
            last = start
            await asyncio.sleep(0.3)
        left = judge.report()["sessions"]
        if time.monotonic() - last > IDLE_SECONDS:
            return False
        assert left == 1
        assert (await idle.run("x")).status == "session_lost"
    return True


async def test_session_with_killed_sandbox_is_lost(own_judge: UnsupervisedJudge) -> None:
    """A session ends with its sandbox, and calls run in the next one."""
    async with PatientClient(own_judge.url) as client, client.session() as session:
        assert (await session.run("x = 1")).status == "ok"
        kill_sandboxes(own_judge)
        assert (await session.run("x")).status == "session_lost"
        assert (await client.run("print(1)")).stdout == "1\n"


async def test_cell_with_killed_sandbox_is_lost(own_judge: UnsupervisedJudge) -> None:
    """A running cell gets status `session_lost` if its sandbox is killed."""
    async with PatientClient(own_judge.url) as client, client.session() as session:
        await session.run("x = 1")
        cell = asyncio.create_task(session.run("import time; time.sleep(600)", limits=JudgeLimits(wall_seconds=600)))
        await until_async(lambda: own_judge.status()["executors"]["busy"], "the cell runs")
        kill_sandboxes(own_judge)
        assert (await cell).status == "session_lost"


async def test_cell_with_killed_worker_is_lost(own_judge: UnsupervisedJudge) -> None:
    """A running cell gets status `session_lost` if its worker is killed."""
    async with PatientClient(own_judge.url) as client, client.session() as session:
        await session.run("x = 1")
        cell = asyncio.create_task(session.run("import time; time.sleep(600)", limits=JudgeLimits(wall_seconds=600)))
        await until_async(lambda: own_judge.status()["executors"]["busy"], "the cell runs")
        own_judge.kill("worker")
        own_judge.start_worker()
        assert (await cell).status == "session_lost"
        assert (await client.run("print(1)")).stdout == "1\n"


async def test_session_survives_an_api_restart(own_judge: UnsupervisedJudge) -> None:
    """The connection to the old API must not be used for the next cell, which would then count as lost."""
    async with PatientClient(own_judge.url) as client, client.session() as session:
        assert (await session.run("x = 1")).status == "ok"
        own_judge.kill("api")
        own_judge.start_api()
        assert (await session.run("x")).stdout == "1\n"


async def test_session_survives_redis_restarts(own_judge: UnsupervisedJudge) -> None:
    """No cell runs twice: each adds one."""
    async with PatientClient(own_judge.url) as client, client.session() as session:
        await session.run("n = 0")
        for turn in range(12):
            cell = asyncio.create_task(session.run("n += 1\nprint(n)"))
            if turn in (3, 7):
                own_judge.kill("redis")
                own_judge.start_redis()
            assert (await cell).stdout == f"{turn + 1}\n"


async def test_jupyter_tool_runs_cells_in_order(client: JudgeClient) -> None:
    """Concurrent cells of a trajectory run in order; after a timeout the next cell has a new session."""
    async with JupyterTool(client) as notebook:
        cells = await asyncio.gather(*(notebook.run(code) for code in ("x = 6", "x *= 7", "x")))
        assert cells[-1].stdout == "42\n"
        assert (await notebook.run("while True: pass", limits=JudgeLimits(wall_seconds=1))).status == "timeout"
        restarted = await notebook.run("x")
        assert restarted.stdout == KERNEL_RESTARTED and "NameError" in restarted.stderr
