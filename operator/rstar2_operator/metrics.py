"""Prometheus metrics of the operator, and its probes: whether it lives is more than whether it answers.

An operator that answers while its event loop is stuck or a watch is deaf looks well and does nothing; so the probes ask
for those.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from rstar2_operator.cache import WatchCache

LOOP_SECONDS = 0.5
MOST_LAG_SECONDS = 10.0


class Metrics:
    """Everything measured, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.leading = False
        self.deaf_to = ""
        """An object that is there and that no watch has told of; empty where there is none."""
        self._lag_since = time.monotonic()
        own = self.registry
        self._seconds = Histogram("rstar2_operator_reconcile_seconds", "Seconds of one reconciliation", registry=own)
        self._errors = Counter("rstar2_operator_reconcile_errors_total", "Failed ones", ["kind"], registry=own)
        self._applied = Counter("rstar2_operator_applied_total", "Objects written", ["kind"], registry=own)
        self._lag = Gauge("rstar2_operator_event_loop_lag_seconds", "Delay of the event loop", registry=own)
        self._leading = Gauge("rstar2_operator_leading", "1 on the replica that holds the Lease", registry=own)
        self._phases = Gauge("rstar2_operator_jobs", "Jobs by phase", ["phase"], registry=own)
        self._steps = Gauge("rstar2_job_step", "Step of the present stage", ["namespace", "job", "stage"], registry=own)
        self._restarts = Gauge("rstar2_job_restarts", "Restarts of a job", ["namespace", "job"], registry=own)

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

    def lead(self, leading: bool) -> None:
        """This replica took or lost the Lease."""
        self.leading = leading
        self._leading.set(leading)

    async def watch_loop(self) -> None:
        """Measure how late the event loop is, for ever."""
        while True:
            self._lag_since = time.monotonic()
            await asyncio.sleep(LOOP_SECONDS)
            self._lag.set(max(0.0, time.monotonic() - self._lag_since - LOOP_SECONDS))

    def page(self, store: WatchCache) -> bytes:
        """The text that Prometheus reads."""
        self._phases.clear()
        self._steps.clear()
        self._restarts.clear()
        for key in store.jobs():
            observed = store.observed(key)
            if observed is None:
                continue
            status = observed.status
            self._phases.labels(status.get("phase", "Pending")).inc()
            self._restarts.labels(*key).set(status.get("restarts", 0))
            if status.get("stage"):
                self._steps.labels(*key, status["stage"]).set(status.get("step", 0))
        return bytes(generate_latest(self.registry))

    def alive(self) -> str:
        """Why this process should be started anew; empty when it should not."""
        lag = time.monotonic() - self._lag_since - LOOP_SECONDS
        if lag > MOST_LAG_SECONDS:
            return f"the event loop has been stuck for {lag:.0f} s"
        if self.deaf_to:
            return f"no watch has told of {self.deaf_to}, which has been there for minutes"
        return ""


def application(metrics: Metrics, store: WatchCache) -> web.Application:
    """/healthz, /readyz and /metrics."""

    async def health(_: web.Request) -> web.Response:
        why = metrics.alive()
        return web.Response(text=why or "ok\n", status=500 if why else 200)

    async def ready(_: web.Request) -> web.Response:
        # A replica that waits for the Lease is ready: it can take over at any time.
        return web.Response(text="leading\n" if metrics.leading else "standing by\n")

    async def measured(_: web.Request) -> web.Response:
        return web.Response(body=metrics.page(store), content_type="text/plain")

    app = web.Application()
    app.add_routes([web.get("/healthz", health), web.get("/readyz", ready), web.get("/metrics", measured)])
    return app
