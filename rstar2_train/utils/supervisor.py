"""Start, watch, restart and stop child processes: the supervisor of every command that runs more than one process.

A child is to one machine what a pod is to a cluster. It has a name, a log file and a readiness probe, and is restarted
with backoff when it dies. A child gets SIGTERM when its parent dies (PDEATHSIG), and `leftovers.py` stops it if it
remains. Each child has a session of its own, so that Ctrl-C reaches only the parent, which then stops the children in
order. The next run, too, stops children that a killed parent left behind: it finds them by pid and start time.

    rstar2 run | eval | filter | serve | judge
        `- Supervisor.run_until_stopped(work)     signals and failed children stop the work
             `- Supervisor.start(Child)           spawn, probe, watch, restart
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil

from rstar2_train.utils.files import write_atomically
from rstar2_train.utils.terminal import stop_signals

_PR_SET_PDEATHSIG = 1
STARTED = "--- starting at "
"""Prefix of the line that a child's log gets at each start."""
RESTART_WINDOW_SECONDS = 600.0
"""Restarts older than this do not count towards `Child.max_restarts`."""
_LIBC = ctypes.CDLL(None, use_errno=True)
_T = TypeVar("_T")


class ChildFailed(Exception):
    """A child did not start, or keeps dying. The message is the end of its log, then one line with the cause."""


class StopRequested(Exception):
    """A signal asked this process to stop."""

    def __init__(self, signum: signal.Signals) -> None:
        super().__init__(f"stopped by {signum.name}")
        self.signum = signum

    @property
    def exit_code(self) -> int:
        """Exit code of a process that a signal stopped, as a shell reports it."""
        return 128 + self.signum


@dataclass(frozen=True)
class Child:
    """Command line of a child process, its readiness probe and its limits."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables added to this process's environment."""
    ready: Callable[[], Awaitable[bool]] | None = None
    """Readiness probe, called until it returns True. None: ready when started."""
    ready_seconds: float = 120
    """Deadline of the readiness probe."""
    advice: str = ""
    """Settings to check when the child does not start or keeps dying; part of the error message."""
    max_restarts: int = 5
    """Restarts within RESTART_WINDOW_SECONDS before the child counts as failed."""
    stop_seconds: float = 10
    """Grace period between SIGTERM and SIGKILL."""


@dataclass
class _Running:
    child: Child
    process: asyncio.subprocess.Process
    restarts: list[float] = field(default_factory=list)
    ready: bool = False


class Supervisor:
    """Runs children until `stop`. All methods belong to one event loop.

    As an async context manager it handles the signals that ask this process to stop, and stops all children at the end.
    """

    def __init__(self, *, logs: Path, register: Path, notify: Callable[[str], None]) -> None:
        """`logs`: folder of the children's logs. `register`: file that lists their pids, for the next run to read.
        `notify`: prints a message about a restart to the user."""
        self._logs = logs
        self._notify = notify
        self._register = register
        self._running: dict[str, _Running] = {}
        self._watchers: set[asyncio.Task[None]] = set()
        self._closing = False
        self._stop_signal: signal.Signals | None = None
        self._on_stop: Callable[[], object] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        """Started before the first child."""
        self.failure: ChildFailed | None = None
        """The first failure that ends the run: a child that keeps dying, or what `fail` was given."""
        logs.mkdir(parents=True, exist_ok=True)

    async def __aenter__(self) -> Supervisor:
        loop = asyncio.get_running_loop()
        for signum in stop_signals():
            loop.add_signal_handler(signum, self._receive, signum)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        for signum in stop_signals():
            asyncio.get_running_loop().remove_signal_handler(signum)

    async def run_until_stopped(
        self, work: Coroutine[Any, Any, _T], *, on_stop: Callable[[], object] | None = None
    ) -> _T:
        """Run `work` until it returns, a signal asks this process to stop, or a child fails; return its result.

        `on_stop`: called when the run must stop, and again at each further signal; it makes `work` return. Default:
        `work` is cancelled. Raises ChildFailed after the failure of a child, StopRequested when a signal cancelled
        `work`, and the errors of `work`.
        """
        task = asyncio.create_task(work)
        self._on_stop = on_stop or task.cancel
        if self.failure is not None or self._stop_signal is not None:
            self._on_stop()
        try:
            await asyncio.wait({task})
        finally:
            self._on_stop = None
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self.failure is not None:
            raise self.failure
        if task.cancelled() and self._stop_signal is not None:
            raise StopRequested(self._stop_signal)
        return task.result()

    def _receive(self, signum: signal.Signals) -> None:
        self._stop_signal = self._stop_signal or signum
        if self._on_stop is not None:
            self._on_stop()

    def fail(self, error: ChildFailed) -> None:
        """End the run with this error. A run that is already stopping, or has failed, is not stopped again."""
        if self.failure is not None:
            return
        self.failure = error
        if self._on_stop is not None and self._stop_signal is None:
            self._on_stop()

    async def start(self, child: Child) -> None:
        """Start a child and return when it is ready. It is restarted until `stop`. Raises ChildFailed."""
        running = _Running(child, await self._spawn(child))
        self._running[child.name] = running
        watcher = asyncio.create_task(self._watch(running))
        self._watchers.add(watcher)
        await self._wait_ready(running)

    async def run(self, child: Child) -> int:
        """Run a child once and return its exit code. It is not restarted."""
        process = await self._spawn(child)
        self._running[child.name] = _Running(child, process, ready=True)
        try:
            return await process.wait()
        finally:
            if process.returncode is not None:
                _kill_session(process.pid)  # its own children may still run
                del self._running[child.name]
                self._write_register()

    def signal(self, name: str, signum: signal.Signals) -> None:
        """Send a signal to a child, if it is running."""
        running = self._running.get(name)
        if running is not None and running.process.returncode is None:
            running.process.send_signal(signum)

    def log(self, name: str) -> Path:
        """Return the log file of a child."""
        return self._logs / f"{name}.log"

    def health(self) -> dict[str, str]:
        """Return the state of each child: ready, starting or restarting, with the number of restarts."""
        states = {}
        for name, running in self._running.items():
            alive = running.process.returncode is None
            state = ("ready" if running.ready else "starting") if alive else "restarting"
            restarts = len(running.restarts)
            states[name] = state + (f" ({restarts} restart{'s' if restarts > 1 else ''})" if restarts else "")
        return states

    async def stop(self, *names: str) -> None:
        """Stop the named children, or all of them, last started first. SIGKILL follows after each grace period."""
        stop_all = not names
        self._closing = self._closing or stop_all
        for name in reversed(list(self._running) if stop_all else list(names)):
            running = self._running.pop(name, None)
            if running is not None:
                await _terminate(running.process, running.child.stop_seconds)
        if stop_all:
            await asyncio.gather(*self._watchers, return_exceptions=True)
        self._write_register()
        if stop_all and self._guard is not None:
            self._guard.kill()
            self._guard.communicate()

    def _start_guard(self) -> None:
        command = [sys.executable, "-m", "rstar2_train.utils.leftovers", str(self._register), str(os.getpid())]
        self._guard = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    async def _spawn(self, child: Child) -> asyncio.subprocess.Process:
        if self._guard is None:
            self._start_guard()
        with self.log(child.name).open("ab") as log:
            log.write(f"{STARTED}{time.strftime('%Y-%m-%d %H:%M:%S')} {child.argv[0]}\n".encode())
            log.flush()
            process = await asyncio.create_subprocess_exec(
                *child.argv,
                env=os.environ | dict(child.env),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        self._write_register((child.name, process))
        return process

    async def _wait_ready(self, running: _Running) -> None:
        child = running.child
        deadline = time.monotonic() + child.ready_seconds
        process = running.process
        while child.ready is not None and not await child.ready():
            if process.returncode is not None:
                raise self._failed(child, f"{describe_exit(process.returncode)} before it was ready")
            if time.monotonic() > deadline:
                raise self._failed(child, f"was not ready after {child.ready_seconds:.0f} s")
            await asyncio.sleep(0.1)
        running.ready = True

    def _is_released(self, running: _Running) -> bool:
        return self._closing or self._running.get(running.child.name) is not running

    async def _watch(self, running: _Running) -> None:
        child = running.child
        while True:
            code = await running.process.wait()
            _kill_session(running.process.pid)  # a killed engine leaves the process of its model behind
            if self._is_released(running):
                return
            if not running.ready and not running.restarts:
                return  # `start` reports it
            running.ready = False
            now = time.monotonic()
            running.restarts = [*(t for t in running.restarts if now - t < RESTART_WINDOW_SECONDS), now]
            if len(running.restarts) > child.max_restarts:
                cause = f"died {len(running.restarts)} times; the last time it {describe_exit(code)}"
                self.fail(self._failed(child, cause))
                return
            self._notify(f"{child.name} {describe_exit(code)}; restarting it")
            await asyncio.sleep(min(0.2 * 2 ** (len(running.restarts) - 1), 5))
            if self._is_released(running):
                return
            running.process = await self._spawn(child)
            try:
                await self._wait_ready(running)
                self._notify(f"{child.name} is ready again")
            except ChildFailed:
                continue  # the next pass counts its exit; a child that hangs is stopped first
            finally:
                if not running.ready and running.process.returncode is None:
                    await _terminate(running.process, child.stop_seconds)

    def _failed(self, child: Child, cause: str) -> ChildFailed:
        advice = f"; {child.advice}" if child.advice else ""
        return ChildFailed(self.log_excerpt(child.name, f"{child.name} {cause}{advice}"))

    def log_excerpt(self, name: str, cause: str) -> str:
        """Return the last lines that a child logged since its last start, then one line with `cause` and the path."""
        log = self.log(name)
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        lines = text.rpartition(STARTED)[2].splitlines()[1:][-8:]
        return "\n".join([f"last lines of {log}:", *(f"  {line}" for line in lines), f"{cause} (log: {log})"])

    def _write_register(self, *starting: tuple[str, asyncio.subprocess.Process]) -> None:
        alive = [(name, child.process) for name, child in self._running.items() if child.process.returncode is None]
        entries = []
        for name, process in [*alive, *starting]:
            with contextlib.suppress(psutil.NoSuchProcess):  # it may have exited
                started = psutil.Process(process.pid).create_time()
                entries.append({"name": name, "pid": process.pid, "started": started, "parent": os.getpid()})
        write_atomically(self._register, json.dumps(entries))


@contextlib.contextmanager
def temporary_state(prefix: str) -> Iterator[Path]:
    """Yield a temporary folder for the children's state and logs. It is kept after ChildFailed, which names a log."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    keep = False
    try:
        yield folder
    except ChildFailed:
        keep = True
        raise
    finally:
        if not keep:
            shutil.rmtree(folder)


async def gather_or_cancel(*work: Coroutine[Any, Any, Any]) -> list[Any]:
    """Run coroutines at the same time and return their results.

    If one raises, the others are cancelled and waited for; then its error is raised.
    """
    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(coroutine) for coroutine in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def describe_exit(code: int) -> str:
    """Return what an exit code means: an exit code, or the name of the signal that killed the process."""
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"


async def _terminate(process: asyncio.subprocess.Process, grace: float) -> None:
    """Send SIGTERM, wait, then send SIGKILL to the whole session."""
    if process.returncode is None:
        process.terminate()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await process.wait()
    _kill_session(process.pid)
    await process.wait()


def _kill_session(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)  # the child leads its session, so its pid is that of the group
    except ProcessLookupError:
        return


def die_with_parent() -> None:
    """Ask the kernel for SIGTERM at the death of the parent. For a new process, before it executes its program."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
