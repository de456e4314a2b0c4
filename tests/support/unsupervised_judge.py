"""A local judge whose processes are not supervised, so that a test or benchmark can kill and start each of them.

The command lines and readiness probes are those of the product (`rstar2_train/judge/local.py`).
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Awaitable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from rstar2_train.judge.local import READY_SECONDS, LocalJudge
from rstar2_train.judge.sandbox.oci_bundle import Isolation
from rstar2_train.judge.types import DRAIN_SECONDS
from rstar2_train.rewards.equality_program import sandbox_package
from rstar2_train.utils.auth import JUDGE_TOKEN, read_secret
from rstar2_train.utils.ports import free_ports
from rstar2_train.utils.supervisor import Child

T = TypeVar("T")
STOP_SECONDS = DRAIN_SECONDS + 10
"""Grace period of each process."""


class UnsupervisedJudge:
    """`with UnsupervisedJudge(folder) as judge:` starts Redis, the API and a worker.

    `folder` holds logs, the data of Redis and the state of the worker. Raises RuntimeError with the end of a log when a
    process does not become ready.
    """

    def __init__(
        self,
        folder: Path,
        *,
        executors: int = 2,
        isolation: Isolation = "gvisor",
        lanes: tuple[str, ...] = (),
        api_arguments: tuple[str, ...] = (),
        worker_arguments: tuple[str, ...] = (),
        executors_at: str = "",
        key_file: Path | None = None,
        packages: Path | None = None,
    ) -> None:
        """`lanes`: lanes of the sandboxes, empty for all; `bare` alone starts much faster. `executors_at`: HOST:PORT of
        executors in pods, with `key_file`, instead of sandboxes of the worker.
        `packages`: folder of a job's packages."""
        redis_port, port = free_ports(2)
        remote = ("--executors-at", executors_at, "--key-file", str(key_file)) if executors_at else ()
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._judge = LocalJudge(
            folder,
            port=port,
            redis_port=redis_port,
            executors=0 if executors_at else executors,
            isolation=isolation,
            packages=packages,
            sandbox_packages=(sandbox_package(),),
            token=read_secret(JUDGE_TOKEN),
            api_arguments=api_arguments,
            worker_arguments=(*remote, *worker_arguments, *(("--lanes", *lanes) if lanes else ())),
        )
        self.url, self.port, self.redis_port = self._judge.url, port, redis_port
        self.redis_url, self.password = self._judge.redis_url, self._judge.redis_password

    def __enter__(self) -> UnsupervisedJudge:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.start_redis()
            self.start_api()
            self.start_worker()
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def start_redis(self) -> None:
        """Start Redis, with its earlier data, and wait until it is ready."""
        self._start("redis", self._judge.redis())

    def start_api(self) -> None:
        """Start the API and wait until it is ready."""
        self._start("api", self._judge.api())

    def start_worker(self, name: str = "worker") -> None:
        """Start a worker. Several workers need different names."""
        child = self._judge.worker(state=f"{name}-state")
        self.spawn(name, list(child.argv), dict(child.env))

    def wait_ready(self, executors: int = 1) -> None:
        """Wait until `executors` sandboxes are ready."""
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            status = _run(self._judge.status())
            if status is not None and status["executors"]["ready"] >= executors:
                return
            for name in self.processes:
                self._check(name)
            time.sleep(0.05)
        raise RuntimeError(f"no sandbox was ready after {READY_SECONDS:.0f} s:\n{self.log('worker')}")

    def status(self) -> dict[str, Any]:
        """Return the status of the API, which answers within seconds. Raises RuntimeError if there is none."""
        deadline = time.monotonic() + READY_SECONDS
        while (status := _run(self._judge.status())) is None:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the API returns no status:\n{self.log('api')}")
            time.sleep(0.05)
        return status

    def report(self) -> dict[str, Any]:
        """Return the report of the only worker. Those of killed workers, and of one that paused, expire."""
        deadline = time.monotonic() + READY_SECONDS
        while len(reports := self.status()["workers"]) != 1:
            if time.monotonic() > deadline:
                raise RuntimeError(f"there are {len(reports)} reports of workers:\n{self.log('worker')}")
            time.sleep(0.05)
        report: dict[str, Any] = reports[0]
        return report

    @contextmanager
    def paused(self, name: str) -> Iterator[None]:
        """Stop a process (SIGSTOP) until the end of the context."""
        process = self.processes[name]
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    def kill(self, name: str, signum: int = signal.SIGKILL) -> None:
        """Send a signal to a process and wait for its end."""
        process = self.processes.pop(name)
        process.send_signal(signum)
        process.wait(60)

    def stop(self) -> None:
        """Stop all processes: workers first, Redis last."""
        order = sorted(self.processes, key=lambda name: {"redis": 2, "api": 1}.get(name, 0))
        for name in order:
            process = self.processes.pop(name)
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def log(self, name: str) -> str:
        """Return the end of a process's log."""
        return (self.folder / f"{name}.log").read_text(errors="replace")[-4000:]

    def spawn(self, name: str, argv: list[str], env: dict[str, str]) -> None:
        """Start a process under this name. `env`: added to the environment."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=os.environ | env
            )

    def _start(self, name: str, child: Child) -> None:
        self.spawn(name, list(child.argv), dict(child.env))
        deadline = time.monotonic() + child.ready_seconds
        while child.ready is not None and not _run(child.ready()):
            self._check(name)
            if time.monotonic() > deadline:
                raise RuntimeError(f"{name} was not ready after {child.ready_seconds:.0f} s:\n{self.log(name)}")
            time.sleep(0.02)

    def _check(self, name: str) -> None:
        process = self.processes[name]
        if process.poll() is not None:
            raise RuntimeError(f"{name} exited with code {process.returncode}:\n{self.log(name)}")


def _run(probe: Awaitable[T]) -> T:
    """Run a probe in a thread of its own: the caller may run in an event loop."""

    async def run() -> T:
        return await probe

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, run()).result()
