"""One job at a time: observe -> decide -> build -> apply -> report. Every step can be repeated from any point.

Workers take keys of jobs from the queue; a failed key comes back later. Between two rounds only caches are kept, which
save requests.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from kubernetes.aio.client.exceptions import ApiException

from rstar2_operator import logs, names
from rstar2_operator.apply import (
    adopt_unbound_claim,
    any_terminating,
    applied_spec,
    apply,
    changed,
    delete,
    has_equal_pods,
    keep_grants,
    keep_revision,
    must_wait,
    rejection,
    set_finalizer,
)
from rstar2_operator.builders.pod import BuildContext
from rstar2_operator.cache import JOB, Key, WatchCache
from rstar2_operator.client import UNREACHABLE, KubeClient, is_transient, retry_after
from rstar2_operator.decide import stage_progress
from rstar2_operator.decide.decide import decide
from rstar2_operator.decide.decision import DELETING, FINAL, Decision
from rstar2_operator.decide.deletion import has_finalizer, is_deleted, keeps_objects, needs_finalizer
from rstar2_operator.decide.diagnostics import Diagnosis, next_overdue_at
from rstar2_operator.decide.engine_lengths import kept_lengths
from rstar2_operator.decide.failure_policy import decision_after_rejections
from rstar2_operator.decide.invalid_spec import remains
from rstar2_operator.decide.kueue import current_workload, placements, priority_class
from rstar2_operator.decide.pod_termination import running_pods
from rstar2_operator.decide.pruning import prunable
from rstar2_operator.decide.shared_secret import has_secret_consumers
from rstar2_operator.decide.status import invalid_status, status_of
from rstar2_operator.desired import DesiredState
from rstar2_operator.drift import drifted
from rstar2_operator.failed_rounds import failure, log_failure, report_problems, unwatched
from rstar2_operator.identity import Mutated, Refused
from rstar2_operator.metrics import JobFigures, Metrics, figures_of
from rstar2_operator.observed import Object, ObservedJob, annotations_of, is_managed
from rstar2_operator.quota import QuotaReader
from rstar2_operator.reconcile_state import ReconcileState
from rstar2_operator.references import ReferenceReader
from rstar2_operator.settings import OperatorSettings
from rstar2_operator.status_writer import StatusWriter
from rstar2_operator.watch_health import WatchHealth
from rstar2_operator.workqueue import WorkQueue

log = logging.getLogger(__name__)

TIMER_SLACK_SECONDS = 0.05
"""Delay of wake-ups, so that a round never starts a moment before its deadline."""


class Reconciler:
    """Brings jobs to their desired state."""

    def __init__(
        self,
        *,
        cache: WatchCache,
        queue: WorkQueue[Key],
        client: KubeClient,
        settings: OperatorSettings,
        metrics: Metrics,
        clock: Callable[[], float] = time.time,
        health: WatchHealth | None = None,
    ) -> None:
        """`clock` returns the time that decisions compare with timestamps of objects, in seconds since 1970.

        `health`: of the watches that fill the cache.
        """
        self._cache = cache
        self._queue = queue
        self._client = client
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self._health = health or WatchHealth()
        self._status_writer = StatusWriter(client, cache, instance=settings.identity)
        self._quota = QuotaReader(client)
        self._references = ReferenceReader(client)
        self._desired = DesiredState(settings)
        self._states: dict[Key, ReconcileState] = {}
        metrics.measure_jobs(self._figures, self._unwritten)

    async def work(self, *, urgent_only: bool = False) -> None:
        """Reconcile keys from the queue until cancelled."""
        while True:
            key = await self._queue.take(urgent_only=urgent_only)
            if not self._cache.is_complete(key[0]):
                await self._report(key, unwatched(key, self._health.lasting(key[0])))
                self._queue.done(key)  # resync.py queues it again
                continue
            failed, after = False, 0.0
            event_at = self._queue.waited_since(key)
            self._metrics.waited(time.monotonic() - event_at)
            try:
                with self._metrics.reconciling(), logs.reconciling(*key):
                    failed = await self._reconcile(key, event_at)
                self._recovered(key)
            except Exception as error:
                failed, after = True, retry_after(error)
                self._metrics.failed(error)
                log_failure(key, error)
                if (state := self._states.get(key)) is not None and state.failed.lasts(error):
                    await self._report(key, [failure(key, error)])
            finally:
                self._queue.done(key, failed=failed, after=after)
            await asyncio.sleep(0)  # a round may have no request, and 1,000 of them must not stop Lease and probes

    def _recovered(self, key: Key) -> None:
        if (state := self._states.get(key)) is not None:
            state.failed.since = None

    async def _report(self, key: Key, problems: list[Diagnosis]) -> None:
        """Add problems to the last status of a job that cannot be reconciled."""
        observed = self._cache.observed(key)
        if not problems or observed is None or not is_managed(observed.job, self._settings.controller_name):
            return
        times, now = self._state(key, observed.job).status, self._clock()
        complete = self._cache.is_complete(key[0])
        wait = await report_problems(self._status_writer, times, observed, problems, now=now, is_complete=complete)
        if wait is not None:
            self._queue.add_after(key, wait)

    async def _reconcile(self, key: Key, event_at: float) -> bool:
        """Reconcile a job once. Return whether the API server rejected something, which is retried."""
        observed = self._cache.observed(key)
        if observed is not None and not is_managed(observed.job, self._settings.controller_name):
            observed = None
        if observed is not None and keeps_objects(observed.job):
            await self._set_finalizer(key, observed.job, present=False)
        if observed is None or keeps_objects(observed.job) or _is_gone(observed.job):
            self._queue.drop_timer(key)
            self._states.pop(key, None)
            return False  # the garbage collector deletes the objects of the job; another controller has its own
        now, state = self._clock(), self._state(key, observed.job)
        state.transient.start_round()
        context, errors = self._desired.context(state.desired, observed.job)
        ended = observed.status.get("phase") in FINAL
        stale = [] if ended else unwatched(key, self._health.lasting(key[0]))
        if context is None:
            state.missing.stop()
            left = remains(observed, now=now)
            rejected, wake_at = await self._delete(key, left.objects, graceful=left.stop_pods), left.wake_at
            if is_deleted(observed.job) and not running_pods(observed):
                return bool(await self._set_finalizer(key, observed.job, present=False))
            status = invalid_status(observed, errors, now=now, running=left.running, rejected=[*rejected, *stale])
            correct_in, resource = None, None
        else:
            job, observed = context.job, await state.secret.checked(self._client, context, observed)
            observed = replace(observed, status_rejected=True) if state.status.rejected else observed
            context = replace(context, kept_lengths=kept_lengths(observed))
            context, observed = await self._with_quota(state, context, observed)
            decision, resource = decide(job, observed, now=now), job.spec.accelerator.resource
            logs.at_stage(decision.stage)
            if decision.release:
                await adopt_unbound_claim(self._client, observed)
            unchanged = await self._set_finalizer(key, observed.job, present=needs_finalizer(decision))
            if decision.delete:
                unchanged += await self._delete(key, [(JOB, observed.job)])
                decision = replace(decision, wake_at=None)  # its time is over; a rejected deletion is repeated
            if decision.release or (decision.delete and not unchanged):
                return bool(unchanged)
            rejected, correct_in = await self._apply_decision(key, state, context, decision, observed, now=now)
            rejected += unchanged
            observed_now = self._cache.observed(key) or observed
            decision = decision_after_rejections(decision, observed_now, rejected)
            missing = await self._missing(state, context, decision, observed)
            status = status_of(job, observed_now, decision, now=now, rejected=[*rejected, *stale], missing=missing)
            wake_at = decision.wake_at
        state.figures = figures_of(status, observed, resource=resource)
        write_in, written = await self._status_writer.write(
            state.status, observed.job, status, attempt_is_current=_attempt_is_current(observed, status)
        )
        if written:
            self._metrics.written(observed, status, event_at=event_at)
        state.transient.end_round()
        due = (write_in, correct_in, state.secret.due_in(), state.missing.due_in())
        delays = [delay for delay in due if delay is not None]
        delays += [when - now for when in (wake_at, next_overdue_at(observed, now=now)) if when is not None]
        if delays:
            self._queue.add_after(key, min(delays) + TIMER_SLACK_SECONDS)
        return bool(rejected)

    def _state(self, key: Key, job: Object) -> ReconcileState:
        """Return the state of a job; a new one if another job had the name."""
        state, uid = self._states.get(key), job["metadata"]["uid"]
        if state is None or state.uid != uid:
            state = self._states[key] = ReconcileState(uid)
        return state

    async def _missing(
        self, state: ReconcileState, context: BuildContext, decision: Decision, observed: ObservedJob
    ) -> list[Diagnosis]:
        """Return the missing objects that pods of a job need, in this or a later stage."""
        if decision.ending is not None or context.job.spec.suspend:
            state.missing.stop()
            return []
        return await state.missing.problems(
            self._references, lambda: self._desired.references(state.desired, context), observed
        )

    def _figures(self) -> dict[Key, JobFigures]:
        return {key: state.figures for key, state in self._states.items() if state.figures is not None}

    def _unwritten(self) -> list[Key]:
        return sorted(key for key, state in self._states.items() if state.status.is_failing())

    async def _with_quota(
        self, state: ReconcileState, context: BuildContext, observed: ObservedJob
    ) -> tuple[BuildContext, ObservedJob]:
        """Return both with the nodes that Kueue has assigned, and the value of the job's PriorityClass."""
        if not context.job.spec.queue_name:
            return context, observed
        observed = await self._quota.with_flavors(state.flavors, observed)
        kind, name = priority_class(context.job)
        priority = await self._quota.priority(kind, name) if name else None
        return replace(context, placements=placements(observed), priority=priority), observed

    async def _apply_decision(
        self,
        key: Key,
        state: ReconcileState,
        context: BuildContext,
        decision: Decision,
        observed: ObservedJob,
        *,
        now: float,
    ) -> tuple[list[Diagnosis], float | None]:
        """Create missing objects, update changed ones, delete superfluous ones.

        A rejected object blocks only new workloads; deletions and updates of existing objects continue. Returns the
        rejections, and the seconds until the next correction of drift. Raises the last transient error after all
        writes were tried: it is retried, and the status does not show it before it lasts.
        """
        has_secret = state.secret.exists or has_secret_consumers(observed)
        bodies = desired = self._desired.bodies(state.desired, observed.job, context, decision, has_secret=has_secret)
        if _is_running(decision, observed):
            bodies = keep_revision(bodies, observed)
        bodies = keep_grants(bodies, observed)
        blocked, transient = state.status.rejected or any_terminating(desired, observed), list[Exception]()
        if decision.phase == DELETING:  # only the report is new; other objects may be deleted at the same time
            bodies = [body for body in bodies if body["kind"] == "Job"]
        corrections, rejected, correct_in = state.corrections.due(drifted(bodies, observed))
        changes, contested = state.corrections.uncontested(changed(bodies, observed), observed)
        rejected += contested
        for body in (*changes, *corrections):
            kind, name = body["kind"], body["metadata"]["name"]
            if blocked and must_wait(body, observed):
                continue
            if kind != "Secret" and observed.child(kind, name) is None:
                log.info("%s/%s: creating %s/%s", *key, kind, name)
            try:
                with state.mutated.guard(body):
                    await self._apply(state, body, observed)
            except (ApiException, Refused, *UNREACHABLE) as error:
                blocked = blocked or observed.child(kind, name) is None
                if self._must_retry(key, error):
                    transient.append(error)
                    continue
                rejected.append(self._rejected(key, kind, body, error))
                if body in corrections:
                    state.corrections.reject(body, rejected[-1])
        if rejected:
            state.secret.invalidate()
        others: list[tuple[str, Object]] = [("Pod", pod) for pod in (*decision.remove_pods, *decision.stop_pods)]
        others += [("Job", job) for job in decision.stale_jobs]
        others += prunable(observed, desired, now=now, ending=decision.ending)
        rejected += await self._delete(key, others, graceful=decision.stop_pods)
        rejected += await self._report_to_kueue(key, decision, now=now)
        if transient:
            raise transient[-1]
        return rejected, correct_in

    async def _report_to_kueue(self, key: Key, decision: Decision, *, now: float) -> list[Diagnosis]:
        """Write the status of the job's Workload."""
        observed = self._cache.observed(key)
        if observed is None or (workload := current_workload(observed)) is None:
            return []
        try:
            for live in await self._quota.report(observed, decision, now=now):
                self._cache.record_write("Workload", live)
        except ApiException as error:
            if error.status in (404, 409) or self._must_retry(key, error):  # it has changed, so another round follows
                raise
            return [self._rejected(key, "Workload", workload, error)]
        return []

    async def _set_finalizer(self, key: Key, job: Object, *, present: bool) -> list[Diagnosis]:
        """Add or remove the operator's finalizer. Returns the rejection; a deleted job cannot receive a finalizer."""
        if has_finalizer(job) == present or (present and is_deleted(job)):
            return []
        try:
            live = await set_finalizer(self._client, job, present=present)
        except ApiException as error:
            if self._must_retry(key, error):
                raise
            return [self._rejected(key, JOB, job, error)]
        if live is not None:
            self._cache.record_write(JOB, live)
        return []

    async def _delete(
        self, key: Key, children: list[tuple[str, Object]], *, graceful: Sequence[Object] = ()
    ) -> list[Diagnosis]:
        rejected = []
        for kind, child in children:
            try:
                await self._delete_one(kind, child, force=kind == "Pod" and child not in graceful)
            except ApiException as error:
                if self._must_retry(key, error):
                    raise
                rejected.append(self._rejected(key, kind, child, error))
        return rejected

    async def _delete_one(self, kind: str, obj: Object, *, force: bool) -> None:
        remaining = await delete(self._client, kind, obj, force=force)
        if remaining is None:
            self._cache.record_deletion(kind, obj)
        else:
            self._cache.record_write(kind, remaining)

    async def _apply(self, state: ReconcileState, body: dict[str, Any], observed: ObservedJob) -> None:
        if body["kind"] == "Secret":
            try:
                await apply(self._client, body, observed)
            except ApiException as error:
                if is_transient(error) or stage_progress.preparation(observed) != "complete":
                    raise  # later it exists: a full quota rejects also the creation of an existing object
            state.secret.record()
            return
        try:
            live = await apply(self._client, body, observed)
        except Mutated as error:
            if error.unusable is not None:  # the cache must not have it: it would seem to be an attempt that ran
                await self._delete_one(body["kind"], error.unusable, force=False)
            raise
        if live is not None:
            # The next round must see the object even if its watch event comes later.
            self._cache.record_write(body["kind"], live)
            state.corrections.record(body, live)
            self._metrics.applied(body["kind"])

    def _must_retry(self, key: Key, error: Exception) -> bool:
        """Return whether the round must fail, so that it is repeated; a lasting error is reported instead."""
        state = self._states.get(key)
        return is_transient(error) if state is None else state.transient.must_retry(error)

    def _rejected(self, key: Key, kind: str, obj: Object, error: Exception) -> Diagnosis:
        self._metrics.failed(error)
        problem = rejection(kind, obj, error)
        log.warning("%s: %s", "/".join(key), problem)
        return problem


def _is_gone(job: Object) -> bool:
    """Return whether a job was deleted, and does not wait for the operator."""
    return is_deleted(job) and not has_finalizer(job)


def _is_running(decision: Decision, observed: ObservedJob) -> bool:
    """Return whether pods of an attempt use the job's objects."""
    attempt = decision.attempt
    created = attempt is not None and attempt.number in observed.attempts(attempt.stage)
    return created or bool(stage_progress.running_attempts(observed))


def _attempt_is_current(observed: ObservedJob, status: Object) -> bool:
    """Return whether a new attempt would have the settings of the last one, after an edit of the job."""
    if status.get("observedGeneration") == observed.status.get("observedGeneration"):
        return False
    attempts = observed.attempts(str(status.get("stage")))
    if not attempts:
        return False
    return has_equal_pods(annotations_of(attempts[max(attempts)]).get(names.SPEC, ""), applied_spec(observed.job))
