"""One job at a time: observe -> decide -> build -> apply -> report. Every step can be repeated from any point.

Workers take keys of jobs from the queue; whatever fails comes back later. Nothing is remembered between two rounds but
what saves a request.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import Any

from kubernetes.aio.client.exceptions import ApiException

from rstar2_operator.apply import NameConflict, apply, changed, delete, is_missing, must_wait, owned, refusal
from rstar2_operator.builders.config import secret
from rstar2_operator.builders.objects import build_context, objects
from rstar2_operator.builders.pod import BuildContext
from rstar2_operator.cache import Key, WatchCache
from rstar2_operator.client import KubeClient
from rstar2_operator.decide import stage_progress
from rstar2_operator.decide.decide import decide
from rstar2_operator.decide.diagnostics import Diagnosis, overdue_at
from rstar2_operator.decide.failure_policy import plan_after_refusals
from rstar2_operator.decide.plan import Plan
from rstar2_operator.decide.pruning import prunable, prunable_when_suspended
from rstar2_operator.decide.shared_secret import reported_missing, secret_consumers
from rstar2_operator.decide.status import invalid_status, status_of
from rstar2_operator.drift import DriftCorrections, drifted
from rstar2_operator.metrics import Metrics
from rstar2_operator.observed import Object, ObservedJob
from rstar2_operator.settings import OperatorSettings
from rstar2_operator.status_writer import StatusWriter
from rstar2_operator.workqueue import WorkQueue
from rstar2_train.api.issue import InvalidJob
from rstar2_train.api.validation import check

log = logging.getLogger(__name__)


class Reconciler:
    """Brings jobs to what they ask for."""

    def __init__(
        self,
        *,
        store: WatchCache,
        queue: WorkQueue[Key],
        client: KubeClient,
        settings: OperatorSettings,
        metrics: Metrics,
    ) -> None:
        self._store = store
        self._queue = queue
        self._client = client
        self._settings = settings
        self._metrics = metrics
        self._reporter = StatusWriter(client, instance=settings.identity)
        self._corrections = DriftCorrections()
        self._with_secret: dict[Key, str] = {}
        """Job -> UID, of jobs whose Secret is known to be there: it cannot be watched, for it must not be read."""

    async def work(self) -> None:
        """Reconcile whatever the queue gives, for ever."""
        while True:
            key = await self._queue.take()
            failed = False
            try:
                with self._metrics.reconciling():
                    failed = await self._reconcile(key)
            except Exception as error:
                failed = True
                self._metrics.failed(error)
                _complain(key, error)
            finally:
                self._queue.done(key, failed=failed)

    async def _reconcile(self, key: Key) -> bool:
        """One round; whether the API server refused something, which is tried again."""
        observed = self._store.observed(key)
        if observed is None or observed.job["metadata"].get("deletionTimestamp"):
            self._queue.forget_timer(key)
            self._reporter.forget(key)
            self._with_secret.pop(key, None)
            self._corrections.forget(key)
            return False  # what it owns is deleted by the cluster itself
        now, refused = time.time(), list[Diagnosis]()
        one, errors = self._validated(observed)
        if one is None:
            left = prunable(observed, ())
            if observed.job["spec"].get("suspend"):
                refused = await self._delete(key, prunable_when_suspended(observed))
            status = invalid_status(observed, errors, now=now, left=bool(left), refused=refused)
            wake_at = correct_in = None
        else:
            job, observed = one.job, await self._asked_for_secret(key, one, observed)
            plan = decide(job, observed, now=now)
            if plan.remove:
                await delete(self._client, "AgenticRLJob", observed.job)
                return False
            refused, correct_in = await self._carry_out(key, one, plan, observed)
            observed_now = self._store.observed(key) or observed
            plan = plan_after_refusals(plan, observed_now, refused)
            status = status_of(job, observed_now, plan, now=now, refused=refused)
            wake_at = plan.wake_at
        again = await self._reporter.report(key, observed.job, status)
        times = [when for when in (again, correct_in) if when is not None]
        times += [when - now for when in (wake_at, overdue_at(observed, now=now)) if when is not None]
        if times:
            self._queue.add_after(key, min(times) + 0.05)
        return bool(refused)

    async def _asked_for_secret(self, key: Key, one: BuildContext, observed: ObservedJob) -> ObservedJob:
        """The same, knowing whether the Secret is gone: asked by a new process, and when a pod says so."""
        if reported_missing(observed):
            self._with_secret.pop(key, None)
        if self._has_secret(key, observed) or not secret_consumers(observed):
            return observed
        if await is_missing(self._client, owned(secret(one), observed.job, keep_claims=True)):
            return replace(observed, secret_missing=True)
        self._with_secret[key] = observed.job["metadata"]["uid"]
        return observed

    def _has_secret(self, key: Key, observed: ObservedJob) -> bool:
        return bool(self._with_secret.get(key) == observed.job["metadata"]["uid"])

    def _validated(self, observed: ObservedJob) -> tuple[BuildContext | None, str]:
        """What the builders work from, or every error of a job that the schema could not refuse."""
        job, problems = check(dict(observed.job))
        if job is None:
            return None, "\n".join(str(problem) for problem in problems if not problem.warning)
        try:
            return build_context(job, self._settings), ""
        except InvalidJob as error:
            return None, str(error)

    async def _carry_out(
        self, key: Key, one: BuildContext, plan: Plan, observed: ObservedJob
    ) -> tuple[list[Diagnosis], float | None]:
        """Make what is missing, change what is different, delete what is left over.

        What is refused stops only what needs it: deletions, and changes of what is there, go on. Returns what was
        refused, and the seconds after which to come again for what somebody else keeps changing.
        """
        keep = one.job.spec.storage.reclaim_policy == "Retain"
        wanted = objects(one, plan, has_secret=self._has_secret(key, observed) or secret_consumers(observed))
        bodies = [owned(body, observed.job, keep_claims=keep) for body in wanted]
        lacking = False
        corrected, refused, again = self._corrections.due(key, drifted(bodies, observed))
        for body in corrected:
            log.info(
                "%s/%s: putting %s/%s right: somebody has changed it", *key, body["kind"], body["metadata"]["name"]
            )
        for body in (*changed(bodies, observed), *corrected):
            kind, name = body["kind"], body["metadata"]["name"]
            if lacking and must_wait(body, observed):
                continue
            if kind != "Secret" and observed.child(kind, name) is None:
                log.info("%s/%s: making %s/%s", *key, kind, name)
            try:
                await self._apply(key, body, observed)
            except (ApiException, NameConflict) as error:
                refused.append(self._refused(key, kind, body, error))
                lacking = lacking or observed.child(kind, name) is None
                if body in corrected:
                    self._corrections.refused(key, body, refused[-1])
        if refused:
            self._with_secret.pop(key, None)  # it may be an earlier job's, as the others, and go with it
        return refused + await self._delete(key, prunable(observed, wanted)), again

    async def _delete(self, key: Key, left: list[tuple[str, Object]]) -> list[Diagnosis]:
        refused = []
        for kind, child in left:
            try:
                await delete(self._client, kind, child)
            except ApiException as error:
                refused.append(self._refused(key, kind, child, error))
        return refused

    async def _apply(self, key: Key, body: dict[str, Any], observed: ObservedJob) -> None:
        if body["kind"] == "Secret":
            try:
                await apply(self._client, body, observed)
            except ApiException:
                if stage_progress.preparation(observed) != "complete":
                    raise  # later it is there: a quota that is full refuses also what would not be made
            self._with_secret[key] = observed.job["metadata"]["uid"]
        elif (there := await apply(self._client, body, observed)) is not None:
            # The next round must see it also when the watch is slower than we are.
            self._store.saw_child(body["kind"], there, gone=False)
            self._corrections.wrote(key, body, there)
            self._metrics.applied(body["kind"])

    def _refused(self, key: Key, kind: str, thing: Object, error: ApiException | NameConflict) -> Diagnosis:
        self._metrics.failed(error)
        told = refusal(kind, thing, error)
        log.warning("%s: %s", "/".join(key), told)
        return told


def _complain(key: Key, error: Exception) -> None:
    """Log a failure: in one line when the API server said no, with a traceback when it is our own."""
    where = "/".join(key)
    if isinstance(error, ApiException):
        log.warning(
            "%s: the API server answered %s %s: %s", where, error.status, error.reason, (error.body or "")[:500]
        )
    else:
        log.exception("%s: reconciling failed", where)
