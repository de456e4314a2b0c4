"""The validated spec and the desired objects of the jobs that were reconciled last. In memory only.

Most reconciliations change neither, and both cost more than the rest of a reconciliation. The number of kept jobs
bounds the memory; the others are computed again.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from rstar2_operator.apply import applied_spec, owned
from rstar2_operator.builders.objects import build_context, objects
from rstar2_operator.builders.pod import BuildContext, Manifest
from rstar2_operator.cache import Key
from rstar2_operator.decide.plan import Plan
from rstar2_operator.observed import Object, as_json
from rstar2_operator.settings import OperatorSettings
from rstar2_train.api.issue import InvalidJob
from rstar2_train.api.validation import check

KEPT_JOBS = 128
"""Jobs that are kept: about 130 KB each."""
KUEUE_DISABLED = "the operator does not use Kueue; set kueue.enabled=true in its chart, or remove the field"


@dataclass(slots=True)
class _Kept:
    """One job."""

    text: str
    """Its metadata and spec as JSON."""
    context: BuildContext | None
    errors: str
    inputs: list[object] = field(default_factory=list)
    """All other inputs of `bodies`."""
    bodies: list[Manifest] = field(default_factory=list)


class DesiredState:
    """Computes the desired objects of jobs, and keeps those of the last jobs."""

    def __init__(self, settings: OperatorSettings) -> None:
        self._settings = settings
        self._kept: OrderedDict[Key, _Kept] = OrderedDict()

    def context(self, key: Key, job: Object) -> tuple[BuildContext | None, str]:
        """Return the builders' input of a job, or every error of a spec that the schema could not reject."""
        text = as_json([job["metadata"], job["spec"]])
        kept = self._kept.get(key)
        if kept is None or kept.text != text:
            kept = self._kept[key] = _Kept(text, *self._validated(job))
        self._kept.move_to_end(key)
        if len(self._kept) > KEPT_JOBS:
            self._kept.popitem(last=False)
        return kept.context, kept.errors

    def bodies(self, key: Key, job: Object, context: BuildContext, plan: Plan, *, has_secret: bool) -> list[Manifest]:
        """Return the objects of a plan, with owner and hash. Call `context` before; do not change the result.

        Args:
            key: of the job.
            job: the job.
            context: the result of `context`; Kueue's placements and priority may be added.
            plan: the plan.
            has_secret: as for `objects`.
        """
        kept, plan = self._kept[key], plan.without_explanation()
        inputs = [plan, has_secret, context.placements, context.priority]
        if kept.inputs != inputs:
            keep_claims = context.job.spec.storage.reclaim_policy == "Retain"
            spec = applied_spec(job)
            desired = objects(context, plan, has_secret=has_secret)
            kept.bodies = [owned(body, job, keep_claims=keep_claims, spec=spec) for body in desired]
            kept.inputs = inputs
        return kept.bodies

    def forget(self, key: Key) -> None:
        """Drop a deleted job."""
        self._kept.pop(key, None)

    def _validated(self, job: Object) -> tuple[BuildContext | None, str]:
        valid, issues = check(dict(job))
        if valid is None:
            return None, "\n".join(str(issue) for issue in issues if not issue.warning)
        if valid.spec.queue_name and not self._settings.kueue:
            return None, f"spec.queueName is {valid.spec.queue_name!r}: {KUEUE_DISABLED}"
        try:
            return build_context(valid, self._settings), ""
        except InvalidJob as error:
            return None, str(error)
