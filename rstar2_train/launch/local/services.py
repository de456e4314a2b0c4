"""The child processes of a job on one machine, each with its command line and readiness probe.

Counterpart of the operator's `builders/`: the same roles (judge, engines, orchestrator, tracking) as processes instead
of pods. Each listens on loopback on a port of its own. Secrets are passed in the environment and in files of mode 600.

    run.py, evaluation/task_check.py, serving/stack.py -> Services -> Child -> Supervisor.start
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from rstar2_train.api.contracts import ENGINE_START_SECONDS
from rstar2_train.api.roles import ExecutorSpec
from rstar2_train.api.stages import Stage
from rstar2_train.api.state_dir import JobState
from rstar2_train.api.tasks import EnvironmentSpec
from rstar2_train.judge.local import PROBE_TIMEOUT, LocalJudge
from rstar2_train.launch.local.devices import DeviceAssignment
from rstar2_train.rewards.equality_program import sandbox_package
from rstar2_train.tracking import shipper
from rstar2_train.utils.auth import ENGINE_TOKEN, JUDGE_TOKEN, read_secret, secret_env
from rstar2_train.utils.ports import LOOPBACK, free_ports
from rstar2_train.utils.supervisor import Child, ChildFailed, Supervisor, gather_or_cancel

ENVIRONMENT_READY_SECONDS = 300.0
ORCHESTRATOR_STOP_SECONDS = 120.0
"""Grace period of an orchestrator, which writes a checkpoint before it exits."""


@dataclass(frozen=True, slots=True)
class RunningServices:
    """Engine and judge that run already. An empty URL means that this command starts its own."""

    engine: str = ""
    engine_token: str = ""
    model: str = ""
    """Name under which the engine serves the model; empty: not known yet."""
    judge: str = ""
    judge_token: str = ""

    @classmethod
    def from_options(cls, *, endpoint: str, judge: str) -> RunningServices:
        """Return the services of --endpoint and --judge, with their tokens from the environment. Raises OSError."""
        return cls(
            engine=endpoint.rstrip("/").removesuffix("/v1"),
            engine_token=read_secret(ENGINE_TOKEN) or "",
            judge=judge.rstrip("/"),
            judge_token=read_secret(JUDGE_TOKEN) or "",
        )


NONE_RUNNING = RunningServices()
"""The command starts all services."""


@dataclass(frozen=True)
class Services:
    """Command lines, ports and secrets of a job's children on this machine, and the services that run already."""

    state: JobState
    judge: LocalJudge
    judge_token: str
    engine_ports: tuple[int, ...]
    engine_token: str
    devices: DeviceAssignment
    teacher_ports: tuple[int, ...] = ()
    environment: EnvironmentSpec | None = None
    environment_ports: tuple[int, ...] = ()
    running: RunningServices = NONE_RUNNING

    @classmethod
    def create(
        cls,
        executor: ExecutorSpec,
        state: JobState,
        *,
        engines: int,
        devices: DeviceAssignment | None = None,
        packages: Path | None = None,
        environments: Sequence[EnvironmentSpec] = (),
        teachers: int = 0,
        running: RunningServices = NONE_RUNNING,
    ) -> Services:
        """Choose free ports and new secrets.

        `engines`: number of engines, unless one of `running` serves; `teachers`: those of the teacher; `devices`: of
        each child, default: none; `environments`: those of the job; `packages`: folder of the sandbox's packages
        (`preflight.prepare_packages`).
        """
        engines = 0 if running.engine else engines
        environment = next((spec for spec in environments if spec.url is None), None)
        servers = environment.replicas if environment is not None else 0
        redis_port, judge_port, *more_ports = free_ports(2 + engines + teachers + servers)
        engine_ports, more_ports = more_ports[:engines], more_ports[engines:]
        teacher_ports, environment_ports = more_ports[:teachers], more_ports[teachers:]
        judge_token = secrets.token_urlsafe(24)
        local_judge = LocalJudge(
            state.root,
            port=judge_port,
            redis_port=redis_port,
            executors=executor.replicas,
            isolation=executor.isolation_option,
            packages=packages,
            sandbox_packages=(sandbox_package(),),
            token=judge_token,
        )
        return cls(
            state=state,
            judge=local_judge,
            judge_token=judge_token,
            engine_ports=tuple(engine_ports),
            engine_token=secrets.token_urlsafe(24),
            devices=devices or DeviceAssignment(),
            teacher_ports=tuple(teacher_ports),
            environment=environment,
            environment_ports=tuple(environment_ports),
            running=running,
        )

    @property
    def engine_urls(self) -> list[str]:
        """Base URLs of the engines."""
        return [f"http://{LOOPBACK}:{port}" for port in self.engine_ports]

    @property
    def environments(self) -> list[str]:
        """`HOST:PORT` of the servers of the environment."""
        return [f"{LOOPBACK}:{port}" for port in self.environment_ports]

    async def start_engines(self, supervisor: Supervisor, model: Path) -> None:
        """Start the job's engines, all with `model`. Raises ChildFailed."""
        engines = [self.engine(index, model) for index in range(len(self.engine_ports))]
        await gather_or_cancel(*(supervisor.start(engine) for engine in engines))

    def engine(self, index: int, model: Path) -> Child:
        """Return a vLLM engine with the job's arguments."""
        argv = self._engine_argv(model, self.engine_ports[index])
        if self.devices.engine_share is not None:
            argv += ["--memory-share", str(self.devices.engine_share)]
        if self.devices.time_shared:
            argv += ["--device-lock", str(self.state.device_lock)]
        advice = "check spec.rollout, its engineArgs and spec.model.source"
        return self.engine_child(index, argv, env={}, advice=advice)

    def engine_child(self, index: int, argv: Sequence[str], *, env: Mapping[str, str], advice: str) -> Child:
        """Return a vLLM engine with this command line, which must listen on the engine's port."""
        env = {**env, **self.devices.engine_environment(index)}
        return self._with_token(f"engine-{index}", self.engine_ports[index], argv, env=env, advice=advice)

    def _engine_argv(self, model: Path, port: int) -> list[str]:
        argv = [sys.executable, "-m", "rstar2_train.inference.server", "--job", str(self.state.job_file)]
        return [*argv, "--model", str(model), "--port", str(port)]

    def _with_token(self, name: str, port: int, argv: Sequence[str], *, env: Mapping[str, str], advice: str) -> Child:
        """Return a vLLM engine that listens on a port and requires the engines' token."""
        return Child(
            name,
            argv,
            env={**env, **secret_env(ENGINE_TOKEN, self.engine_token)},
            ready=_http_probe(f"http://{LOOPBACK}:{port}/health"),
            ready_seconds=ENGINE_START_SECONDS,
            advice=advice,
        )

    @contextlib.asynccontextmanager
    async def teacher(self, supervisor: Supervisor, stage: Stage, source: str | None) -> AsyncIterator[None]:
        """Run the engines of a stage's teacher, the model folder `source`; None: it has none.

        The stage's orchestrator waits until they have started. An engine that does not start fails the run.
        """
        if source is None:
            yield
            return
        engines = [self._teacher_engine(index, stage, source) for index in range(len(self.teacher_ports))]

        async def start() -> None:
            try:
                await gather_or_cancel(*(supervisor.start(engine) for engine in engines))
            except ChildFailed as error:
                supervisor.fail(error)

        starting = asyncio.create_task(start())
        try:
            yield
        finally:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            await supervisor.stop(*(engine.name for engine in engines))

    def _teacher_engine(self, index: int, stage: Stage, source: str) -> Child:
        port, env = self.teacher_ports[index], self.devices.teacher_environment(index)
        argv = [*self._engine_argv(Path(source), port), "--teacher", stage.name]
        advice = "check spec.teacher, its engineArgs and objective.teacher.source"
        return self._with_token(f"teacher-{index}", port, argv, env=env, advice=advice)

    async def start_environment(self, supervisor: Supervisor) -> None:
        """Start the servers of the job's environment. Raises ChildFailed."""
        servers = [self._environment_server(index) for index in range(len(self.environment_ports))]
        await gather_or_cancel(*(supervisor.start(server) for server in servers))

    def _environment_server(self, index: int) -> Child:
        """Return a server of the environment: a program of others, which gets no variable except PATH and HOME."""
        assert self.environment is not None
        port = self.environment_ports[index]
        clean = ["env", "-i", f"PATH={os.environ.get('PATH', os.defpath)}", "HOME=/tmp"]
        return Child(
            f"environment-{index}",
            [*clean, *self.environment.argv(host=LOOPBACK, port=port)],
            ready=_http_probe(f"http://{LOOPBACK}:{port}/schema"),
            ready_seconds=ENVIRONMENT_READY_SECONDS,
            advice="check spec.environments[0].command: the server must listen on {host} and {port}",
        )

    def shipper(self) -> Child:
        """Return the process that sends the tracking journal to MLflow."""
        return Child("tracking", shipper.command(self.state.root))

    def orchestrator(self, stage: Stage, attempt: int, *options: str) -> Child:
        """Return the orchestrator of one attempt of a stage. `options`: more of its command line."""
        running = self.running
        argv = [sys.executable, "-m", "rstar2_train.orchestrator", "--state", str(self.state.root)]
        argv += ["--stage", stage.name, "--attempt", str(attempt), "--judge", running.judge or self.judge.url]
        for url in [running.engine] if running.engine else self.engine_urls:
            argv += ["--engine", url]
        if running.model:
            argv += ["--served-model", running.model]
        for port in self.teacher_ports:
            argv += ["--teacher", f"http://{LOOPBACK}:{port}"]
        for address in self.environments:
            argv += ["--environment", address]
        argv += options
        if self.devices.time_shared:
            argv.append("--share-device")
        env = self.devices.trainer_environment()
        env |= secret_env(ENGINE_TOKEN, running.engine_token if running.engine else self.engine_token)
        env |= secret_env(JUDGE_TOKEN, running.judge_token if running.judge else self.judge_token)
        return Child(f"orchestrator-{stage.name}-{attempt}", argv, env=env, stop_seconds=ORCHESTRATOR_STOP_SECONDS)


def _http_probe(url: str) -> Callable[[], Awaitable[bool]]:
    async def probe() -> bool:
        try:
            async with aiohttp.ClientSession(timeout=PROBE_TIMEOUT) as session, session.get(url) as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    return probe
