"""Prometheus metrics of the operator, and its probes.

The liveness probe fails if the event loop is stuck or a watch is stale: such a process still answers requests, but no
longer reconciles.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from rstar2_operator.cache import WatchCache
from rstar2_operator.observed import condition

LOOP_SECONDS = 0.5
MAX_LAG_SECONDS = 10.0


class Metrics:
    """The metrics, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.leading = False
        self.stale_watch = ""
        """An existing object that no watch has delivered; empty if there is none."""
        self._lag_since = time.monotonic()
        own = self.registry
        self._seconds = Histogram(
            "rstar2_operator_reconcile_seconds", "Duration of one reconciliation in seconds", registry=own
        )
        self._errors = Counter(
            "rstar2_operator_reconcile_errors_total", "Total failed reconciliations", ["kind"], registry=own
        )
        self._applied = Counter("rstar2_operator_applied_total", "Total objects written", ["kind"], registry=own)
        self._lag = Gauge("rstar2_operator_event_loop_lag_seconds", "Delay of the event loop in seconds", registry=own)
        self._leading = Gauge("rstar2_operator_leading", "1 on the leader, 0 on the standby", registry=own)
        self._phases = Gauge("rstar2_operator_jobs", "Number of jobs by phase", ["phase"], registry=own)
        self._stalled = Gauge(
            "rstar2_operator_stalled_jobs", "Jobs that need a person, by reason", ["reason"], registry=own
        )
        self._steps = Gauge("rstar2_job_step", "Step of the current stage", ["namespace", "job", "stage"], registry=own)
        self._restarts = Gauge("rstar2_job_restarts", "Restarts of a job so far", ["namespace", "job"], registry=own)

    @contextmanager
    def reconciling(self) -> Iterator[None]:
        """Time one reconciliation."""
        with self._seconds.time():
            yield

    def failed(self, error: Exception) -> None:
        """Count a failed reconciliation."""
        self._errors.labels(type(error).__name__).inc()

    def applied(self, kind: str) -> None:
        """Count a written object."""
        self._applied.labels(kind).inc()

    def set_leading(self, leading: bool) -> None:
        """Record whether this replica is the leader."""
        self.leading = leading
        self._leading.set(leading)

    async def watch_loop(self) -> None:
        """Measure the delay of the event loop until cancelled."""
        while True:
            self._lag_since = time.monotonic()
            await asyncio.sleep(LOOP_SECONDS)
            self._lag.set(max(0.0, time.monotonic() - self._lag_since - LOOP_SECONDS))

    def page(self, cache: WatchCache) -> bytes:
        """Return the text that Prometheus scrapes."""
        self._phases.clear()
        self._steps.clear()
        self._restarts.clear()
        self._stalled.clear()
        for key in cache.jobs():
            observed = cache.observed(key)
            if observed is None:
                continue
            status = observed.status
            self._phases.labels(status.get("phase", "Pending")).inc()
            self._restarts.labels(*key).set(status.get("restarts", 0))
            stalled = condition(observed.job, "Stalled")
            if stalled is not None and stalled["status"] == "True":
                self._stalled.labels(stalled["reason"]).inc()
            if status.get("stage"):
                self._steps.labels(*key, status["stage"]).set(status.get("step", 0))
        return bytes(generate_latest(self.registry))

    def failure(self) -> str:
        """Return why the kubelet should restart this process; empty if it should not."""
        lag = time.monotonic() - self._lag_since - LOOP_SECONDS
        if lag > MAX_LAG_SECONDS:
            return f"the event loop has been stuck for {lag:.0f} s"
        if self.stale_watch:
            return f"the watch of {self.stale_watch} is stale: the object exists, but was not delivered for minutes"
        return ""


def application(metrics: Metrics, cache: WatchCache) -> web.Application:
    """Return the HTTP application with /healthz, /readyz and /metrics."""

    async def health(_: web.Request) -> web.Response:
        failure = metrics.failure()
        return web.Response(text=failure or "ok\n", status=500 if failure else 200)

    async def ready(_: web.Request) -> web.Response:
        # The standby is ready: it can take over at any time.
        return web.Response(text="leader\n" if metrics.leading else "standby\n")

    async def metrics_page(_: web.Request) -> web.Response:
        return web.Response(body=metrics.page(cache), content_type="text/plain")

    app = web.Application()
    app.add_routes([web.get("/healthz", health), web.get("/readyz", ready), web.get("/metrics", metrics_page)])
    return app
