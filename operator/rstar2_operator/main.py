"""The operator's process: connects, waits for the Lease, then watches and reconciles until it is stopped.

Two replicas may run; the one without the Lease is the standby. A replica that loses the Lease exits, and the kubelet
restarts it.
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

from rstar2_operator import watch
from rstar2_operator.cache import Key, WatchCache
from rstar2_operator.client import KubeClient
from rstar2_operator.lease import LeaderLease
from rstar2_operator.metrics import Metrics, application
from rstar2_operator.reconcile import Reconciler
from rstar2_operator.resync import Resync
from rstar2_operator.settings import OperatorSettings
from rstar2_operator.workqueue import WorkQueue

log = logging.getLogger("rstar2_operator")

STOP_SECONDS = 10.0
"""Maximum time for writes in progress after a stop request."""


class Operator:
    """One replica."""

    def __init__(self, settings: OperatorSettings, api: aio.ApiClient) -> None:
        self._settings = settings
        self._client = KubeClient(api)
        self._cache = WatchCache()
        self._metrics = Metrics()
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """Stop after the writes in progress."""
        self._stop.set()

    async def run(self) -> int:
        """Serve probes, wait for the Lease, lead. Return the exit code."""
        settings = self._settings
        async with _http_server(application(self._metrics, self._cache), settings.probe_port):
            lag = asyncio.create_task(self._metrics.watch_loop())
            lease = LeaderLease(
                self._client, namespace=settings.lease_namespace, name=settings.lease_name, identity=settings.identity
            )
            stopping = asyncio.create_task(self._stop.wait())
            log.info(
                "%s is waiting for the Lease %s/%s", settings.identity, settings.lease_namespace, settings.lease_name
            )
            code = 0
            if await _first(asyncio.create_task(lease.acquire()), stopping):
                held = asyncio.create_task(lease.hold())
                leading = asyncio.create_task(self._lead())
                code = await lead_while_held(leading, held, stopping, stop=self._stop)
                await lease.release()
            await _cancelled(lag, stopping)
        return code

    async def _lead(self) -> None:
        """Watch and reconcile until stopped, or until one of the tasks fails."""
        log.info("%s is the leader", self._settings.identity)
        self._metrics.set_leading(True)
        queue: WorkQueue[Key] = WorkQueue()
        reconciler = Reconciler(
            cache=self._cache, queue=queue, client=self._client, settings=self._settings, metrics=self._metrics
        )
        watching = asyncio.create_task(watch.run(self._settings, cache=self._cache, queue=queue, stop=self._stop))
        work = asyncio.create_task(self._work(reconciler, queue))
        try:
            done, _ = await asyncio.wait({watching, work}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if (error := task.exception()) is not None:
                    log.error("%s", error, exc_info=error)
        finally:
            self._metrics.set_leading(False)
            await _cancelled(work)  # first, because kopf may take seconds to stop
            await _cancelled(watching)

    async def _work(self, reconciler: Reconciler, queue: WorkQueue[Key]) -> None:
        namespaces = self._settings.watch_namespaces
        resync = Resync(self._client, self._cache, kinds=watch.children(self._settings).values(), namespaces=namespaces)
        await resync.wait_until_complete()
        workers = (reconciler.work() for _ in range(self._settings.workers))
        await asyncio.gather(resync.run(queue, self._metrics), *workers)


async def lead_while_held(
    leading: asyncio.Task[None], held: asyncio.Task[None], stopping: asyncio.Task[Any], *, stop: asyncio.Event
) -> int:
    """Wait until the replica stops leading, is stopped, or loses the Lease. Return the exit code.

    When the Lease is lost, `leading` is cancelled immediately: another replica may lead a few seconds later. After a
    request to stop, the Lease is held for STOP_SECONDS, so that `leading` can finish.
    """
    await asyncio.wait({held, leading, stopping}, return_when=asyncio.FIRST_COMPLETED)
    code = 0 if stop.is_set() else 1
    stop.set()
    if not held.done():
        await asyncio.wait({leading, held}, timeout=STOP_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    if held.done():
        log.error("could not renew the Lease: this replica exits")
    await _cancelled(leading, held)
    return code


async def _first(task: asyncio.Task[None], other: asyncio.Task[Any]) -> bool:
    """Whether `task` finishes before `other`; otherwise it is cancelled."""
    await asyncio.wait({task, other}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()
        return True
    await _cancelled(task)
    return False


async def _cancelled(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def _http_server(app: web.Application, port: int) -> Any:
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", port).start()
    try:
        yield
    finally:
        await runner.cleanup()


class _JsonFormatter(logging.Formatter):
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


def _configure_logging(log_format: str) -> None:
    handler = logging.StreamHandler()
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(_JsonFormatter() if log_format == "json" else text)
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("kopf").setLevel(logging.WARNING)  # it logs every event


async def _connected() -> aio.ApiClient:
    """A client with the pod's service account; outside of a cluster, with KUBECONFIG."""
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        aio_config.load_incluster_config()  # type: ignore[no-untyped-call]
    else:
        await aio_config.load_kube_config()  # type: ignore[no-untyped-call]
    return aio.ApiClient()


async def _main() -> int:
    settings = OperatorSettings.from_env(os.environ)
    _configure_logging(settings.log_format)
    async with await _connected() as api:
        operator = Operator(settings, api)
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, operator.stop)
        return await operator.run()


def main() -> int:
    """Entry point. Return the exit code; 78 if the settings or the access to the cluster are wrong."""
    try:
        return asyncio.run(_main())
    except (ValueError, aio_config.ConfigException) as error:
        print(f"rstar2-operator: {error}", file=sys.stderr)
        return 78
