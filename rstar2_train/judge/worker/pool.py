"""Schedules calls on the sandboxes of one worker and answers them.

    worker ──submit──▶ SandboxPool ──write──▶ Lane of a Sandbox
                         │  │  └─ running_call: run it again, or answer it
                         │  └──── sessions, memory_watch: where sessions live, what calls hold
                         └─────── sandbox_supervisor: start, check, replace sandboxes

A call whose sandbox ended runs again, in another sandbox; it gets status `killed` only after MAX_SANDBOX_DEATHS
sandboxes ended while they ran it. A cell never runs again: its session ended with the sandbox. So a call that was
running when its sandbox ended is a suspect: it runs again only in a sandbox without sessions.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Set

from rstar2_train.judge.process_exit import ProcessExit, to_result
from rstar2_train.judge.sandbox.base import Lane, Sandbox, SandboxError
from rstar2_train.judge.sandbox.rootfs import package_modules
from rstar2_train.judge.types import SESSION_IDLE_SECONDS, CallResult, QueuedCall
from rstar2_train.judge.worker.lanes import choose_lane
from rstar2_train.judge.worker.memory_watch import MemoryWatch
from rstar2_train.judge.worker.provider import SandboxProvider
from rstar2_train.judge.worker.running_call import TOO_MUCH_MEMORY, RunningCall
from rstar2_train.judge.worker.sandbox_supervisor import SandboxSupervisor
from rstar2_train.judge.worker.sessions import SessionTable, session_lost
from rstar2_train.utils.event_loop import LATE_SECONDS

log = logging.getLogger("rstar2.judge.pool")

DEPTH = 2
"""Calls in flight per sandbox: one runs, the next one waits in the pipe, so that the sandbox is never idle."""
GRACE_SECONDS = 10.0
"""Time that a call may take beyond its limits before its sandbox counts as stuck."""
IDLE_CHECK_SECONDS = 5.0
PAUSE_SECONDS = 15.0
"""Time without calls and sessions after which a sandbox is paused. Its lanes drop their prepared processes before."""


class SandboxPool:
    """`start` it, `submit` calls, `stop` it. `ready` is the number of sandboxes that take calls."""

    def __init__(self, provider: SandboxProvider, *, session_idle_seconds: float = SESSION_IDLE_SECONDS) -> None:
        self.sessions = SessionTable()
        self.supervisor = SandboxSupervisor(provider, on_open=self._opened, on_end=self.sessions.end_in_sandbox)
        self._memory = MemoryWatch(self.sessions)
        self._session_idle = session_idle_seconds
        self._packages = package_modules()
        self._waiting: dict[str, deque[RunningCall]] = {lane: deque() for lane in provider.lanes}
        self._suspects: list[RunningCall] = []
        """Calls that wait for a sandbox without sessions, because their last sandbox ended while it ran them."""
        self._opening: deque[RunningCall] = deque()
        """First cells of sessions that wait for a sandbox with a free slot."""
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def size(self) -> int:
        """Sandboxes that this worker should have."""
        return self.supervisor.size

    @property
    def ready(self) -> int:
        """Sandboxes that take calls."""
        return len(self.supervisor.sandboxes)

    @property
    def busy(self) -> int:
        """Sandboxes with a call in flight."""
        return sum(1 for sandbox in self.supervisor.sandboxes if sandbox.in_flight)

    def start(self) -> None:
        """Start the sandboxes in the background."""
        self.supervisor.start()
        watching = self._memory.run(self.supervisor.sandboxes)
        self._tasks = [
            asyncio.create_task(loop) for loop in (watching, self._close_idle_sessions(), self._pause_idle())
        ]

    async def stop(self) -> None:
        """Kill all sandboxes."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.supervisor.stop()

    async def choose_lane(self, call: QueuedCall) -> str:
        """Return the lane for a call; for a cell any, because its session has a lane. Does not hold the event loop."""
        if call.in_session:
            return "bare"
        return await asyncio.to_thread(choose_lane, call.code, self._waiting, packages=self._packages)

    def submit(self, call: QueuedCall, lane: str = "bare") -> asyncio.Future[CallResult]:
        """Queue a call. `lane`: from `choose_lane`. The future never fails; it may be cancelled."""
        future: asyncio.Future[CallResult] = asyncio.get_running_loop().create_future()
        running = RunningCall(call, lane, future)
        if not call.in_session:
            self._waiting[lane].append(running)
        elif call.verb == "open":
            self._opening.append(running)
        elif session := self.sessions.get(call.session):
            session.cells.append(running)
        else:
            running.answer(session_lost(call))
        self._assign()
        return future

    def reserve_session(self, id: str) -> bool:
        """Reserve a slot for a new session; return False if no slot is free."""
        return self.sessions.reserve(id, sandboxes=self.ready)

    async def _close_idle_sessions(self) -> None:
        while True:
            await asyncio.sleep(min(IDLE_CHECK_SECONDS, self._session_idle / 2))
            for id in self.sessions.idle_since(time.monotonic() - self._session_idle):
                self.submit(QueuedCall.build_close(id))

    async def _pause_idle(self) -> None:
        """Pause each sandbox that has been idle for PAUSE_SECONDS."""
        while True:
            await asyncio.sleep(IDLE_CHECK_SECONDS)
            for sandbox in self.supervisor.sandboxes:
                open_lanes = all(lane.admitted for lane in sandbox.lanes.values())
                idle = open_lanes and not sandbox.in_flight and not self.sessions.in_sandbox(sandbox)
                if idle and time.monotonic() - sandbox.last_used >= PAUSE_SECONDS:
                    sandbox.pause()

    def _opened(self, sandbox: Sandbox) -> None:
        self._memory.lane_opened(sandbox)
        self._assign()

    def _assign(self) -> None:
        """Write waiting calls to free sandboxes.

        Cells are first, and calls must not occupy the sandbox that a cell waits for: it can run nowhere else.
        """
        reserved = set()
        for id, session in self.sessions.items():
            if not session.lane.admitted:  # its sandbox has just ended
                self.sessions.end(id)
            elif session.cells and not session.sandbox.in_flight:
                session.running = True
                self._write(session.cells.popleft(), session.sandbox, session.lane, session.slot)
            if session.cells:
                reserved.add(session.sandbox)
        while self._opening and (target := self._find_slot()):
            if target[0].in_flight:
                reserved.add(target[0])
                break
            self._write(self._opening.popleft(), *target)
        for suspect in list(self._suspects):
            if target_lane := self._find_lane(suspect, reserved):
                self._suspects.remove(suspect)
                self._write(suspect, *target_lane)
        for queue in self._waiting.values():
            while queue:
                if target_lane := self._find_lane(queue[0], reserved):
                    self._write(queue.popleft(), *target_lane)
                elif queue[0].sandbox_deaths:
                    self._suspects.append(queue.popleft())
                else:
                    break

    def _find_lane(self, running: RunningCall, reserved: Set[Sandbox]) -> tuple[Sandbox, Lane] | None:
        """Return the lane for a call: of an idle sandbox not in `reserved`, else behind one call of it.

        Sandboxes with the fewest sessions are first: a call that ends its sandbox ends them too.
        """
        best: tuple[Sandbox, Lane] | None = None
        for sandbox in sorted(self.supervisor.sandboxes, key=self._session_count):
            lane = sandbox.lanes[running.lane]
            if not lane.admitted or sandbox in reserved or self._memory.account(sandbox).retiring:
                continue
            if running.sandbox_deaths and self._session_count(sandbox):
                continue
            in_flight = sandbox.in_flight
            if in_flight == 0:
                return sandbox, lane
            if in_flight < DEPTH and len(lane.in_flight) == in_flight:
                best = (sandbox, lane)
        return best

    def _session_count(self, sandbox: Sandbox) -> int:
        return len(self.sessions.in_sandbox(sandbox))

    def _find_slot(self) -> tuple[Sandbox, Lane, int] | None:
        """Return the slot for the next session: in the sandbox with the fewest sessions and calls, in the lane with the
        most packages. A last sandbox without sessions is left to suspects."""
        sandboxes = self.supervisor.sandboxes
        kept = [sandbox for sandbox in sandboxes if not self._session_count(sandbox)] if self._suspects else []
        for sandbox in sorted(sandboxes, key=lambda sandbox: self._session_count(sandbox) + sandbox.in_flight):
            if kept == [sandbox]:
                continue
            lane = next((lane for lane in reversed(sandbox.lanes.values()) if lane.admitted), None)
            slot = self.sessions.free_slot(sandbox)
            if lane is not None and slot is not None and not self._memory.account(sandbox).retiring:
                return sandbox, lane, slot
        return None

    def _write(self, running: RunningCall, sandbox: Sandbox, lane: Lane, slot: int = 0) -> None:
        if running.future.done():
            return
        call = running.call
        self._memory.call_written(sandbox, call.limits.memory_mib << 20, is_next=not lane.in_flight)
        if call.verb == "open":  # after the watch has counted what the sandbox holds without this session
            self.sessions.open(call, sandbox, lane, slot)
        patience = sum(lane.time_limits) + call.limits.wall_seconds + GRACE_SECONDS
        self._set_timer(running, sandbox, patience)
        lane.submit(call, slot=slot).add_done_callback(lambda done: self._done(running, sandbox, done))

    def _set_timer(self, running: RunningCall, sandbox: Sandbox, seconds: float) -> None:
        due = time.monotonic() + seconds
        running.timer = asyncio.get_running_loop().call_later(seconds, self._stop_stuck, running, sandbox, due)

    def _stop_stuck(self, running: RunningCall, sandbox: Sandbox, due: float) -> None:
        if time.monotonic() - due > LATE_SECONDS:  # an answer may still wait to be read
            self._set_timer(running, sandbox, GRACE_SECONDS)
            return
        log.error("Sandbox %s did not answer within the limits of its calls; replacing it.", sandbox.id)
        sandbox.mark_dead()

    def _done(self, running: RunningCall, sandbox: Sandbox, done: asyncio.Future[ProcessExit]) -> None:
        """Answer a call whose process or sandbox ended, or queue it again."""
        running.stop_timer()
        if sandbox.in_flight:
            self._memory.call_started(sandbox)
        error, over_memory = done.exception(), self._memory.account(sandbox).over_limit
        run_seconds = error.run_seconds if isinstance(error, SandboxError) else 0.0
        if running.call.in_session:
            result = None if error else to_result(done.result())
            self._cell_done(running, result, over_memory=over_memory, run_seconds=run_seconds)
        else:
            if error is None:
                result = running.result_of_exit(done.result())
            else:
                result = running.result_of_sandbox_death(
                    was_running=isinstance(error, SandboxError) and error.running,
                    run_seconds=run_seconds,
                    over_memory=over_memory and not self.sessions.in_sandbox(sandbox),  # else a session may hold it
                )
            if result is None and running.sandbox_deaths:
                # Behind the other calls: if sandboxes end for another reason, it is not the running call each time.
                self._waiting[running.lane].append(running)
            elif result is None:
                self._waiting[running.lane].appendleft(running)
            else:
                running.answer(result)
        self._assign()

    def _cell_done(
        self, running: RunningCall, result: CallResult | None, *, over_memory: bool, run_seconds: float
    ) -> None:
        """Answer a cell. `result` is None if the sandbox ended, and the session with it."""
        if result is None and over_memory:
            result = CallResult("memory", stderr=TOO_MUCH_MEMORY, run_seconds=run_seconds)
        elif result is None:
            result = session_lost(running.call)
        session = self.sessions.get(running.call.session)
        if session is not None and result.session_lives:
            session.last_used, session.running = time.monotonic(), False
        elif session is not None:
            self.sessions.end(running.call.session)
        running.answer(result)
