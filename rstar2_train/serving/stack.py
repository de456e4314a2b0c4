"""Everything that a served model needs: Redis, judge, engine, and the endpoint in front of them.

What launch/local/run.py is to a job: it starts the same children (launch/local/services.py) and keeps them running; the
endpoint (server.py) is in this process. An engine or a judge that runs already (external.py) is used in place of a
child. All of it ends with it; only the logs of a part that failed stay on the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rstar2_train.api.state_dir import JobState
from rstar2_train.inference.server import SERVED_NAME
from rstar2_train.launch.local import preflight
from rstar2_train.launch.local.services import Ports, Services, start_judge
from rstar2_train.serving.external import ExternalServices, find_engine, find_judge
from rstar2_train.serving.model import ServingModel
from rstar2_train.serving.server import EndpointSettings, ServiceUrls, listener, make_server, server_context
from rstar2_train.utils.auth import check_bind
from rstar2_train.utils.supervisor import ChildFailed, Supervisor
from rstar2_train.utils.terminal import ending_signals

TOKEN_VARIABLE = "RSTAR2_SERVE_TOKEN"


def run(
    served: ServingModel,
    endpoint: EndpointSettings,
    there: ExternalServices,
    *,
    say: Callable[[str], None],
    ready: Callable[[str], None],
) -> None:
    """Serve until Ctrl-C or SIGTERM. `say` tells a person what happens; `ready` is given the URL.

    Raises ValueError for an unsafe address, OSError when the port is taken, PreflightError for what the machine lacks,
    ProtocolError for a model whose template cannot carry the tool, ChildFailed when a part cannot be kept running,
    Refused for a part elsewhere that will not do.
    """
    check_bind(endpoint.host, token=endpoint.token, insecure=endpoint.insecure, variable=TOKEN_VARIABLE)
    with listener(endpoint) as taken, scratch() as folder:
        asyncio.run(_ServingStack(served, endpoint, there, JobState(folder), say).run(taken, ready))


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder for logs and Redis's file. It stays when a part has failed: its log says why."""
    folder = Path(tempfile.mkdtemp(prefix="rstar2-serve-"))
    failed = False
    try:
        yield folder
    except ChildFailed:
        failed = True
        raise
    finally:
        if not failed:
            shutil.rmtree(folder)


class _ServingStack:
    """One server and its children."""

    def __init__(
        self,
        served: ServingModel,
        endpoint: EndpointSettings,
        there: ExternalServices,
        state: JobState,
        say: Callable[[str], None],
    ) -> None:
        self._served = served
        self._endpoint = endpoint
        self._there = there
        self._state = state
        self._say = say

    async def run(self, taken: socket.socket, ready: Callable[[str], None]) -> None:
        if not self._there.judge:
            preflight.check_machine(self._served.executor, self._state)
        protocol = self._served.protocol()
        services = Services(self._served.executor, self._state, Ports.choose(engines=1))
        supervisor = Supervisor(logs=self._state.logs, register=self._state.root / "children.json", say=self._say)
        ended = asyncio.Event()
        for signum in ending_signals():
            asyncio.get_running_loop().add_signal_handler(signum, ended.set)
        asked = asyncio.create_task(ended.wait())
        try:
            starting = asyncio.create_task(self._start(supervisor, services))
            if not await _first(starting, asked):
                return
            served, parts = starting.result()
            async with server_context(served, protocol, self._endpoint, parts) as shared:
                server = make_server(shared, self._endpoint, ready=ready)
                serving = asyncio.create_task(server.serve(sockets=[taken]))
                ends: set[asyncio.Future[Any]] = {serving, asked, supervisor.given_up}
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                server.should_exit = True
                await serving
            if supervisor.given_up.done():
                raise supervisor.given_up.result()
        finally:
            asked.cancel()
            await supervisor.stop()

    async def _start(self, supervisor: Supervisor, services: Services) -> tuple[ServingModel, ServiceUrls]:
        """Start or find engine and judge; the model with the room that the engine has for it, and where they are."""
        engine = asyncio.create_task(self._engine(supervisor, services))
        judge = asyncio.create_task(self._judge(supervisor, services))
        try:
            await asyncio.gather(engine, judge)
        finally:  # neither goes on when the other has failed
            engine.cancel()
            judge.cancel()
            await asyncio.gather(engine, judge, return_exceptions=True)
        served, name = engine.result()
        there = self._there
        return served, ServiceUrls(
            engine=there.engine or services.engine_urls[0],
            engine_token=there.engine_token if there.engine else services.engine_token,
            engine_model=name,
            judge=there.judge or services.judge_url,
            judge_token=there.judge_token if there.judge else services.judge_token,
        )

    async def _engine(self, supervisor: Supervisor, services: Services) -> tuple[ServingModel, str]:
        served, there = self._served, self._there
        if there.engine:
            found = await find_engine(there.engine, token=there.engine_token, folder=served.folder, say=self._say)
            if found.max_model_len < served.context:
                self._say(f"the engine takes {found.max_model_len} tokens of prompt and answer, not {served.context}")
                served = replace(served, context=found.max_model_len)
            return served, found.name
        launch = served.engine(port=services.ports.engines[0])
        advice = f"its model is {served.folder}"
        await supervisor.start(services.engine_child(0, launch.argv, env=launch.env, advice=advice))
        return served, SERVED_NAME

    async def _judge(self, supervisor: Supervisor, services: Services) -> None:
        if self._there.judge:
            await find_judge(self._there.judge, token=self._there.judge_token, say=self._say)
        else:
            await start_judge(services, supervisor)


async def _first(work: asyncio.Task[Any], asked: asyncio.Task[bool]) -> bool:
    """Whether `work` ended before the server was asked to end; raises what it raised."""
    await asyncio.wait({work, asked}, return_when=asyncio.FIRST_COMPLETED)
    if work.done():
        work.result()
        return True
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    return False
