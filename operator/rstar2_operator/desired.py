"""The validated specs of all jobs, and the desired objects of those that were reconciled last. In memory only.

Most reconciliations change neither, and both cost more than the rest of a reconciliation. The objects need twice the
memory of the spec, so only those of the last jobs are kept; the others are computed again.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

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
"""Jobs whose objects are kept: about 90 KB each."""
KUEUE_DISABLED = "the operator does not use Kueue; set kueue.enabled=true in its chart, or remove the field"


@dataclass(slots=True)
class _Validated:
    text: str
    """Metadata and spec of the job as JSON."""
    context: BuildContext | None
    errors: str


@dataclass(slots=True)
class _Desired:
    inputs: list[object]
    """All inputs of `bodies`."""
    bodies: list[Manifest]


class DesiredState:
    """Computes the desired objects of jobs, and keeps those of the last jobs."""

    def __init__(self, settings: OperatorSettings) -> None:
        self._settings = settings
        self._validated: dict[Key, _Validated] = {}
        self._desired: OrderedDict[Key, _Desired] = OrderedDict()

    def context(self, key: Key, job: Object) -> tuple[BuildContext | None, str]:
        """Return the builders' input of a job, or every error of a spec that the schema could not reject."""
        text = as_json([job["metadata"], job["spec"]])
        known = self._validated.get(key)
        if known is None or known.text != text:
            known = self._validated[key] = _Validated(text, *self._validate(job))
            self._desired.pop(key, None)
        return known.context, known.errors

    def bodies(self, key: Key, job: Object, context: BuildContext, plan: Plan, *, has_secret: bool) -> list[Manifest]:
        """Return the objects of a plan, with owner and hash. Call `context` before; do not change the result.

        Args:
            key: of the job.
            job: the job.
            context: the result of `context`; Kueue's placements and priority may be added.
            plan: the plan.
            has_secret: as for `objects`.
        """
        plan = plan.without_explanation()
        inputs = [plan, has_secret, context.placements, context.priority]
        known = self._desired.get(key)
        if known is None or known.inputs != inputs:
            keep_claims = context.job.spec.storage.reclaim_policy == "Retain"
            spec = applied_spec(job)
            desired = objects(context, plan, has_secret=has_secret)
            bodies = [owned(body, job, keep_claims=keep_claims, spec=spec) for body in desired]
            known = self._desired[key] = _Desired(inputs, bodies)
        self._desired.move_to_end(key)
        if len(self._desired) > KEPT_JOBS:
            self._desired.popitem(last=False)
        return known.bodies

    def forget(self, key: Key) -> None:
        """Drop a deleted job."""
        self._validated.pop(key, None)
        self._desired.pop(key, None)

    def _validate(self, job: Object) -> tuple[BuildContext | None, str]:
        valid, issues = check(dict(job))
        if valid is None:
            return None, "\n".join(str(issue) for issue in issues if not issue.warning)
        if valid.spec.queue_name and not self._settings.kueue:
            return None, f"spec.queueName is {valid.spec.queue_name!r}: {KUEUE_DISABLED}"
        try:
            return build_context(valid, self._settings), ""
        except InvalidJob as error:
            return None, str(error)
