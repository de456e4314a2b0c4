"""The endpoint in front of an engine and a judge, wherever those run: who may ask it, and its life from start to end.

Below stack.py, which starts engine and judge or has found them; above app.py, whose application this serves.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

import aiohttp
import uvicorn

from rstar2_train.judge.client.client import JudgeClient
from rstar2_train.rollout.chat_format import ChatFormat
from rstar2_train.serving.app import make_app
from rstar2_train.serving.completion import ServerContext
from rstar2_train.serving.engine_client import StreamingEngine
from rstar2_train.serving.model import ServingModel
from rstar2_train.utils.dns import join_address


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """Where and for whom the endpoint is."""

    host: str
    port: int
    """0: a free one."""
    token: str | None
    """What clients must send; None asks for none."""
    insecure: bool
    """Whether an address that others reach may do without a token."""
    max_turns: int
    judge_patience: float
    """Seconds that a judge may be away before a call fails."""
    grace: int
    """Seconds that answers under way have to end when the server is ended."""


@dataclass(frozen=True, slots=True)
class ServiceUrls:
    """What answers are made with."""

    engine: str
    """Base URL."""
    engine_token: str
    engine_model: str
    """Name that the engine serves the model under."""
    judge: str
    """Base URL."""
    judge_token: str


@contextlib.asynccontextmanager
async def server_context(
    served: ServingModel, protocol: ChatFormat, endpoint: EndpointSettings, parts: ServiceUrls
) -> AsyncIterator[ServerContext]:
    """What conversations share, over connections of their own."""
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
        JudgeClient(parts.judge, parts.judge_token, patience_seconds=endpoint.judge_patience) as judge,
    ):
        yield ServerContext(
            served=served,
            protocol=protocol,
            engine=StreamingEngine(parts.engine, token=parts.engine_token, model=parts.engine_model, session=session),
            judge=judge,
            judge_patience=endpoint.judge_patience,
            max_turns=endpoint.max_turns,
        )


def make_server(house: ServerContext, endpoint: EndpointSettings, *, ready: Callable[[str], None]) -> uvicorn.Server:
    """The server of a house's endpoint; `should_exit` ends it. `ready` is given the URL once it listens."""
    config = uvicorn.Config(
        make_app(house, token=endpoint.token),
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=endpoint.grace,
    )
    return _EndpointServer(config, ready)


@contextlib.contextmanager
def listener(endpoint: EndpointSettings) -> Iterator[socket.socket]:
    """The socket to serve on, taken before anything is started. Raises OSError when it is taken."""
    family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((endpoint.host, endpoint.port))
        except OSError as error:
            raise OSError(f"cannot listen on {endpoint.host}:{endpoint.port}: {error.strerror}") from error
        yield one


class _EndpointServer(uvicorn.Server):
    """Says when it listens, and leaves signals to the stack, which has children to end too."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[str], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if sockets and self.started:
            host, port = sockets[0].getsockname()[:2]
            self._ready(f"http://{join_address(host, port)}")

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
