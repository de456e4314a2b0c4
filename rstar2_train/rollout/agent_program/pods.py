"""Programs in pods: the runner of a pod (`utils/agent_runner.py`) asks the endpoint for one episode at a time.

    POST /v1/programs        with the token of the pods: the response is the row and key of an episode, as a line of
                             JSON; it stays open until the episode ends. Empty lines show that both sides exist
    POST /v1/programs/exit   with the key of the episode: how the program exited

The pods connect to the trainer, and listen on no port. An episode whose pod is lost is lost with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Annotated, Any

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from rstar2_train.rollout.agent_program.program import STDERR_BYTES
from rstar2_train.tools.mcp_session import ServerLost
from rstar2_train.utils.api_error import ApiError
from rstar2_train.utils.auth import is_authorized
from rstar2_train.utils.supervisor import describe_exit

HEARTBEAT_SECONDS = 10.0
"""Seconds between two empty lines."""
PEER_SECONDS = 60
"""Seconds until a pod that acknowledges nothing is lost."""
POD_SECONDS = 600.0
"""Longest wait of an episode for a pod."""
MAX_REPORT_BYTES = 1 << 16
"""Body of a report: the program itself can send one, and it is parsed in the event loop."""


class ExitReport(BaseModel):
    """Body of POST /v1/programs/exit."""

    model_config = ConfigDict(extra="forbid")

    status: int
    stderr: Annotated[str, Field(max_length=4 * STDERR_BYTES)] = ""


@dataclass(eq=False)
class PodProgram:
    """A program that a pod runs."""

    work: asyncio.Future[dict[str, Any]] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Row and key of the episode, when there is one."""
    status: int | None = None
    stderr: bytes = b""
    lost: bool = False
    """Whether the connection of the pod has ended."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """The program has exited, or its pod is lost."""
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    """The episode has ended: the pod kills the program."""

    @property
    def exited(self) -> bool:
        """Whether the program itself has exited."""
        return self.status is not None

    def end(self) -> str | None:
        """Return how the program has ended; None while it runs."""
        if self.status is not None:
            return describe_exit(self.status)
        return "was lost with its pod" if self.lost else None

    async def wait(self) -> None:
        """Wait until the program has exited, or its pod is lost."""
        await self.ended.wait()


class AgentPods:
    """The runners of all pods that wait for an episode, and the programs that they run."""

    def __init__(self, *, token: str, port: int, pod_seconds: float = POD_SECONDS) -> None:
        """`token`: of the pods; `port`: of the endpoint, which listens on all addresses. Raises ValueError."""
        if not token:
            raise ValueError("the token of the agent's pods is empty: set RSTAR2_AGENT_TOKEN")
        self.port = port
        self._token = token
        self._pod_seconds = pod_seconds
        self._waiting: asyncio.Queue[PodProgram] = asyncio.Queue()
        self._running: dict[str, PodProgram] = {}

    def add_routes(self, app: web.Application) -> None:
        """Add the routes of the pods to the endpoint."""
        app.router.add_post("/v1/programs", self._serve)
        app.router.add_post("/v1/programs/exit", self._exit)

    @property
    def running(self) -> int:
        """Number of running programs."""
        return len(self._running)

    @contextlib.asynccontextmanager
    async def start(self, key: str, row: dict[str, Any]) -> AsyncIterator[PodProgram]:
        """Run a program in a pod; it is killed at the end. Raises ServerLost if no pod is free in time."""
        program = await self._next()
        self._running[key] = program
        program.work.set_result({"key": key, "row": row})
        try:
            yield program
        finally:
            del self._running[key]
            program.finished.set()

    async def _next(self) -> PodProgram:
        try:
            async with asyncio.timeout(self._pod_seconds):
                while (program := await self._waiting.get()).lost:
                    pass
                return program
        except TimeoutError:
            message = f"agent program: no pod of the agent took the episode within {self._pod_seconds:g} s"
            raise ServerLost(message) from None

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        """Give one episode to a runner; keep its connection until the episode ends."""
        if not is_authorized(request.headers.get("Authorization", "").encode(), self._token):
            raise ApiError(401, "this is not the token of the agent's pods", code="invalid_api_key")
        connection = request.transport.get_extra_info("socket") if request.transport else None
        if connection is not None:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, PEER_SECONDS * 1000)
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        program = PodProgram()
        self._waiting.put_nowait(program)
        try:
            await _beat_until(program.work, response)
            await response.write(json.dumps(program.work.result(), ensure_ascii=False).encode() + b"\n")
            await _beat_until(asyncio.ensure_future(program.finished.wait()), response)
        except ConnectionError:
            pass
        finally:
            program.lost = True
            program.ended.set()
        return response

    async def _exit(self, request: web.Request) -> web.Response:
        _, _, key = request.headers.get("Authorization", "").partition(" ")
        program = self._running.get(key)
        if program is None:
            raise ApiError(401, "this key belongs to no running program", code="invalid_api_key")
        body = await request.read()
        if len(body) > MAX_REPORT_BYTES:
            raise ApiError(413, f"the report of an exit is larger than {MAX_REPORT_BYTES >> 10} KiB")
        report = ExitReport.model_validate_json(body)
        program.status, program.stderr = report.status, report.stderr.encode()
        program.ended.set()
        return web.json_response({})


async def _beat_until(event: asyncio.Future[Any], response: web.StreamResponse) -> None:
    """Write empty lines until the event. Raises ConnectionError if the peer is lost."""
    try:
        while not (await asyncio.wait({event}, timeout=HEARTBEAT_SECONDS))[0]:
            await response.write(b"\n")
    finally:
        event.cancel()
