"""The sandboxes of one worker: keeps them alive, gives calls to them, retries what a dying one took with it.

A sandbox takes calls only after its canary; one that dies or misbehaves is thrown away and replaced. A call whose
sandbox died is run again: it is `killed` only when it was the one running in each of DEATHS sandboxes that died. A cell
is never run again: its session died with the sandbox.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Set
from dataclasses import dataclass, field

from rstar2_train.judge.outcome import ProcessExit, to_result
from rstar2_train.judge.sandbox.base import SESSIONS, IsolationCheckFailed, Lane, Sandbox, SandboxBusy, SandboxError
from rstar2_train.judge.sandbox.rootfs import SetupError
from rstar2_train.judge.types import SESSION_IDLE_SECONDS, CallResult, QueuedCall
from rstar2_train.judge.worker.isolation_check import IsolationCheck
from rstar2_train.judge.worker.lanes import choose_lane
from rstar2_train.judge.worker.provider import SandboxProvider

log = logging.getLogger("rstar2.judge.pool")

DEATHS = 3
"""Sandboxes that a call must have ended before it is blamed."""
DEPTH = 2
"""Calls written to a sandbox at a time: one runs, the next is in its pipe, so that it never waits for us."""
GRACE_SECONDS = 10.0
"""How long beyond its own limits a call may take before its sandbox counts as stuck."""
SETUP_TRIES = 3
BUSY_SECONDS = 2.0
"""Between two tries to get an executor that serves another worker."""
WATCH_SECONDS = 0.2
IDLE_CHECK_SECONDS = 5.0
SESSIONS_FACTOR = 4
"""All sessions of a sandbox together may hold so many times the largest memory limit among them."""
MEMORY_FACTOR = 2
"""A call's processes together may hold so many times its memory limit (which is for each) before it is `memory`."""
WORN_BYTES = 256 << 20
"""A sandbox that holds so much more than when it was new, beyond what runs in it, is replaced: ended calls left it."""
LANE_BYTES = 128 << 20
"""What a lane may take to open: its imports, of which SymPy's take 65 MiB. More is the call's that runs beside it."""
TOO_MUCH_MEMORY = CallResult("memory", stderr="its processes together took too much memory\n")


@dataclass(slots=True, eq=False)
class _RunningCall:
    task: QueuedCall
    lane: str
    future: asyncio.Future[CallResult]
    deaths: int = 0
    setups: int = 0
    timer: asyncio.TimerHandle | None = field(default=None)

    def answer(self, result: CallResult) -> None:
        """Say how it ended, unless nobody waits for it any more."""
        if not self.future.done():
            self.future.set_result(result)


@dataclass(slots=True, eq=False)
class _Session:
    """A process that is kept, at a place of a lane of a sandbox."""

    sandbox: Sandbox
    lane: Lane
    place: int
    used: float
    """When its last cell ended (monotonic)."""
    memory_bytes: int
    """What one process of it may take."""
    running: bool = True
    cells: deque[_RunningCall] = field(default_factory=deque)
    """Waiting, in order."""


class PoolError(SetupError):
    """No sandbox could be started at all; the message says what runsc said."""


class SandboxPool:
    """`start`, then `submit` calls; `ready` is how many sandboxes take them."""

    def __init__(self, supply: SandboxProvider, *, session_idle_seconds: float = SESSION_IDLE_SECONDS) -> None:
        self.sandboxes: list[Sandbox] = []
        self.opened = 0
        """Sandboxes that ever took calls."""
        self.recycled = 0
        """Those of them that ended and were replaced."""
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Gets a PoolError when the first start of a sandbox fails for good."""
        self.changed = asyncio.Event()
        """Set whenever a sandbox begins or ends to take calls."""
        self.sessions: dict[str, _Session] = {}
        """Those that live, by their ids."""
        self._ended: set[str] = set()
        self._reserved: set[str] = set()
        """Sessions that will begin: there is a place for each of them."""
        self._waiting: dict[str, deque[_RunningCall]] = {lane: deque() for lane in supply.lanes}
        self._opening: deque[_RunningCall] = deque()
        """First cells, which wait for a sandbox with room for a session."""
        self._supply = supply
        self._session_idle = session_idle_seconds
        self._made: set[Sandbox] = set()
        self._places: frozenset[str] = frozenset()
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._canary = IsolationCheck(supply.state)

    @property
    def size(self) -> int:
        """Places for a sandbox."""
        return len(self._places)

    @property
    def ready(self) -> int:
        """Sandboxes that take calls."""
        return len(self.sandboxes)

    @property
    def busy(self) -> int:
        """Sandboxes with a call in them."""
        return sum(1 for sandbox in self.sandboxes if sandbox.waiting)

    def start(self) -> None:
        """Begins to start the sandboxes."""
        self._canary.__enter__()
        self._tasks = [asyncio.create_task(loop()) for loop in (self._follow, self._watch_memory, self._end_idle)]

    async def stop(self) -> None:
        """Kills all sandboxes."""
        tasks = [*self._tasks, *self._keepers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(sandbox.stop() for sandbox in self._made))
        self._canary.__exit__(None, None, None)

    def submit(self, task: QueuedCall) -> asyncio.Future[CallResult]:
        """Queues a call. The future never fails; it may be cancelled."""
        lane = choose_lane(task.code, self._waiting)
        future: asyncio.Future[CallResult] = asyncio.get_running_loop().create_future()
        call = _RunningCall(task, lane, future)
        if task.verb == "call":
            self._waiting[lane].append(call)
        elif task.verb == "open":
            self._opening.append(call)
        elif task.session in self.sessions:
            self.sessions[task.session].cells.append(call)
        else:
            future.set_result(_lost(task))
        self._assign()
        return future

    def reserve(self, session: str) -> bool:
        """Keeps a place for a session that is to begin; False when there is none."""
        if len(self.sessions) + len(self._reserved) >= SESSIONS * len(self.sandboxes):
            return False
        self._reserved.add(session)
        return True

    def release(self, session: str) -> None:
        """Gives a place back."""
        self._reserved.discard(session)

    def take_ended(self) -> set[str]:
        """Sessions that ended since this was asked last."""
        ended, self._ended = self._ended, set()
        return ended

    async def _follow(self) -> None:
        """Gives every place that comes a keeper; that of a place that has gone ends with its sandbox."""
        async for places in self._supply.places():
            self._places = places
            for place in places - self._keepers.keys():
                self._keepers[place] = asyncio.create_task(self._keep(place))
            self.changed.set()

    async def _keep(self, place: str) -> None:
        """Keeps a place's sandbox alive for as long as there is the place."""
        failures = 0
        while place in self._places:
            sandbox = self._supply.make(place)
            self._made.add(sandbox)
            condemned, wait = False, 0.0
            try:
                await sandbox.start()
                await self._attend(sandbox)
            except SandboxBusy:
                wait = BUSY_SECONDS
            except (SandboxError, OSError, ValueError) as error:  # the last two: this machine's refusals at its start
                failures = 0 if sandbox in self.sandboxes else failures + 1
                condemned = isinstance(error, IsolationCheckFailed)
                wait = min(10.0, 0.25 * 2**failures) if failures else 0.0
                log.error("sandbox %s is replaced: %s", sandbox.id, error)
                hopeless = failures >= SETUP_TRIES and not self.opened and not self._supply.patient
                if hopeless and not self.failed.done():
                    self.failed.set_exception(PoolError(f"no sandbox could be started here: {error}"))
            finally:
                if sandbox in self.sandboxes:
                    self.sandboxes.remove(sandbox)
                    self.recycled += 1
                for id in self._sessions_in(sandbox):
                    self._forget(id)
                await sandbox.stop(condemned=condemned)
                self._made.discard(sandbox)
                self.changed.set()
            await asyncio.sleep(wait)
        del self._keepers[place]

    async def _attend(self, sandbox: Sandbox) -> None:
        """Lets calls into each lane once it is warmed up and has passed the canary. Raises SandboxError at its end."""
        while True:
            sandbox.changed.clear()
            if sandbox.dead.is_set():
                raise SandboxError(f"it ended. {sandbox.said()}")
            for lane in sandbox.lanes.values():
                if lane.ready and not lane.passed:
                    await self._canary.check(sandbox, lane.name)
                    self._open(sandbox, lane)
            await sandbox.changed.wait()

    async def _watch_memory(self) -> None:
        """Throws away a sandbox whose call together takes more memory than it may, and one that is worn."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            for sandbox in list(self.sandboxes):
                held = sandbox.memory_bytes()
                if held is None:
                    continue
                sessions = self._sessions_in(sandbox).values()
                opening = sum(not lane.passed for lane in sandbox.lanes.values())
                allowed = MEMORY_FACTOR * sandbox.allowed_bytes if sandbox.waiting else 0
                allowed += SESSIONS_FACTOR * max((one.memory_bytes for one in sessions), default=0)
                allowed += LANE_BYTES * opening
                idle = not sandbox.waiting and not sessions
                if idle:
                    sandbox.idle_bytes = held
                elif held > sandbox.idle_bytes + allowed:
                    sandbox.over_memory = True
                    sandbox.died()
                    continue
                sandbox.worn = sandbox.worn or held > sandbox.fresh_bytes + WORN_BYTES + allowed
                if sandbox.worn and idle:
                    log.warning("sandbox %s holds %d MiB that no call uses: it is replaced", sandbox.id, held >> 20)
                    sandbox.died()

    def _sessions_in(self, sandbox: Sandbox) -> dict[str, _Session]:
        return {id: one for id, one in self.sessions.items() if one.sandbox is sandbox}

    def _begins(self, sandbox: Sandbox) -> None:
        """A call begins to run: what it takes is counted from here."""
        if not self._sessions_in(sandbox):
            sandbox.idle_bytes = sandbox.memory_bytes() or sandbox.idle_bytes

    async def _end_idle(self) -> None:
        """Ends sessions that nobody uses any more."""
        while True:
            await asyncio.sleep(min(IDLE_CHECK_SECONDS, self._session_idle / 2))
            before = time.monotonic() - self._session_idle
            for id, session in list(self.sessions.items()):
                if session.used < before and not session.cells and not session.running:
                    self.submit(QueuedCall.build_close(id))

    def _open(self, sandbox: Sandbox, lane: Lane) -> None:
        lane.passed = True
        held = sandbox.memory_bytes() or 0
        if sandbox.waiting or self._sessions_in(sandbox):  # what runs in it may be what holds the most of that
            held = min(held, sandbox.idle_bytes + LANE_BYTES)
        sandbox.fresh_bytes = sandbox.idle_bytes = held
        if sandbox not in self.sandboxes:
            self.sandboxes.append(sandbox)
            self.opened += 1
        log.info("sandbox %s: lane %s after %.1f s", sandbox.id, lane.name, time.monotonic() - sandbox.started)
        self.changed.set()
        self._assign()

    def _place(self, name: str, kept: Set[Sandbox]) -> tuple[Sandbox, Lane] | None:
        """Where the next call of a lane goes: an idle sandbox not in `kept`, else behind one call of it."""
        best: tuple[Sandbox, Lane] | None = None
        for sandbox in self.sandboxes:
            lane = sandbox.lanes[name]
            if not lane.passed or sandbox.worn or sandbox in kept:
                continue
            waiting = sandbox.waiting
            if waiting == 0:
                return sandbox, lane
            if waiting < DEPTH and len(lane.waiting) == waiting:
                best = (sandbox, lane)
        return best

    def _assign(self) -> None:
        """Hands waiting calls to free sandboxes. Cells go first, and keep theirs free: they can go nowhere else."""
        kept = set()
        for id, session in list(self.sessions.items()):
            if not session.lane.passed:  # its sandbox has just died
                self._forget(id)
            elif session.cells and not session.sandbox.waiting:
                session.running = True
                self._write(session.cells.popleft(), session.sandbox, session.lane, session.place)
            if session.cells:
                kept.add(session.sandbox)
        while self._opening and (room := self._room()):
            if room[0].waiting:
                kept.add(room[0])
                break
            self._write(self._opening.popleft(), *room)
        for name, queue in self._waiting.items():
            while queue and (place := self._place(name, kept)):
                self._write(queue.popleft(), *place)

    def _room(self) -> tuple[Sandbox, Lane, int] | None:
        """Where the next session goes: the least busy sandbox with a free place, the lane that has most imported."""
        for sandbox in sorted(self.sandboxes, key=lambda one: one.waiting):
            lane = next((lane for lane in reversed(sandbox.lanes.values()) if lane.passed), None)
            taken = {one.place for one in self._sessions_in(sandbox).values()}
            if lane is not None and not sandbox.worn and len(taken) < SESSIONS:
                return sandbox, lane, min(set(range(SESSIONS)) - taken)
        return None

    def _write(self, call: _RunningCall, sandbox: Sandbox, lane: Lane, place: int = 0) -> None:
        if call.future.done():
            return
        if call.task.verb == "open":
            self.release(call.task.session)
            memory = call.task.memory_mib << 20
            self.sessions[call.task.session] = _Session(sandbox, lane, place, time.monotonic(), memory)
        ahead = len(lane.waiting)
        if not ahead:
            self._begins(sandbox)
        sandbox.allowed_bytes = max(call.task.memory_mib << 20, sandbox.allowed_bytes if ahead else 0)
        patience = sum(lane.seconds) + call.task.wall_seconds + GRACE_SECONDS
        call.timer = asyncio.get_running_loop().call_later(patience, self._stuck, sandbox)
        lane.submit(call.task, place=place).add_done_callback(lambda done: self._done(call, sandbox, done))

    def _stuck(self, sandbox: Sandbox) -> None:
        log.error("sandbox %s did not answer in time; throwing it away", sandbox.id)
        sandbox.died()

    def _done(self, call: _RunningCall, sandbox: Sandbox, done: asyncio.Future[ProcessExit]) -> None:
        """A call ended, or its sandbox did."""
        if call.timer is not None:
            call.timer.cancel()
        if sandbox.waiting:
            self._begins(sandbox)
        error = done.exception()
        if call.task.verb != "call":
            self._cell_done(call, sandbox, None if error else to_result(done.result()))
        elif error is None:
            result = to_result(done.result())
            call.setups += result.status == "internal"
            if result.status == "internal" and call.setups < SETUP_TRIES:
                self._waiting[call.lane].appendleft(call)
            else:
                call.answer(result)
        else:
            running = isinstance(error, SandboxError) and error.running
            shared = self._sessions_in(sandbox)  # then it may have been a session
            call.deaths += running
            if running and sandbox.over_memory and not shared:
                call.answer(TOO_MUCH_MEMORY)
            elif call.deaths >= DEATHS:
                call.answer(CallResult("killed", stderr="the call ended its sandbox each time it was run\n"))
            else:
                self._waiting[call.lane].appendleft(call)
        self._assign()

    def _cell_done(self, call: _RunningCall, sandbox: Sandbox, result: CallResult | None) -> None:
        """A cell ended; None: its sandbox did, and with it the session."""
        session = self.sessions.get(call.task.session)
        if result is None and sandbox.over_memory:
            result = TOO_MUCH_MEMORY
        result = result or _lost(call.task)
        if session is not None and result.session_lives:
            session.used, session.running = time.monotonic(), False
        elif session is not None:
            self._forget(call.task.session)
        call.answer(result)

    def _forget(self, id: str) -> None:
        """A session is no more."""
        session = self.sessions.pop(id)
        self._ended.add(id)
        for call in session.cells:
            call.answer(_lost(call.task))


def _lost(task: QueuedCall) -> CallResult:
    return CallResult("session_lost", stderr=f"the session {task.session} is no more\n")
