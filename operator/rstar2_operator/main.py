"""The operator's process: connects, waits for the Lease, then watches and reconciles until it is told to stop.

Two replicas may run: the one without the Lease stands by. Who loses the Lease ends, and is started anew by the kubelet:
there is no half-leading.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import time
from typing import Any

from aiohttp import web
from kubernetes.aio import client as aio
from kubernetes.aio import config as aio_config
from kubernetes.aio.leaderelection.electionconfig import Config
from kubernetes.aio.leaderelection.leaderelection import LeaderElection
from kubernetes.aio.leaderelection.resourcelock.leaselock import LeaseLock

from rstar2_operator import handlers
from rstar2_operator.client import Client
from rstar2_operator.metrics import Metrics, application
from rstar2_operator.reconcile import Reconciler
from rstar2_operator.settings import Settings
from rstar2_operator.store import Key, Store
from rstar2_operator.workqueue import WorkQueue

log = logging.getLogger("rstar2_operator")

LEASE_SECONDS, RENEW_SECONDS, RETRY_SECONDS = 15, 10, 2


class Operator:
    """One replica."""

    def __init__(self, settings: Settings, api: aio.ApiClient) -> None:
        self._settings = settings
        self._api = api
        self._store = Store()
        self._metrics = Metrics()
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """End, as soon as what is being written is written."""
        self._stop.set()

    async def run(self) -> int:
        """Serve probes, wait for the Lease, lead. Returns the exit code."""
        async with _serving(application(self._metrics, self._store), self._settings.probe_port):
            lag = asyncio.create_task(self._metrics.watch_loop())
            stopping = asyncio.create_task(self._stop.wait())
            lock = LeaseLock(
                self._settings.lease_name, self._settings.lease_namespace, self._settings.identity, self._api
            )
            leading: asyncio.Future[int] = asyncio.get_running_loop().create_future()

            async def lead() -> None:
                leading.set_result(await self._lead())

            config = Config(lock, LEASE_SECONDS, RENEW_SECONDS, RETRY_SECONDS, lead, None)  # type: ignore[arg-type]
            log.info("%s waits for the Lease %s", self._settings.identity, self._settings.lease_name)
            election = asyncio.create_task(LeaderElection(config).run())
            first: set[asyncio.Future[Any]] = {election, stopping, leading}
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if self._metrics.leading and self._stop.is_set():
                await asyncio.wait({leading}, timeout=10)
            lost = election.done() and not self._stop.is_set()
            for task in (election, stopping, lag):
                task.cancel()
            await asyncio.gather(election, stopping, lag, return_exceptions=True)
        if lost:
            log.error("the Lease is lost: another replica leads now")
        return 1 if lost or (leading.done() and leading.result()) else 0

    async def _lead(self) -> int:
        """Watch and reconcile until stopped. Returns 1 when a part of it ended by itself."""
        log.info("%s leads", self._settings.identity)
        self._metrics.lead(True)
        queue: WorkQueue[Key] = WorkQueue()
        reconciler = Reconciler(
            store=self._store,
            queue=queue,
            client=Client(self._api),
            settings=self._settings,
            metrics=self._metrics,
        )
        watching_is_on = asyncio.Event()
        watch = asyncio.create_task(
            handlers.run(
                self._settings,
                store=self._store,
                queue=queue,
                metrics=self._metrics,
                stop=self._stop,
                ready=watching_is_on,
            )
        )
        workers = [asyncio.create_task(reconciler.work()) for _ in range(self._settings.workers)]
        try:
            done, _ = await asyncio.wait({watch, *workers}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if task.exception() is not None:
                    log.error("%s", task.exception(), exc_info=task.exception())
            return 0 if self._stop.is_set() else 1
        finally:
            self._metrics.lead(False)
            for task in (watch, *workers):
                task.cancel()
            await asyncio.gather(watch, *workers, return_exceptions=True)


@contextlib.asynccontextmanager
async def _serving(app: web.Application, port: int) -> Any:
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", port).start()
    try:
        yield
    finally:
        await runner.cleanup()


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _log(form: str) -> None:
    handler = logging.StreamHandler()
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(_Json() if form == "json" else text)
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("kopf").setLevel(logging.WARNING)  # it tells of every event that it hands on


async def _connected() -> aio.ApiClient:
    """A client by the pod's service account, or by KUBECONFIG outside of a cluster."""
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        aio_config.load_incluster_config()  # type: ignore[no-untyped-call]
    else:
        await aio_config.load_kube_config()  # type: ignore[no-untyped-call]
    return aio.ApiClient()


async def _main() -> int:
    settings = Settings.from_env(os.environ)
    _log(settings.log_format)
    async with await _connected() as api:
        operator = Operator(settings, api)
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, operator.stop)
        return await operator.run()


def main() -> int:
    """Entry point. 78: the settings or the way to the cluster are wrong, and the message says how."""
    try:
        return asyncio.run(_main())
    except (ValueError, aio_config.ConfigException) as error:
        print(f"rstar2-operator: {error}", file=sys.stderr)
        return 78
