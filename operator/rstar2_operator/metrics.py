"""Prometheus metrics of the operator, and its probes.

The liveness probe fails if the event loop is stuck or a watch is stale: such a process still answers requests, but no
longer reconciles.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from rstar2_operator.cache import Key
from rstar2_operator.observed import Object, ObservedJob, condition, is_alive, seconds

LOOP_SECONDS = 0.5
MAX_LAG_SECONDS = 10.0
REPORTED_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
"""Buckets of the time from an event to the written status."""
STAGE_SECONDS = (60, 600, 1800, 3600, 4 * 3600, 12 * 3600, 24 * 3600, 2 * 86400, 4 * 86400, 7 * 86400)
"""Buckets of the duration of a stage."""


@dataclass(frozen=True, slots=True)
class JobFigures:
    """The figures of one job in a scrape, from its last round."""

    phase: str
    restarts: int
    stage: str
    step: int
    stalled: str
    """Reason of the condition Stalled; empty if it is False."""
    accelerators: int
    """Accelerators that its pods hold on nodes."""
    engines_idle: float | None
    """Share of the engines' time without a request in the last step; None without one."""
    makespan_over_bound: float | None
    """Rollout time of the last step / its lower bound; None without one."""


def figures_of(status: Object, observed: ObservedJob, *, resource: str | None) -> JobFigures:
    """Return the figures of a job with this status. `resource`: name of its accelerators. Pure."""
    stalled = condition({"status": status}, "Stalled")
    stage = status.get("stage") or ""
    rows = [row for row in status.get("stages", ()) if row["name"] == stage]
    step = (rows[0].get("metrics") or {}) if rows else {}
    return JobFigures(
        phase=status.get("phase", "Pending"),
        restarts=status.get("restarts", 0),
        stage=stage,
        step=status.get("step") or 0,
        stalled=stalled["reason"] if stalled is not None and stalled["status"] == "True" else "",
        accelerators=sum(_accelerators(pod, resource) for pod in observed.pods) if resource else 0,
        engines_idle=_number(step.get("engines_idle")),
        makespan_over_bound=_number(step.get("makespan_over_bound")),
    )


def _number(text: str | None) -> float | None:
    return None if text is None else float(text)


def _accelerators(pod: Object, resource: str) -> int:
    """Return the accelerators that a pod holds: from its binding to a node until its containers have stopped."""
    if not is_alive(pod) or not pod["spec"].get("nodeName"):
        return 0
    return sum(
        int(container["resources"]["limits"].get(resource, 0)) for container in pod["spec"].get("containers") or ()
    )


def finished_stages(old: Object, new: Object) -> Iterator[tuple[str, str, float]]:
    """Yield (type, outcome, seconds) of each stage that finished between two statuses. Pure."""
    before = {row["name"] for row in old.get("stages") or () if row.get("completionTime")}
    for row in new.get("stages") or ():
        if row["name"] not in before and row.get("completionTime") and row.get("startTime"):
            yield row["type"], row["phase"], seconds(row["completionTime"]) - seconds(row["startTime"])


def restart_reason(observed: ObservedJob, stage: str | None) -> str:
    """Return why the last attempt of a stage ended: its outcome's reason, Disrupted, or NoOutcome. Pure."""
    outcome = observed.outcome(stage) if stage else None
    row = observed.stage_status(stage) if stage else {}
    if outcome is not None and outcome.attempt == row.get("attempts"):
        return outcome.reason
    return "Disrupted" if row.get("disruptedAttempt") == row.get("attempts") and row else "NoOutcome"


class _FiguresOfJobs(Collector):
    """The metrics of single jobs, made per scrape: thousands of Gauge objects would take memory and time."""

    def __init__(self, figures: Callable[[], Mapping[Key, JobFigures]], unwritten: Callable[[], Sequence[Key]]) -> None:
        self._figures = figures
        self._unwritten = unwritten

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield all of them."""
        jobs = self._figures()
        phases = Tally(job.phase for job in jobs.values())
        stalled = Tally(job.stalled for job in jobs.values() if job.stalled)
        held: Tally[str] = Tally()
        steps = GaugeMetricFamily("rstar2_job_step", "Step of the current stage", labels=["namespace", "job", "stage"])
        restarts = GaugeMetricFamily("rstar2_job_restarts", "Restarts of a job so far", labels=["namespace", "job"])
        idle = GaugeMetricFamily(
            "rstar2_job_engines_idle_ratio",
            "Share of the engines' time without a request in the last step",
            labels=["namespace", "job", "stage"],
        )
        makespan = GaugeMetricFamily(
            "rstar2_job_makespan_over_bound",
            "Rollout time of the last step / its lower bound",
            labels=["namespace", "job", "stage"],
        )
        for key, job in jobs.items():
            held[job.phase] += job.accelerators
            restarts.add_metric(key, job.restarts)
            if job.stage:
                steps.add_metric([*key, job.stage], job.step)
            for family, value in ((idle, job.engines_idle), (makespan, job.makespan_over_bound)):
                if value is not None:
                    family.add_metric([*key, job.stage], value)
        for name, text, label, counts in (
            ("rstar2_operator_accelerators", "Accelerators that jobs hold, by phase", "phase", held),
            ("rstar2_operator_jobs", "Number of jobs by phase", "phase", phases),
            ("rstar2_operator_stalled_jobs", "Jobs that need a person, by reason", "reason", stalled),
        ):
            family = GaugeMetricFamily(name, text, labels=[label])
            for label_value, count in counts.items():
                family.add_metric([label_value], count)
            yield family
        unwritten = GaugeMetricFamily(
            "rstar2_operator_unwritten_statuses",
            "Jobs whose status could not be written for a minute",
            labels=["namespace"],
        )
        for namespace, count in Tally(key[0] for key in self._unwritten()).items():
            unwritten.add_metric([namespace], count)
        yield from (steps, restarts, idle, makespan, unwritten)


class Metrics:
    """The metrics, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.leading = False
        self.stale_watch = ""
        """An existing object that no watch has delivered; empty if there is none."""
        self.outdated_definition = ""
        """Why the cluster's definition of AgenticRLJob cannot be used; empty if it can."""
        self._not_served: set[str] = set()
        """Namespaces with a failing watch; empty name: all."""
        self._unwritten: Callable[[], Sequence[Key]] = tuple
        """Returns the jobs whose status cannot be written."""
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
        self._depth = Gauge("rstar2_operator_queue_depth", "Jobs that wait for a worker", registry=own)
        self._waited = Histogram("rstar2_operator_queue_seconds", "Time of a job in the queue in seconds", registry=own)
        self._reported = Histogram(
            "rstar2_operator_event_to_status_seconds",
            "Time from the first event to the status that it changed, in seconds",
            registry=own,
            buckets=REPORTED_SECONDS,
        )
        self._requests = Counter(
            "rstar2_operator_api_requests_total", "Requests to the API server", ["verb", "resource", "code"],
            registry=own,
        )  # fmt: skip
        self._restarted = Counter(
            "rstar2_operator_stage_restarts_total", "Restarts of stages by reason", ["reason"], registry=own
        )
        self._stage_seconds = Histogram(
            "rstar2_operator_stage_seconds", "Duration of finished stages in seconds", ["type", "outcome"],
            registry=own, buckets=STAGE_SECONDS,
        )  # fmt: skip
        self._unreadable = Gauge(
            "rstar2_operator_namespace_unreadable", "Failing watches of a namespace, which is not served",
            ["namespace"], registry=own,
        )  # fmt: skip
        self._orphans = Gauge(
            "rstar2_operator_orphaned_pods", "Running pods of a job that was deleted with --cascade=orphan",
            ["namespace", "job"], registry=own,
        )  # fmt: skip
        self._leading = Gauge("rstar2_operator_leading", "1 on the leader, 0 on the standby", registry=own)

    def report_definition(self, outdated: str) -> None:
        """Record why the definition of AgenticRLJob cannot be used; empty if it can."""
        self.outdated_definition = outdated

    @contextmanager
    def reconciling(self) -> Iterator[None]:
        """Measure the time of one reconciliation."""
        with self._seconds.time():
            yield

    def failed(self, error: Exception) -> None:
        """Count a failed reconciliation."""
        self._errors.labels(type(error).__name__).inc()

    def applied(self, kind: str) -> None:
        """Count a written object."""
        self._applied.labels(kind).inc()

    def measure_queue(self, queue: Sized) -> None:
        """Report the length of this queue."""
        self._depth.set_function(lambda: len(queue))

    def waited(self, seconds: float) -> None:
        """Record the time that a job waited for a worker."""
        self._waited.observe(seconds)

    def requested(self, verb: str, resource: str, code: int) -> None:
        """Count a response of the API server."""
        self._requests.labels(verb, resource, str(code)).inc()

    def measure_jobs(
        self,
        figures: Callable[[], Mapping[Key, JobFigures]],
        unwritten: Callable[[], Sequence[Key]] = tuple,
    ) -> None:
        """Report the figures of all jobs, as `figures` returns them for each scrape.

        `unwritten` returns the jobs whose status cannot be written.
        """
        self.registry.register(_FiguresOfJobs(figures, unwritten))
        self._unwritten = unwritten

    def written(self, observed: ObservedJob, status: Object, *, event_at: float) -> None:
        """Record a written status. `event_at`: monotonic time of the first event of the round."""
        old = observed.status
        self._reported.observe(time.monotonic() - event_at)
        if (restarts := status.get("restarts", 0) - old.get("restarts", 0)) > 0:
            self._restarted.labels(restart_reason(observed, old.get("stage"))).inc(restarts)
        for kind, outcome, duration in finished_stages(old, status):
            self._stage_seconds.labels(kind, outcome).observe(duration)

    def watches_failing(self, namespace: str, failing: int) -> None:
        """Record the number of failing watches of a namespace."""
        self._unreadable.labels(namespace).set(failing)
        (self._not_served.add if failing else self._not_served.discard)(namespace)

    def report_orphans(self, running: Mapping[Key, int]) -> None:
        """Record the running pods of each job that was deleted without its objects."""
        self._orphans.clear()
        for key, pods in running.items():
            self._orphans.labels(*key).set(pods)

    def readiness(self) -> str:
        """Return the role of this replica, the namespaces that it cannot serve, and those with old statuses."""
        role = "leader" if self.leading else "standby"
        lost = ", ".join(sorted(namespace or "the cluster" for namespace in self._not_served))
        role = f"{role}; not served: {lost}" if lost else role
        old = sorted(Tally(namespace for namespace, _ in self._unwritten()).items())
        counts = ", ".join(f"{count} in {namespace}" for namespace, count in old)
        return f"{role}; statuses that cannot be written: {counts}" if counts else role

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

    def page(self) -> bytes:
        """Return the text that Prometheus scrapes."""
        return bytes(generate_latest(self.registry))

    def failure(self) -> str:
        """Return why the kubelet should restart this process; empty if it should not."""
        lag = time.monotonic() - self._lag_since - LOOP_SECONDS
        if lag > MAX_LAG_SECONDS:
            return f"the event loop has been stuck for {lag:.0f} s"
        if self.stale_watch:
            return f"the watch of {self.stale_watch} is stale: the object exists, but was not delivered for minutes"
        return ""


def application(metrics: Metrics) -> web.Application:
    """Return the HTTP application with /healthz, /readyz and /metrics."""

    async def health(_: web.Request) -> web.Response:
        failure = metrics.failure()
        return web.Response(text=failure or "ok\n", status=500 if failure else 200)

    async def ready(_: web.Request) -> web.Response:
        if metrics.outdated_definition:
            return web.Response(text=f"{metrics.outdated_definition}\n", status=503)
        # The standby is ready: it can take over at any time. So is a replica that cannot serve one of the namespaces.
        return web.Response(text=f"{metrics.readiness()}\n")

    async def metrics_page(_: web.Request) -> web.Response:
        return web.Response(body=metrics.page(), content_type="text/plain")

    app = web.Application()
    app.add_routes([web.get("/healthz", health), web.get("/readyz", ready), web.get("/metrics", metrics_page)])
    return app
