"""The validated specs and the desired objects of all jobs, compressed. In memory only.

Most reconciliations change neither, and both cost more than the rest of a reconciliation. As Python objects they take
about 130 KB per job, compressed about 8 KB. The last jobs are kept in both forms, because events come in bursts.
"""

from __future__ import annotations

import hashlib
import pickle
import zlib
from collections import OrderedDict
from dataclasses import dataclass

from pydantic_core import from_json, to_json

from rstar2_operator.apply import applied_spec, owned
from rstar2_operator.builders.manifest import Manifest
from rstar2_operator.builders.objects import build_context, objects
from rstar2_operator.builders.pod import BuildContext
from rstar2_operator.decide.decision import Decision
from rstar2_operator.observed import Object, as_json
from rstar2_operator.references import Reference, references
from rstar2_operator.settings import OperatorSettings
from rstar2_train.api.issue import InvalidJob
from rstar2_train.api.validation import check

KEPT_JOBS = 16
"""Jobs that are kept as Python objects too."""
FASTEST = 1
"""Level of zlib: higher ones save 15 % of the memory, and take three times as long."""
UNKNOWN_FIELD = "unknown field"
NEWER_DEFINITION = (
    "The definition of AgenticRLJob in the cluster is newer than this operator: upgrade the operator, or apply the "
    "definition of its version (crds/)."
)
KUEUE_DISABLED = "the operator does not use Kueue; set kueue.enabled=true in its chart, or remove the field"


@dataclass(slots=True)
class _Decoded:
    context: BuildContext
    bodies: list[Manifest] | None = None


@dataclass(slots=True, eq=False)
class DesiredJob:
    """The validated spec and the desired objects of one job."""

    digest: bytes = b""
    """Of metadata and spec of the job."""
    errors: str = ""
    context: bytes = b""
    """The job, its resolved form and its claims; empty if the spec is invalid."""
    inputs: list[object] | None = None
    """All inputs of `bodies`."""
    bodies: bytes = b""
    references: tuple[Reference, ...] | None = None
    """Objects of other owners that the pods of all stages name; None until they are asked for."""
    decoded: _Decoded | None = None
    """The same as Python objects, of the last jobs."""


class DesiredState:
    """Computes the desired objects of jobs."""

    def __init__(self, settings: OperatorSettings) -> None:
        self._settings = settings
        self._last: OrderedDict[int, DesiredJob] = OrderedDict()
        """Jobs with Python objects, the last used one last."""

    def context(self, known: DesiredJob, job: Object) -> tuple[BuildContext | None, str]:
        """Return the builders' input of a job, or every error of a spec that the schema could not reject."""
        digest = hashlib.sha256(as_json([job["metadata"], job["spec"]]).encode()).digest()
        if known.digest != digest:
            context, known.errors = self._validate(job)
            known.digest, known.context, known.inputs, known.bodies = digest, _compress(context), None, b""
            known.references = None
            known.decoded = None if context is None else _Decoded(context)
        return (self._decoded(known).context if known.context else None), known.errors

    def bodies(
        self, known: DesiredJob, job: Object, context: BuildContext, decision: Decision, *, has_secret: bool
    ) -> list[Manifest]:
        """Return the objects of a decision, with owner and hash. Call `context` before; do not change the result.

        Args:
            known: of the job.
            job: the job.
            context: the result of `context`; Kueue's placements and priority, and lengths, may be added.
            decision: the decision.
            has_secret: as for `objects`.
        """
        decision = decision.without_explanation()
        inputs = [decision, has_secret, context.placements, context.priority, context.kept_lengths]
        decoded = self._decoded(known)
        if known.inputs != inputs:
            keep_claims = context.job.spec.storage.reclaim_policy == "Retain"
            spec = applied_spec(job)
            desired = objects(context, decision, has_secret=has_secret)
            bodies = [owned(body, job, keep_claims=keep_claims, spec=spec) for body in desired]
            text = to_json(bodies)
            known.inputs, known.bodies = inputs, zlib.compress(text, FASTEST)
            decoded.bodies = from_json(text)
        if decoded.bodies is None:
            decoded.bodies = from_json(zlib.decompress(known.bodies))
        return decoded.bodies

    def references(self, known: DesiredJob, context: BuildContext) -> tuple[Reference, ...]:
        """Return the objects of other owners that the pods of all stages name."""
        if known.references is None:
            known.references = references(context)
        return known.references

    def _decoded(self, known: DesiredJob) -> _Decoded:
        """Return the Python objects of a valid job, and keep those of the last KEPT_JOBS jobs."""
        if known.decoded is None:
            job, resolved, claims = pickle.loads(zlib.decompress(known.context))
            context = BuildContext(job=job, settings=self._settings, resolved=resolved, claims=claims)
            known.decoded = _Decoded(context)
        self._last[id(known)] = known
        self._last.move_to_end(id(known))
        if len(self._last) > KEPT_JOBS:
            self._last.popitem(last=False)[1].decoded = None
        return known.decoded

    def _validate(self, job: Object) -> tuple[BuildContext | None, str]:
        valid, issues = check(dict(job))
        if valid is None:
            errors = [str(issue) for issue in issues if not issue.warning]
            # The API server has dropped the fields that its definition does not have.
            newer = [NEWER_DEFINITION] if any(UNKNOWN_FIELD in error for error in errors) else []
            return None, "\n".join([*newer, *errors])
        if valid.spec.queue_name and not self._settings.kueue:
            return None, f"spec.queueName is {valid.spec.queue_name!r}: {KUEUE_DISABLED}"
        try:
            return build_context(valid, self._settings), ""
        except InvalidJob as error:
            return None, str(error)


def _compress(context: BuildContext | None) -> bytes:
    """Return a job's part of the builders' input; empty without one."""
    if context is None:
        return b""
    return zlib.compress(pickle.dumps((context.job, context.resolved, context.claims)), FASTEST)
