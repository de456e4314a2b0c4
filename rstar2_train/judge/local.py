"""A judge on this machine: the command lines of Redis, the API and a worker with its sandboxes, and their start.

Every command that needs a judge starts it here, under its own Supervisor, which restarts what dies:

    rstar2 judge serve|run|bench -----------------------+
    rstar2 run | eval | filter | serve (launch/local) --+-> LocalJudge.start -> redis, judge-api, judge-worker
"""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from rstar2_train.judge.sandbox.oci_bundle import Isolation
from rstar2_train.utils.auth import JUDGE_TOKEN, REDIS_PASSWORD, secret_env
from rstar2_train.utils.dns import join_address
from rstar2_train.utils.files import write_atomically
from rstar2_train.utils.ports import LOOPBACK
from rstar2_train.utils.supervisor import Child, Supervisor

PROBE_TIMEOUT = aiohttp.ClientTimeout(total=2)
READY_SECONDS = 180.0
"""Deadline of the first sandbox: it compiles and imports on first use."""


@dataclass(frozen=True)
class LocalJudge:
    """Settings and command lines of a judge's processes on this machine."""

    folder: Path
    """State folder: the data of Redis and of the worker."""
    port: int
    """Port of the API."""
    redis_port: int
    executors: int
    """Sandboxes of the worker. 0: `worker_arguments` set them."""
    isolation: Isolation = "gvisor"
    host: str = LOOPBACK
    """Address on which the API listens. Redis listens on loopback."""
    packages: Path | None = None
    """Folder of the job's packages (`sandbox/packages.py`), which the sandboxes can import."""
    sandbox_packages: Sequence[Path] = ()
    """Folders of packages in addition to those of RSTAR2_SANDBOX_PACKAGES."""
    token: str | None = None
    """Token of the API. None: the API accepts every request."""
    redis_password: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    api_arguments: Sequence[str] = ()
    """Further options of `python -m rstar2_train.judge api`."""
    worker_arguments: Sequence[str] = ()
    """Further options of `python -m rstar2_train.judge worker`."""
    max_restarts: int = 5
    """Restarts of each process within ten minutes before the judge counts as failed."""
    stop_seconds: float = 10
    """Grace period of the API and the worker to finish running calls."""

    @property
    def url(self) -> str:
        """Base URL of the API for a client on this machine."""
        host = {"0.0.0.0": LOOPBACK, "::": LOOPBACK}.get(self.host, self.host)
        return f"http://{join_address(host, self.port)}"

    @property
    def redis_url(self) -> str:
        """URL of Redis, without the password."""
        return f"redis://{LOOPBACK}:{self.redis_port}/0"

    async def start(self, supervisor: Supervisor) -> None:
        """Start Redis, the API and the worker; return when a sandbox is ready. Raises ChildFailed."""
        await supervisor.start(self.redis())
        await supervisor.start(self.api())
        await supervisor.start(self.worker())

    def redis(self) -> Child:
        """Return Redis with an append-only file. A kill loses at most one second of queue; the API resubmits it."""
        folder = self.folder / "redis"
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "redis.conf"
        write_atomically(
            config,
            f"bind {LOOPBACK}\nport {self.redis_port}\nrequirepass {self.redis_password}\ndaemonize no\n"
            f'dir {folder}\nappendonly yes\nappendfsync everysec\nsave ""\nmaxmemory-policy noeviction\n',
            mode=0o600,
        )
        server = shutil.which("redis-server") or "redis-server"
        return Child("redis", [server, str(config)], ready=self._redis_is_ready, max_restarts=self.max_restarts)

    def api(self) -> Child:
        """Return the judge's HTTP API."""
        argv = [sys.executable, "-m", "rstar2_train.judge", "api", "--redis", self.redis_url]
        argv += ["--host", self.host, "--port", str(self.port), *self.api_arguments]
        return Child(
            "judge-api",
            argv,
            env=self._env,
            ready=self._api_is_ready,
            max_restarts=self.max_restarts,
            stop_seconds=self.stop_seconds,
        )

    def worker(self, *, state: str = "judge") -> Child:
        """Return a worker, which starts the sandboxes. `state`: its own folder in the state folder."""
        argv = [sys.executable, "-m", "rstar2_train.judge", "worker", "--redis", self.redis_url]
        argv += ["--executors", str(self.executors)] if self.executors else []
        argv += ["--isolation", self.isolation, "--state", str(self.folder / state), *self.worker_arguments]
        return Child(
            "judge-worker",
            argv,
            env=self._env | self._package_env,
            ready=self._worker_is_ready,
            ready_seconds=READY_SECONDS * (4 if self.packages else 1),  # the first start builds the root
            max_restarts=self.max_restarts,
            stop_seconds=self.stop_seconds,
        )

    async def status(self) -> dict[str, Any] | None:
        """Return the API's status; None while the API or its Redis does not answer."""
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        status: dict[str, Any] | None = await _get_json(f"{self.url}/v1/status", headers)
        return status

    @property
    def _env(self) -> dict[str, str]:
        env = secret_env(REDIS_PASSWORD, self.redis_password)
        return env | secret_env(JUDGE_TOKEN, self.token or "")

    @property
    def _package_env(self) -> dict[str, str]:
        requested = os.environ.get("RSTAR2_SANDBOX_PACKAGES", "")
        env = {"RSTAR2_SANDBOX_PACKAGES": f"{requested} {shlex.join(map(str, self.sandbox_packages))}"}
        return env | ({"RSTAR2_SANDBOX_SITE": str(self.packages)} if self.packages else {})

    async def _redis_is_ready(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(0.5)
            return probe.connect_ex((LOOPBACK, self.redis_port)) == 0

    async def _api_is_ready(self) -> bool:
        return await _get_json(f"{self.url}/ping", {}) is not None

    async def _worker_is_ready(self) -> bool:
        status = await self.status()
        return status is not None and bool(status["ready"])


async def _get_json(url: str, headers: Mapping[str, str]) -> Any:
    """Return the JSON value of an answer with status 200; None for any other answer, or none."""
    try:
        async with aiohttp.ClientSession(timeout=PROBE_TIMEOUT, headers=headers) as session, session.get(url) as answer:
            return await answer.json() if answer.status == 200 else None
    except (aiohttp.ClientError, TimeoutError):
        return None
