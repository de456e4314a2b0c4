"""The child processes that a job needs on one machine, each with its command line and readiness probe.

What build/ is to the operator: the same roles (Redis, judge API, judge worker, engines, driver), as processes instead
of pods. Everything binds to loopback on a port of its own; secrets go by environment and by files of mode 600.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from rstar2_train.api.roles import ExecutorSpec
from rstar2_train.api.stages import Stage
from rstar2_train.api.state_dir import JobState
from rstar2_train.tracking import shipper as ship
from rstar2_train.utils.files import write_atomically
from rstar2_train.utils.supervisor import Child, Supervisor

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Ports:
    """Free ports of this run; chosen by the kernel, so that two runs never want the same."""

    redis: int
    judge: int
    engines: tuple[int, ...]

    @classmethod
    def choose(cls, *, engines: int) -> Ports:
        """Ask the kernel for ports, all at once so that they differ."""
        with contextlib.ExitStack() as stack:
            sockets = [stack.enter_context(socket.socket()) for _ in range(2 + engines)]
            for one in sockets:
                one.bind((LOOPBACK, 0))
            numbers = [one.getsockname()[1] for one in sockets]
        return cls(numbers[0], numbers[1], tuple(numbers[2:]))


@dataclass(frozen=True)
class Services:
    """Command lines of a job's children on this machine."""

    executor: ExecutorSpec
    state: JobState
    ports: Ports
    redis_password: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    judge_token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    engine_token: str = field(default_factory=lambda: secrets.token_urlsafe(24))

    @property
    def judge_url(self) -> str:
        """Base URL of the judge API."""
        return f"http://{LOOPBACK}:{self.ports.judge}"

    @property
    def engine_urls(self) -> list[str]:
        """Base URLs of the engines."""
        return [f"http://{LOOPBACK}:{port}" for port in self.ports.engines]

    def redis(self) -> Child:
        """Redis with an append-only file: a kill loses at most a second of queue, which the judge API sends again."""
        folder = self.state.redis
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "redis.conf"
        write_atomically(
            config,
            f"bind {LOOPBACK}\nport {self.ports.redis}\nrequirepass {self.redis_password}\n"
            f'dir {folder}\nappendonly yes\nappendfsync everysec\nsave ""\nmaxmemory-policy noeviction\n',
        )
        config.chmod(0o600)
        server = shutil.which("redis-server")
        return Child("redis", [server or "redis-server", str(config)], ready=_accepts(self.ports.redis))

    def judge_api(self) -> Child:
        """The judge's HTTP API."""
        argv = [sys.executable, "-m", "rstar2_train.judge", "api", "--port", str(self.ports.judge), "--redis"]
        ready = _answers(f"{self.judge_url}/ping")
        return Child("judge-api", [*argv, self._redis_url], env=self._judge_env, ready=ready, stop_seconds=5)

    def judge_worker(self) -> Child:
        """The judge's worker, which starts the sandboxes."""
        argv = [sys.executable, "-m", "rstar2_train.judge", "worker", "--redis", self._redis_url]
        argv += ["--executors", str(self.executor.replicas), "--isolation", self.executor.isolation_option]
        argv += ["--state", str(self.state.root / "judge")]
        return Child("judge-worker", argv, env=self._judge_env, ready=self._executors_ready, stop_seconds=10)

    def engine(self, index: int, model: Path) -> Child:
        """A vLLM engine of the job."""
        argv = [sys.executable, "-m", "rstar2_train.inference.server", "--job", str(self.state.job_file)]
        argv += ["--model", str(model), "--port", str(self.ports.engines[index])]
        advice = "its arguments come from spec.rollout and its engineArgs, its model from spec.model.source"
        return self.engine_child(index, argv, env={}, advice=advice)

    def engine_child(self, index: int, argv: Sequence[str], *, env: Mapping[str, str], advice: str) -> Child:
        """A vLLM engine with this command line, which has it listen on the engine's port."""
        ready = _answers(f"{self.engine_urls[index]}/health")
        env = {**env, "RSTAR2_ENGINE_TOKEN": self.engine_token}
        name = f"engine-{index}"
        return Child(name, argv, env=env, ready=ready, ready_seconds=600, stop_seconds=10, advice=advice)

    def shipper(self) -> Child:
        """Sends the tracking journal to MLflow while the job runs."""
        return Child("tracking", ship.command(self.state.root))

    def driver(self, stage: Stage, attempt: int) -> Child:
        """The driver of one attempt of a stage."""
        argv = [sys.executable, "-m", "rstar2_train.orchestrator", "--state", str(self.state.root)]
        argv += ["--stage", stage.name, "--attempt", str(attempt), "--judge", self.judge_url]
        for url in self.engine_urls:
            argv += ["--engine", url]
        env = {"RSTAR2_ENGINE_TOKEN": self.engine_token, "RSTAR2_JUDGE_TOKEN": self.judge_token}
        return Child(f"driver-{stage.name}-{attempt}", argv, env=env, stop_seconds=120)

    @property
    def _redis_url(self) -> str:
        return f"redis://{LOOPBACK}:{self.ports.redis}/0"

    @property
    def _judge_env(self) -> dict[str, str]:
        return {"RSTAR2_REDIS_PASSWORD": self.redis_password, "RSTAR2_JUDGE_TOKEN": self.judge_token}

    async def _executors_ready(self) -> bool:
        headers = {"Authorization": f"Bearer {self.judge_token}"}
        status = await _get_json(f"{self.judge_url}/v1/status", headers)
        return status is not None and bool(status["ready"])


async def start_judge(services: Services, supervisor: Supervisor) -> None:
    """Start Redis, the judge and its worker, in the order in which they need one another. Raises ChildFailed."""
    await supervisor.start(services.redis())
    await supervisor.start(services.judge_api())
    await supervisor.start(services.judge_worker())


async def start_engines(services: Services, supervisor: Supervisor, model: Path) -> None:
    """Start the job's engines, all with `model`. Raises ChildFailed."""
    count = len(services.ports.engines)
    await asyncio.gather(*(supervisor.start(services.engine(index, model)) for index in range(count)))


def _accepts(port: int) -> Callable[[], Awaitable[bool]]:
    async def probe() -> bool:
        with socket.socket() as one:
            one.settimeout(0.5)
            return one.connect_ex((LOOPBACK, port)) == 0

    return probe


def _answers(url: str) -> Callable[[], Awaitable[bool]]:
    async def probe() -> bool:
        try:
            timeout = aiohttp.ClientTimeout(total=2)
            async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    return probe


async def _get_json(url: str, headers: dict[str, str]) -> dict | None:
    try:
        timeout = aiohttp.ClientTimeout(total=2)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url, headers=headers) as response:
            return await response.json() if response.status == 200 else None
    except (aiohttp.ClientError, TimeoutError):
        return None
