"""The operator's process: connects, watches, waits for the Lease, then reconciles until it is stopped.

Two replicas may run; the one without the Lease is the standby. Its cache is as complete as the leader's, so that it can
take over within seconds. A replica that loses the Lease exits, and the kubelet restarts it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from typing import Any

from aiohttp import web
from kubernetes.aio import client as aio
from kubernetes.aio import config as aio_config

from rstar2_operator.cache import Key, WatchCache
from rstar2_operator.client import KubeClient, connection
from rstar2_operator.definition import wait_until_current
from rstar2_operator.informer import children, informers
from rstar2_operator.lease import LeaderLease
from rstar2_operator.logs import configure_logging
from rstar2_operator.metrics import Metrics, application
from rstar2_operator.reconcile import Reconciler
from rstar2_operator.resync import Resync
from rstar2_operator.settings import OperatorSettings
from rstar2_operator.watch import JobWatch
from rstar2_operator.watch_health import WatchHealth
from rstar2_operator.workqueue import WorkQueue
from rstar2_train.utils import event_loop
from rstar2_train.utils.listening import EVERY_ADDRESS, bind
from rstar2_train.utils.loop_watch import watch_loop

log = logging.getLogger("rstar2_operator")

STOP_SECONDS = 3.0
"""Maximum time for the rounds in progress after a stop request."""


class Operator:
    """One replica."""

    def __init__(self, settings: OperatorSettings, api: aio.ApiClient) -> None:
        self._settings = settings
        self._metrics = Metrics()
        self._client = KubeClient(api, count=self._metrics.requested)
        self._cache = WatchCache(settings.fault_indicators)
        self._queue: WorkQueue[Key] = WorkQueue()
        self._metrics.measure_queue(self._queue)
        self._health = health = WatchHealth(self._metrics.watches_failing, self._queue_jobs)
        cache, queue = self._cache, self._queue
        self._informers = informers(settings, client=self._client, cache=cache, queue=queue, health=health)
        namespaces = settings.watch_namespaces or ("",)
        self._jobs = [
            JobWatch(namespace, settings, cache=cache, queue=queue, health=health) for namespace in namespaces
        ]
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """Stop after the writes in progress."""
        self._stop.set()

    def handle_signals(self) -> None:
        """Stop on SIGTERM and SIGINT."""
        for signum in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(signum, self.stop)

    async def run(self) -> int:
        """Serve probes, watch, wait for the Lease, lead. Return the exit code."""
        settings = self._settings
        async with _http_server(application(self._metrics), settings.probe_port):
            lag = asyncio.create_task(self._metrics.watch_loop())
            stopping = asyncio.create_task(self._stop.wait())
            watching = asyncio.create_task(self._watch())
            lease = LeaderLease(
                self._client,
                namespace=settings.lease_namespace,
                name=settings.lease_name,
                identity=settings.identity,
                duration=settings.lease_seconds,
            )
            log.info(
                "%s is waiting for the Lease %s/%s", settings.identity, settings.lease_namespace, settings.lease_name
            )
            code = 0
            current = asyncio.create_task(wait_until_current(self._client, report=self._metrics.report_definition))
            ready = await _first(current, stopping, watching)
            if ready and await _first(asyncio.create_task(lease.acquire()), stopping, watching):
                held = asyncio.create_task(lease.hold())
                leading = asyncio.create_task(self._lead(watching))
                code = await lead_while_held(leading, held, stopping, stop=self._stop)
                await lease.release()  # before the watches, because kopf may take seconds to stop
            if _log_error(watching):
                code = 1
            await _cancelled(lag, stopping, watching)
        return code

    async def _watch(self) -> None:
        """Fill the cache until cancelled or stopped."""
        jobs = [asyncio.create_task(watch.run(started=self.handle_signals)) for watch in self._jobs]
        others = [asyncio.create_task(informer.run()) for informer in self._informers]
        try:
            done, _ = await asyncio.wait({*jobs, *others}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # raises the error of a failed watch
        finally:
            self.stop()  # a signal has stopped kopf before it could be handled here
            await _cancelled(*jobs, *others)

    async def _lead(self, watching: asyncio.Task[None]) -> None:
        """Reconcile until stopped, or until one of the tasks fails."""
        log.info("%s is the leader", self._settings.identity)
        self._metrics.set_leading(True)
        reconciler = Reconciler(
            cache=self._cache,
            queue=self._queue,
            client=self._client,
            settings=self._settings,
            metrics=self._metrics,
            clock=self._client.clock,
            health=self._health,
        )
        work = asyncio.create_task(self._work(reconciler))
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({watching, work, stopping}, return_when=asyncio.FIRST_COMPLETED)
            _log_error(work)
            await self._queue.close()
        finally:
            self._metrics.set_leading(False)
            await _cancelled(work, stopping)

    def _queue_jobs(self, namespace: str) -> None:
        """Queue the jobs of a namespace (empty: all)."""
        for key in self._cache.jobs():
            if namespace in ("", key[0]):
                self._queue.add(key)

    async def _work(self, reconciler: Reconciler) -> None:
        namespaces = self._settings.watch_namespaces
        resync = Resync(self._client, self._cache, kinds=children(self._settings), namespaces=namespaces)
        workers = (reconciler.work() for _ in range(self._settings.workers))
        await asyncio.gather(
            resync.complete(self._queue, self._informers),
            resync.run(self._queue, self._metrics),
            *workers,
            reconciler.work(urgent_only=True),
        )


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


async def _first(task: asyncio.Task[Any], *others: asyncio.Task[Any]) -> bool:
    """Return whether `task` finishes before the others; otherwise it is cancelled."""
    await asyncio.wait({task, *others}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()
        return True
    await _cancelled(task)
    return False


def _log_error(task: asyncio.Task[None]) -> bool:
    """Return whether the task has failed; logs its error."""
    error = task.exception() if task.done() and not task.cancelled() else None
    if error is not None:
        log.error("%s", error, exc_info=error)
    return error is not None


async def _cancelled(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def _http_server(app: web.Application, port: int) -> Any:
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.SockSite(runner, bind(EVERY_ADDRESS, port)).start()
    try:
        yield
    finally:
        await runner.cleanup()


async def connected() -> aio.ApiClient:
    """Return a client with the pod's service account; outside of a cluster, with KUBECONFIG."""
    configuration = aio.Configuration()
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        aio_config.load_incluster_config(configuration)  # type: ignore[no-untyped-call]
    else:
        await aio_config.load_kube_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    return connection(configuration)


async def _main() -> int:
    settings = OperatorSettings.from_env(os.environ)
    configure_logging(settings.log_format)
    async with await connected() as api:
        operator = Operator(settings, api)
        operator.handle_signals()
        with watch_loop():
            return await operator.run()


def main() -> int:
    """Run the operator. Return the exit code; 78 if the settings or the access to the cluster are wrong."""
    try:
        return event_loop.run_with_uvloop(_main())
    except (ValueError, aio_config.ConfigException) as error:
        print(f"rstar2-operator: {error}", file=sys.stderr)
        return 78
