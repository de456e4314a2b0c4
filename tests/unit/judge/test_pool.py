"""The parts of a worker's pool: retries of calls, the table of sessions, the watch of memory."""

import asyncio
import time
from pathlib import Path

import pytest

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.judge.process_exit import ProcessExit
from rstar2_train.judge.sandbox.base import MAX_SESSIONS
from rstar2_train.judge.sandbox.oci_bundle import SandboxSettings
from rstar2_train.judge.types import QueuedCall, Verb
from rstar2_train.judge.worker.memory_watch import LANE_BYTES, LEAK_BYTES, PREPARED_BYTES, MemoryWatch
from rstar2_train.judge.worker.pool import GRACE_SECONDS, SandboxPool
from rstar2_train.judge.worker.provider import LocalSandboxProvider
from rstar2_train.judge.worker.running_call import MAX_SANDBOX_DEATHS, MAX_SETUP_FAILURES, RunningCall
from rstar2_train.judge.worker.sessions import SessionTable
from tests.support.clock import Clock
from tests.support.fake_sandbox import FakeSandbox

MIB = 1 << 20


def queued(verb: Verb = "call", session: str = "", memory_mib: int = 64) -> QueuedCall:
    """Return a call that does nothing."""
    limits = JudgeLimits(memory_mib=memory_mib)
    return QueuedCall("1", "", code="", stdin="", limits=limits, deadline=0, verb=verb, session=session)


def running(call: QueuedCall | None = None) -> RunningCall:
    """Return a call as the pool holds it."""
    return RunningCall(call or queued(), "bare", asyncio.get_running_loop().create_future())


@pytest.fixture
def sessions() -> SessionTable:
    return SessionTable()


@pytest.fixture
async def sandbox() -> FakeSandbox:
    sandbox = FakeSandbox()
    await sandbox.start()
    return sandbox


async def test_running_call_failed_setup_is_retried() -> None:
    """A call whose process could not be set up runs again, up to a limit."""
    call, failed = running(), ProcessExit("setup_failed", 70 << 8, 0.0, "", "")
    results = [call.result_of_exit(failed) for _ in range(MAX_SETUP_FAILURES)]
    assert results[:-1] == [None] * (MAX_SETUP_FAILURES - 1)
    assert results[-1] is not None and results[-1].status == "internal"


async def test_running_call_is_killed_after_sandbox_deaths() -> None:
    """Only the deaths of sandboxes that ran the call count, not those in which it waited."""
    call = running()
    for _ in range(MAX_SANDBOX_DEATHS - 1):
        assert call.result_of_sandbox_death(was_running=True, over_memory=False) is None
        assert call.result_of_sandbox_death(was_running=False, over_memory=True) is None
    result = call.result_of_sandbox_death(was_running=True, over_memory=False)
    assert result is not None and result.status == "killed"


async def test_running_call_over_memory_is_answered() -> None:
    """A call that took too much memory does not run again."""
    result = running().result_of_sandbox_death(was_running=True, over_memory=True)
    assert result is not None and result.status == "memory"


async def test_sessions_reserve_stops_at_the_slots(sessions: SessionTable, sandbox: FakeSandbox) -> None:
    """Reservations and live sessions together never exceed the slots."""
    ids = [f"s{n}" for n in range(MAX_SESSIONS)]
    assert all(sessions.reserve(id, sandboxes=1) for id in ids)
    sessions.open(queued("open", "s0"), sandbox, sandbox.lanes["bare"], 0)
    assert not sessions.reserve("more", sandboxes=1)
    sessions.release("s1")
    assert sessions.reserve("more", sandboxes=1)


async def test_sessions_free_slot_is_the_lowest(sessions: SessionTable, sandbox: FakeSandbox) -> None:
    """Slots are used from 0 on, and a freed slot is used again."""
    for slot in range(MAX_SESSIONS):
        assert sessions.free_slot(sandbox) == slot
        sessions.open(queued("open", f"s{slot}"), sandbox, sandbox.lanes["bare"], slot)
    assert sessions.free_slot(sandbox) is None
    sessions.end("s3")
    assert sessions.free_slot(sandbox) == 3


async def test_sessions_end_answers_waiting_cells(sessions: SessionTable, sandbox: FakeSandbox) -> None:
    """The sessions of an ended sandbox are lost, with their cells, and reported once."""
    other = FakeSandbox()
    sessions.open(queued("open", "a"), sandbox, sandbox.lanes["bare"], 0)
    sessions.open(queued("open", "b"), other, other.lanes["bare"], 0)
    cell = running(queued("cell", "a"))
    session = sessions.get("a")
    assert session is not None
    session.cells.append(cell)
    sessions.end_in_sandbox(sandbox)
    assert cell.future.result().status == "session_lost"
    assert list(sessions) == ["b"] and sessions.take_ended() == {"a"} and sessions.take_ended() == set()


async def test_sessions_idle_excludes_running_ones(sessions: SessionTable, sandbox: FakeSandbox) -> None:
    """A session with a running cell is not idle."""
    sessions.open(queued("open", "a"), sandbox, sandbox.lanes["bare"], 0)
    session = sessions.get("a")
    assert session is not None and sessions.idle_since(time.monotonic() + 1) == []
    session.running = False
    assert sessions.idle_since(time.monotonic() + 1) == ["a"]


async def test_memory_watch_stops_a_call_over_its_limit(sessions: SessionTable, sandbox: FakeSandbox) -> None:
    """Twice the limit of one process and a prepared process per lane, beyond what the sandbox held before the call."""
    watch = MemoryWatch(sessions)
    sandbox.held_bytes = 100 * MIB
    watch.lane_opened(sandbox)
    watch.call_written(sandbox, 64 * MIB, is_next=True)
    call = sandbox.lanes["bare"].submit(queued())
    sandbox.held_bytes = 228 * MIB + PREPARED_BYTES
    watch.check(sandbox)
    assert not sandbox.dead.is_set()
    sandbox.held_bytes += 1
    watch.check(sandbox)
    assert sandbox.dead.is_set() and watch.account(sandbox).over_limit
    call.exception()


async def test_memory_watch_replaces_a_leaking_sandbox(sessions: SessionTable, sandbox: FakeSandbox) -> None:
    """Only when it is idle: a call in flight is finished first."""
    watch = MemoryWatch(sessions)
    sandbox.held_bytes = 100 * MIB
    watch.lane_opened(sandbox)
    sandbox.held_bytes += LEAK_BYTES + PREPARED_BYTES
    watch.check(sandbox)
    assert not watch.account(sandbox).retiring
    sandbox.held_bytes += 1
    watch.check(sandbox)
    assert sandbox.dead.is_set() and watch.account(sandbox).retiring and not watch.account(sandbox).over_limit


async def test_memory_watch_allows_lanes_that_start(sessions: SessionTable) -> None:
    """A lane that starts may take LANE_BYTES in addition, until it is admitted."""
    watch, sandbox = MemoryWatch(sessions), FakeSandbox("bare", "sympy")
    sandbox.lanes["bare"].admitted = True
    sandbox.held_bytes = 100 * MIB
    watch.lane_opened(sandbox)
    watch.call_written(sandbox, 64 * MIB, is_next=True)
    call = sandbox.lanes["bare"].submit(queued())
    sandbox.held_bytes = 228 * MIB + LANE_BYTES + 2 * PREPARED_BYTES
    watch.check(sandbox)
    assert not sandbox.dead.is_set()
    sandbox.lanes["sympy"].admitted = True
    watch.check(sandbox)
    assert sandbox.dead.is_set()
    call.exception()


async def test_memory_watch_limits_sessions_together(sessions: SessionTable, sandbox: FakeSandbox) -> None:
    """All sessions of a sandbox may hold four times the largest limit."""
    watch = MemoryWatch(sessions)
    sandbox.held_bytes = 100 * MIB
    watch.lane_opened(sandbox)
    for slot in range(2):
        call = queued("open", f"s{slot}", memory_mib=64)
        sessions.open(call, sandbox, sandbox.lanes["bare"], slot)
        watch.call_written(sandbox, 64 * MIB, is_next=True)
    sandbox.held_bytes = (100 + 4 * 64) * MIB + PREPARED_BYTES
    watch.check(sandbox)
    assert not sandbox.dead.is_set()
    sandbox.held_bytes += 1
    watch.check(sandbox)
    assert sandbox.dead.is_set()


@pytest.fixture
async def pool(tmp_path: Path) -> SandboxPool:
    """A pool of two fake sandboxes, which never answer."""
    pool = SandboxPool(LocalSandboxProvider(SandboxSettings(isolation="none", state=tmp_path), size=2))
    pool.supervisor.sandboxes += [FakeSandbox(), FakeSandbox()]
    for sandbox in pool.supervisor.sandboxes:
        sandbox.lanes["bare"].ready = sandbox.lanes["bare"].admitted = True
    return pool


async def answer_all(pool: SandboxPool) -> None:
    """End each call in flight with success; the sessions stay alive."""
    for sandbox in pool.supervisor.sandboxes:
        lane = sandbox.lanes["bare"]
        while lane.in_flight:
            lane.time_limits.popleft()
            lane.in_flight.popleft().set_result(ProcessExit("exited", 0, 0.0, "", "", session_lives=True))
    await asyncio.sleep(0)


async def test_pool_pause_of_the_worker_ends_no_sandbox(pool: SandboxPool, clock: Clock) -> None:
    """A worker that was stopped for longer than a call may take reads the answer; a later silence ends the sandbox."""
    answered, silent = pool.submit(queued()), pool.submit(queued())
    first, second = pool.supervisor.sandboxes
    for pause, is_stuck in ((600.0, False), (GRACE_SECONDS + 0.1, True)):
        clock.now += pause
        for _ in range(3):
            await asyncio.sleep(0)
        assert (first.dead.is_set(), second.dead.is_set()) == (False, is_stuck)
        while first.lanes["bare"].in_flight:
            first.lanes["bare"].in_flight.popleft().set_result(ProcessExit("exited", 0, 0.0, "", ""))
    assert answered.result().status == "ok" and not silent.done()


async def test_pool_sessions_are_spread(pool: SandboxPool) -> None:
    """Sessions that open one after the other, with idle sandboxes, are divided evenly."""
    for n in range(6):
        assert pool.reserve_session(f"s{n}")
        pool.submit(queued("open", f"s{n}"))
        await answer_all(pool)
    assert [len(pool.sessions.in_sandbox(sandbox)) for sandbox in pool.supervisor.sandboxes] == [3, 3]


async def test_pool_call_prefers_a_sandbox_without_sessions(pool: SandboxPool) -> None:
    """A call runs next to sessions only if no other sandbox is idle."""
    assert pool.reserve_session("s")
    pool.submit(queued("open", "s"))
    await answer_all(pool)
    pool.submit(queued())
    used = next(sandbox for sandbox in pool.supervisor.sandboxes if sandbox.in_flight)
    assert pool.sessions.in_sandbox(used) == []
    pool.submit(queued())
    assert all(sandbox.in_flight for sandbox in pool.supervisor.sandboxes)


async def test_pool_suspect_ends_one_sandbox_with_sessions(pool: SandboxPool) -> None:
    """A call whose sandbox ended runs again only where no session lives, before new sessions open there."""
    for n in range(2):
        assert pool.reserve_session(f"s{n}")
        pool.submit(queued("open", f"s{n}"))
        await answer_all(pool)
    suspect, other = pool.submit(queued()), pool.submit(queued())
    first, second = pool.supervisor.sandboxes
    first.mark_dead()
    pool.supervisor.sandboxes.remove(first)
    pool.sessions.end_in_sandbox(first)
    await asyncio.sleep(0)
    await answer_all(pool)
    assert other.result().status == "ok" and not suspect.done()
    assert pool.reserve_session("new")
    opened = pool.submit(queued("open", "new"))
    assert second.in_flight == 1
    await answer_all(pool)
    assert opened.result().status == "ok" and not suspect.done()
    fresh = FakeSandbox()
    await fresh.start()
    pool.supervisor.sandboxes.append(fresh)
    assert pool.reserve_session("newer")
    pool.submit(queued("open", "newer"))
    assert fresh.in_flight == 1 and pool.sessions.in_sandbox(fresh) == []
    fresh.held_bytes = 100 * MIB
    await answer_all(pool)
    assert suspect.result().status == "ok"


async def test_pool_session_is_not_charged_for_an_ended_one(sandbox: FakeSandbox, tmp_path: Path) -> None:
    """gVisor frees memory of ended processes over some time; a session with a small limit may open meanwhile."""
    pool = SandboxPool(LocalSandboxProvider(SandboxSettings(isolation="none", state=tmp_path), size=1))
    pool.supervisor.sandboxes.append(sandbox)
    watch, fresh = pool._memory, 100 * MIB
    sandbox.held_bytes = fresh
    watch.lane_opened(sandbox)
    sandbox.held_bytes = 900 * MIB
    assert pool.reserve_session("a")
    cell = pool.submit(queued("open", "a", memory_mib=64))
    watch.check(sandbox)
    assert not sandbox.dead.is_set()
    sandbox.held_bytes = fresh
    watch.check(sandbox)
    sandbox.held_bytes = fresh + (2 + 4) * 64 * MIB + PREPARED_BYTES
    watch.check(sandbox)
    assert not sandbox.dead.is_set()
    sandbox.held_bytes += 1
    watch.check(sandbox)
    assert sandbox.dead.is_set()
    await asyncio.sleep(0)
    assert cell.result().status == "memory"
