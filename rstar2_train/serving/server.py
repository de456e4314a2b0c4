"""The endpoint's settings, shared connections, socket and server.

Between stack.py, which starts or finds engine and judge, and app.py, whose application is served here.
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
from rstar2_train.utils.event_loop import shorten_collections
from rstar2_train.utils.listening import bind
from rstar2_train.utils.loop_watch import watch_loop


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """Address, access and limits of the endpoint."""

    host: str
    port: int
    """0: a free port."""
    token: str | None
    """Token that clients must send; None: no token is required."""
    insecure: bool
    """Whether other machines may connect without a token."""
    max_turns: int
    """Limit of assistant turns per answer."""
    judge_patience: float
    """Seconds that a call waits for an unreachable judge before it fails."""
    grace: int
    """Seconds that in-flight answers have to finish at shutdown."""


@dataclass(frozen=True, slots=True)
class ServiceUrls:
    """Base URLs and tokens of engine and judge."""

    engine: str
    engine_token: str
    engine_model: str
    """Name under which the engine serves the model."""
    judge: str
    judge_token: str


@contextlib.asynccontextmanager
async def server_context(
    model: ServingModel, chat_format: ChatFormat, endpoint: EndpointSettings, urls: ServiceUrls
) -> AsyncIterator[ServerContext]:
    """Yield what all requests share, with open connections to engine and judge."""
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
        JudgeClient(urls.judge, urls.judge_token, patience_seconds=endpoint.judge_patience) as judge,
    ):
        shorten_collections()
        yield ServerContext(
            model=model,
            chat_format=chat_format,
            engine=StreamingEngine(urls.engine, token=urls.engine_token, model=urls.engine_model, session=session),
            judge=judge,
            judge_patience=endpoint.judge_patience,
            max_turns=endpoint.max_turns,
        )


def make_server(
    context: ServerContext, endpoint: EndpointSettings, *, on_ready: Callable[[str], None]
) -> uvicorn.Server:
    """Return the server of the endpoint. `should_exit` stops it. `on_ready`: gets the URL when it listens."""
    config = uvicorn.Config(
        make_app(context, token=endpoint.token),
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=endpoint.grace,
    )
    return _EndpointServer(config, on_ready)


@contextlib.contextmanager
def listener(endpoint: EndpointSettings) -> Iterator[socket.socket]:
    """Yield the endpoint's socket, bound before any process starts. Raises OSError for a port in use."""
    with bind(endpoint.host, endpoint.port) as bound:
        yield bound


class _EndpointServer(uvicorn.Server):
    """Reports its URL when it listens, and leaves signals to the Supervisor, which also stops the children."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[str], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self.config.load()  # imports protocols, before the watch: no client waits yet
        with watch_loop():
            await super().serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if sockets and self.started:
            host, port = sockets[0].getsockname()[:2]
            self._on_ready(f"http://{join_address(host, port)}")

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
