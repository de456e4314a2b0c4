"""Starts, watches, restarts and stops the child processes of `rstar2 run`.

Each child is what a pod is in a cluster: it has a name, a log file, a readiness probe, and is restarted with back-off
when it dies. A child dies with its parent (PDEATHSIG), is in a session of its own (Ctrl-C reaches only the parent,
which then stops all in order), and what an earlier run left behind is found by pid and start time and ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from rstar2_train.utils.files import write_atomically

_PR_SET_PDEATHSIG = 1
STARTED = "--- starting at "
"""First words of the line that a child's log has for each of its starts."""
_LIBC = ctypes.CDLL(None, use_errno=True)


class ChildFailed(Exception):
    """A child could not be started, or keeps dying. The message shows the end of its log, then says so in one line."""


@dataclass(frozen=True)
class Child:
    """What to run, and how to tell that it is ready."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to this process's environment."""
    ready: Callable[[], Awaitable[bool]] | None = None
    """Asked until it says yes; None: ready once started."""
    ready_seconds: float = 120
    advice: str = ""
    """Which fields of the manifest to look at when it cannot be started or keeps dying."""
    max_restarts: int = 5
    """Restarts within ten minutes before the child is given up."""
    stop_seconds: float = 10
    """Grace between SIGTERM and SIGKILL."""


@dataclass
class _Running:
    child: Child
    process: asyncio.subprocess.Process
    restarts: list[float] = field(default_factory=list)
    ready: bool = False


class Supervisor:
    """Runs children until `stop`. All methods belong to one event loop."""

    def __init__(self, *, logs: Path, register: Path, say: Callable[[str], None]) -> None:
        """`logs`: folder of the children's logs; `register`: file with their pids, for the next run to find; `say`:
        tells a person of a restart."""
        self._logs = logs
        self._say = say
        self._register = register
        self._running: dict[str, _Running] = {}
        self._watchers: set[asyncio.Task[None]] = set()
        self._stopping = False
        self.given_up: asyncio.Future[ChildFailed] = asyncio.get_running_loop().create_future()
        """Set when a child keeps dying."""
        logs.mkdir(parents=True, exist_ok=True)

    async def start(self, child: Child) -> None:
        """Start a child, keep it running, and return when it is ready. Raises ChildFailed."""
        running = _Running(child, await self._spawn(child))
        self._running[child.name] = running
        watcher = asyncio.create_task(self._watch(running))
        self._watchers.add(watcher)
        await self._until_ready(running)

    async def run(self, child: Child) -> int:
        """Run a child once to its end and return its exit code; it is not restarted."""
        process = await self._spawn(child)
        self._running[child.name] = _Running(child, process, ready=True)
        try:
            return await process.wait()
        finally:
            if process.returncode is not None:
                _kill_session(process.pid)  # what it started and left behind
                del self._running[child.name]
                self._write_register()

    def give_up(self, error: ChildFailed) -> None:
        """Say that the run cannot go on."""
        if not self.given_up.done():
            self.given_up.set_result(error)

    def signal(self, name: str, signum: signal.Signals) -> None:
        """Send a signal to a child, if it is running."""
        running = self._running.get(name)
        if running is not None and running.process.returncode is None:
            running.process.send_signal(signum)

    def log(self, name: str) -> Path:
        """The log file of a child."""
        return self._logs / f"{name}.log"

    def health(self) -> dict[str, str]:
        """A word on each child: ready, starting, restarting."""
        words = {}
        for name, running in self._running.items():
            alive = running.process.returncode is None
            word = ("ready" if running.ready else "starting") if alive else "restarting"
            words[name] = word + (f" ({len(running.restarts)} restarts)" if running.restarts else "")
        return words

    async def stop(self, *names: str) -> None:
        """Stop the named children, or all, last started first; SIGKILL after each one's grace."""
        everything = not names
        self._stopping = self._stopping or everything
        for name in reversed(list(self._running) if everything else list(names)):
            running = self._running.pop(name, None)
            if running is not None:
                await _end(running.process, running.child.stop_seconds)
        if everything:
            await asyncio.gather(*self._watchers, return_exceptions=True)
        self._write_register()

    async def _spawn(self, child: Child) -> asyncio.subprocess.Process:
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

    async def _until_ready(self, running: _Running) -> None:
        child = running.child
        deadline = time.monotonic() + child.ready_seconds
        process = running.process
        while child.ready is not None and not await child.ready():
            if process.returncode is not None:
                raise self._failed(child, f"{_ended_how(process.returncode)} before it was ready")
            if time.monotonic() > deadline:
                raise self._failed(child, f"was not ready after {child.ready_seconds:.0f} s")
            await asyncio.sleep(0.1)
        running.ready = True

    async def _watch(self, running: _Running) -> None:
        child = running.child
        while True:
            code = await running.process.wait()
            _kill_session(running.process.pid)  # an engine that was killed leaves its model's process behind
            if self._stopping or self._running.get(child.name) is not running:
                return
            if not running.ready and not running.restarts:
                return  # `start` reports it
            running.ready = False
            now = time.monotonic()
            running.restarts = [*(t for t in running.restarts if now - t < 600), now]
            if len(running.restarts) > child.max_restarts:
                words = f"died {len(running.restarts)} times: the last time it {_ended_how(code)}"
                self.give_up(self._failed(child, words))
                return
            self._say(f"{child.name} {_ended_how(code)}; starting it again")
            await asyncio.sleep(min(0.2 * 2 ** (len(running.restarts) - 1), 5))
            if self._stopping or self._running.get(child.name) is not running:
                return
            running.process = await self._spawn(child)
            try:
                await self._until_ready(running)
                self._say(f"{child.name} is ready again")
            except ChildFailed:
                continue  # its exit is counted at the top; a hung one is ended first
            finally:
                if not running.ready and running.process.returncode is None:
                    await _end(running.process, child.stop_seconds)

    def _failed(self, child: Child, words: str) -> ChildFailed:
        advice = f"; {child.advice}" if child.advice else ""
        return ChildFailed(self.ending(child.name, f"{child.name} {words}{advice}"))

    def ending(self, name: str, words: str) -> str:
        """The last lines of a child's log, then `words` on how it ended, with the log's path, as the last line."""
        log = self.log(name)
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        lines = text.rpartition(STARTED)[2].splitlines()[1:][-8:]  # of its last start, not of those before
        return "\n".join([f"last lines of {log}:", *(f"  {line}" for line in lines), f"{words} (log: {log})"])

    def _write_register(self, *starting: tuple[str, asyncio.subprocess.Process]) -> None:
        alive = [(name, one.process) for name, one in self._running.items() if one.process.returncode is None]
        entries = []
        for name, process in [*alive, *starting]:
            if psutil.pid_exists(process.pid):
                started = psutil.Process(process.pid).create_time()
                entries.append({"name": name, "pid": process.pid, "started": started})
        write_atomically(self._register, json.dumps(entries))


def _ended_how(code: int) -> str:
    """What an exit code says: a signal's name where it was one."""
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"


async def _end(process: asyncio.subprocess.Process, grace: float) -> None:
    """SIGTERM, wait, then SIGKILL to its whole session."""
    if process.returncode is None:
        process.terminate()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await process.wait()
    _kill_session(process.pid)
    await process.wait()


def _kill_session(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)  # the child is its session's leader, so its pid is the group's
    except ProcessLookupError:
        return


def _session(pid: int) -> list[psutil.Process]:
    """Processes of the session that `pid` began."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(process.pid) == pid:
                found.append(process)
    return found


def die_with_parent() -> None:
    """In a new process, before it becomes the child: it gets SIGTERM when its parent is gone."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def end_leftovers(register: Path) -> int:
    """End what an earlier run, killed without warning, left running. Returns how many there were."""
    if not register.exists():
        return 0
    left: list[psutil.Process] = []
    for entry in json.loads(register.read_text(encoding="utf-8")):
        try:
            process = psutil.Process(entry["pid"])
            if process.create_time() == entry["started"]:
                left += [process, *process.children(recursive=True)]
        except psutil.NoSuchProcess:  # its number is nobody else's as long as there is anyone in its session
            left += _session(entry["pid"])
    for process in left:
        _quietly(process.terminate)
    _, alive = psutil.wait_procs(left, timeout=10)
    for process in alive:
        _quietly(process.kill)
    psutil.wait_procs(alive, timeout=5)
    register.unlink()
    return len(left)


def _quietly(action: Callable[[], None]) -> None:
    try:
        action()
    except psutil.NoSuchProcess:
        return
