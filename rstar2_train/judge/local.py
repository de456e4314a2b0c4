"""A whole judge on this machine, in one call: Redis, API and worker as child processes on free ports.

For the tests of every room that calls tools, and for benches. `rstar2 run` starts the same commands by itself.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from rstar2_train.judge.sandbox.oci_bundle import Isolation
from rstar2_train.judge.types import DRAIN_SECONDS
from rstar2_train.utils.auth import secret
from rstar2_train.utils.dns import join_address

READY_SECONDS = 180.0
STOP_SECONDS = DRAIN_SECONDS + 10
"""A part that has not ended by then is killed."""


def free_port() -> int:
    """A loopback port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class LocalJudge:
    """`with JudgeStack(folder) as stack:` then use `stack.url` with a JudgeClient.

    `folder` gets logs, Redis's append-only file and the worker's state. Raises RuntimeError, with the end of the log,
    when a part does not become ready. The parts can be killed and started again one by one.
    """

    folder: Path
    executors: int = 2
    isolation: Isolation = "gvisor"
    lanes: tuple[str, ...] = ()
    """Lanes of the sandboxes; empty: all. A judge with `bare` alone starts much faster."""
    api_arguments: tuple[str, ...] = ()
    worker_arguments: tuple[str, ...] = ()
    executors_at: str = ""
    """HOST:PORT of executors in pods, instead of sandboxes of the worker's own, with `key_file`."""
    key_file: Path | None = None
    processes: dict[str, subprocess.Popen[str]] = field(default_factory=dict)
    host: str = "127.0.0.1"
    port: int = 0
    redis_port: int = 0
    password: str = field(default_factory=lambda: secrets.token_hex(16))

    @property
    def url(self) -> str:
        """Where the API is asked from here."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://{join_address(host, self.port)}"

    @property
    def redis_url(self) -> str:
        """Where Redis listens; its password is `password`."""
        return f"redis://127.0.0.1:{self.redis_port}/0"

    def __enter__(self) -> LocalJudge:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Starts all three and waits until a sandbox takes calls."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.redis_port = free_port()
        self.start_redis()
        self.start_api()
        self.start_worker()
        self.wait_ready()

    def start_redis(self) -> None:
        """Starts Redis (again, on the same port and append-only file)."""
        server = shutil.which("redis-server")
        if server is None:
            raise RuntimeError("redis-server was not found; install it (Debian: apt install redis-server)")
        data = self.folder / "redis"
        data.mkdir(exist_ok=True)
        config = self.folder / "redis.conf"
        config.touch(mode=0o600)
        config.write_text(
            f'bind 127.0.0.1\nport {self.redis_port}\ndir {data}\nappendonly yes\nappendfsync everysec\nsave ""\n'
            f"requirepass {self.password}\ndaemonize no\n"
        )
        self._spawn("redis", [server, str(config)])
        end = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.redis_port), 1).close()
                return
            except OSError:
                self._check("redis")
                if time.monotonic() > end:
                    raise RuntimeError(f"Redis did not start:\n{self.log('redis')}") from None
                time.sleep(0.02)

    def start_api(self) -> None:
        """Starts the API (again, on the same port)."""
        arguments = ["api", "--redis", self.redis_url, "--host", self.host, "--port", str(self.port)]
        arguments += self.api_arguments
        self._spawn("api", [sys.executable, "-m", "rstar2_train.judge", *arguments])
        line = self._ready_line("api")
        self.port = int(line["port"])

    def start_worker(self, name: str = "worker") -> None:
        """Starts a worker; several may run, each under a name of its own."""
        arguments = ["worker", "--redis", self.redis_url]
        if self.executors_at:
            arguments += ["--executors-at", self.executors_at, "--key-file", str(self.key_file)]
        else:
            arguments += ["--executors", str(self.executors)]
        arguments += [
            *self.worker_arguments,
            "--isolation",
            self.isolation,
            "--state",
            str(self.folder / f"{name}-state"),
        ]
        if self.lanes:
            arguments += ["--lanes", *self.lanes]
        self._spawn(name, [sys.executable, "-m", "rstar2_train.judge", *arguments])

    def status(self) -> dict[str, Any]:
        """The API's /v1/status."""
        token = secret("RSTAR2_JUDGE_TOKEN")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        question = urllib.request.Request(f"{self.url}/v1/status", headers=headers)
        with urllib.request.urlopen(question, timeout=10) as answer:
            status: dict[str, Any] = json.load(answer)
        return status

    def wait_ready(self, executors: int = 1) -> None:
        """Waits until so many sandboxes take calls."""
        end = time.monotonic() + READY_SECONDS
        while time.monotonic() < end:
            try:
                if self.status()["executors"]["ready"] >= executors:
                    return
            except OSError:
                pass  # not listening yet, or Redis is away: both show in the log when it stays so
            self.check()
            time.sleep(0.05)
        raise RuntimeError(f"the judge was not ready in {READY_SECONDS:.0f} s:\n{self.log('worker')}")

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Sends a signal to a part and waits for its end."""
        process = self.processes.pop(name)
        process.send_signal(number)
        process.wait(60)

    def stop(self) -> None:
        """Ends everything: workers first, Redis last."""
        for name in sorted(
            self.processes, key=lambda name: ("redis", "api").index(name) if name in ("redis", "api") else 9
        )[::-1]:
            process = self.processes.pop(name)
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def log(self, name: str) -> str:
        """The end of a part's log."""
        return (self.folder / f"{name}.log").read_text(errors="replace")[-4000:]

    def _spawn(self, name: str, command: list[str]) -> None:
        environment = os.environ | {"RSTAR2_REDIS_PASSWORD": self.password}
        with self._open_log(name) as log:
            self.processes[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                text=True,
                env=environment,
                process_group=0 if name == "redis" else None,  # Ctrl-C goes to a group; the others answer through Redis
            )

    def _open_log(self, name: str) -> IO[str]:
        return (self.folder / f"{name}.log").open("a")

    def check(self) -> None:
        """Raises RuntimeError when a part has ended by itself."""
        for name in self.processes:
            self._check(name)

    def _check(self, name: str) -> None:
        process = self.processes[name]
        if process.poll() is not None:
            raise RuntimeError(f"{name} ended with status {process.returncode}:\n{self.log(name)}")

    def _ready_line(self, name: str) -> dict[str, Any]:
        """The last ready line in a part's log."""
        seen = (self.folder / f"{name}.log").read_text().count('"event": "ready"')
        end = time.monotonic() + READY_SECONDS
        while time.monotonic() < end:
            lines = [x for x in (self.folder / f"{name}.log").read_text().splitlines() if '"event": "ready"' in x]
            if len(lines) > seen or (lines and seen == 0):
                line: dict[str, Any] = json.loads(lines[-1])
                return line
            self._check(name)
            time.sleep(0.02)
        raise RuntimeError(f"{name} was not ready in {READY_SECONDS:.0f} s:\n{self.log(name)}")
