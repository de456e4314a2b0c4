"""The processes of a served model: Redis, judge and engine as child processes, and the endpoint in this process.

Counterpart of `launch/local/run.py`: the same children (`launch/local/services.py`) under the same Supervisor. An
engine or judge that runs already (`launch/running_services.py`) replaces a child. All children stop with the endpoint.
After the failure of a child its logs stay on disk.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rstar2_train.api.state_dir import JobState
from rstar2_train.inference.server import SERVED_NAME
from rstar2_train.launch.local import preflight
from rstar2_train.launch.local.services import RunningServices, Services
from rstar2_train.launch.running_services import check_judge, find_model
from rstar2_train.serving.model import ServingModel
from rstar2_train.serving.server import EndpointSettings, ServiceUrls, listener, make_server, server_context
from rstar2_train.utils.auth import SERVE_TOKEN, check_bind
from rstar2_train.utils.supervisor import Supervisor, gather_or_cancel, temporary_state


def run(
    model: ServingModel,
    endpoint: EndpointSettings,
    external: RunningServices,
    *,
    notify: Callable[[str], None],
    on_ready: Callable[[str], None],
) -> None:
    """Serve until Ctrl-C or SIGTERM. `notify`: prints a message to the user. `on_ready`: gets the URL.

    Raises ValueError for an unsafe address, OSError for a port in use, PreflightError for a missing tool or an unusable
    external service, ChatFormatError for a chat template without support for the tool, ChildFailed for a child that
    keeps dying, and StopRequested for a signal before the endpoint was ready.
    """
    check_bind(endpoint.host, token=endpoint.token, insecure=endpoint.insecure, variable=SERVE_TOKEN)
    with listener(endpoint) as bound, temporary_state("rstar2-serve-") as folder:
        asyncio.run(_ServingStack(model, endpoint, external, folder, notify).run(bound, on_ready))


class _ServingStack:
    """One endpoint and its children."""

    def __init__(
        self,
        model: ServingModel,
        endpoint: EndpointSettings,
        external: RunningServices,
        folder: Path,
        notify: Callable[[str], None],
    ) -> None:
        self._model = model
        self._endpoint = endpoint
        self._external = external
        self._state = JobState(folder)
        self._notify = notify

    async def run(self, bound: socket.socket, on_ready: Callable[[str], None]) -> None:
        if not self._external.judge:
            preflight.check_machine(self._model.executor, self._state)
        chat_format = self._model.chat_format()
        vendor = "None" if self._external.engine else self._model.accelerator.vendor
        devices = preflight.engine_devices(vendor, tensor_parallel=self._model.rollout.tensor_parallel)
        services = Services.create(self._model.executor, self._state, engines=1, devices=devices)
        logs, register = self._state.logs, self._state.children_file
        async with Supervisor(logs=logs, register=register, notify=self._notify) as supervisor:
            model, urls = await supervisor.run_until_stopped(self._start(supervisor, services))
            async with server_context(model, chat_format, self._endpoint, urls) as context:
                server = make_server(context, self._endpoint, on_ready=on_ready)

                def stop_server() -> None:
                    server.should_exit = True

                await supervisor.run_until_stopped(server.serve(sockets=[bound]), on_stop=stop_server)

    async def _start(self, supervisor: Supervisor, services: Services) -> tuple[ServingModel, ServiceUrls]:
        """Start or find engine and judge. Returns the model, with the context length of the engine, and the URLs."""
        external = self._external
        engine, _ = await gather_or_cancel(
            self._start_engine(supervisor, services), self._start_judge(supervisor, services)
        )
        model, engine_model = engine
        return model, ServiceUrls(
            engine=external.engine or services.engine_urls[0],
            engine_token=external.engine_token if external.engine else services.engine_token,
            engine_model=engine_model,
            judge=external.judge or services.judge.url,
            judge_token=external.judge_token if external.judge else services.judge_token,
        )

    async def _start_engine(self, supervisor: Supervisor, services: Services) -> tuple[ServingModel, str]:
        """Return the model and the name under which the engine serves it."""
        model, external = self._model, self._external
        if external.engine:
            served = await find_model(
                external.engine,
                token=external.engine_token,
                names=[str(model.folder)],
                accept_only=True,
                advice="pass the URL of an engine that serves this model",
                notify=self._notify,
            )
            if served.max_model_len < model.context:
                self._notify(
                    f"The context of the engine is {served.max_model_len} tokens, so prompt and answer are limited to "
                    f"that instead of {model.context}."
                )
                model = replace(model, context=served.max_model_len)
            return model, served.name
        command = model.engine(port=services.engine_ports[0])
        advice = f"its model is {model.folder}"
        await supervisor.start(services.engine_child(0, command.argv, env=command.env, advice=advice))
        return model, SERVED_NAME

    async def _start_judge(self, supervisor: Supervisor, services: Services) -> None:
        if self._external.judge:
            await check_judge(self._external.judge, token=self._external.judge_token, notify=self._notify)
        else:
            await services.judge.start(supervisor)
