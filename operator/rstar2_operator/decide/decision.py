"""The result of `decide`: the objects that a job should have now, and the explanation. Plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Literal

from rstar2_operator.decide.restarts import NO_RESTARTS, RestartCounters
from rstar2_operator.observed import Object

Phase = Literal[
    "Pending", "Preparing", "Running", "Suspending", "Suspended", "Finalizing", "Deleting", "Succeeded", "Failed"
]  # fmt: skip
FINAL: tuple[Phase, Phase] = ("Succeeded", "Failed")
"""Final phases; the conditions that record them have the same names."""
Ending = Literal["completed", "failed", "deleted"]

WAITING_FOR_PODS = "WaitingForPodTermination"
"""Reason while pods of an earlier attempt terminate."""
NODE_LOST = "NodeLost"
"""Reason while the attempt on a lost node is removed."""
ROLE_FAILED = "RoleFailed"
"""Reason while an attempt ends because a rule of the failure policy matches a pod of another role."""
SHARED_SECRET_MISSING = "SharedSecretMissing"
"""Reason while all pods that use the passwords of a deleted Secret are replaced."""
STUCK = "Stuck"
"""Reason of an attempt that makes no progress, and of phase Pending while spec.stuck ends it."""
ORCHESTRATOR_EXITED = "OrchestratorExited"
"""Reason while an attempt that has ended is removed, because its pods do not exit."""
RESTART_REASONS = frozenset(
    {"BackOff", WAITING_FOR_PODS, SHARED_SECRET_MISSING, NODE_LOST, ROLE_FAILED, STUCK, ORCHESTRATOR_EXITED}
)
"""Reasons of phase Pending between two attempts of a stage."""
SCHEDULING_TIMEOUT = "SchedulingTimeout"
"""Reason of phase Pending after a release of all pods."""
QUEUED = "Queued"
"""Reason of phase Pending while Kueue has not admitted the job."""
EVICTED = "Evicted"
"""Reason of phase Suspending after Kueue has evicted the job."""
DELETING: Literal["Deleting"] = "Deleting"
"""Phase and reason of a deleted job until its last pod is gone."""
INVALID_SPEC = "InvalidSpec"
"""Reason of a job whose spec the operator cannot use."""


@dataclass(frozen=True, slots=True)
class StageAttempt:
    """One attempt of a stage: the Job that should exist."""

    stage: str
    number: int
    restarts: RestartCounters = NO_RESTARTS
    """Restarts of the whole job before this attempt."""
    failures: int = 0
    """Consecutive failures before this attempt without a new checkpoint; they set the backoff."""
    disruptions: int = 0
    """Those of them that were disruptions."""
    start_step: int | None = None
    """Step of the checkpoint that it starts from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnd:
    """The record of an attempt that a policy ends. The attempt's Job is deleted after the status has the record."""

    stage: str
    attempt: int
    action: Literal["RestartStage", "FailJob"]
    reason: str
    message: str
    disruptions: int = 0
    """Consecutive disruptions, for the next attempt."""
    failures: int = 0
    """Consecutive failures before this one without a new checkpoint; they set the backoff."""
    step: int | None = None
    """Step of the stage's last checkpoint; None without one."""
    ended_at: float = 0.0
    """Time of the end; seconds since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparationEnd:
    """The record of a preparation that was disrupted. Its next Job is created after the status has the record."""

    job: str
    """UID of its Job."""
    disruptions: int
    """Consecutive disruptions."""
    counts: bool
    """Whether this one counts towards maxRestarts."""
    action: Literal["Restart", "FailJob"]
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Decision:
    """The objects that a job should have now. Others are deleted, except finished Jobs and the storage."""

    stage: str | None
    """Current stage."""
    restarts: RestartCounters
    """Restarts of the whole job."""
    _: KW_ONLY
    phase: Phase
    reason: str = ""
    """CamelCase reason of the phase."""
    message: str = ""
    """Explanation of the phase."""
    prepare: bool = False
    """Whether the Job exists that fills the storage."""
    serving: bool = False
    """Whether the engines exist, and the judge, an environment's servers and an agent's pods if the job has them."""
    attempt: StageAttempt | None = None
    """The attempt that should exist."""
    ending: Ending | None = None
    """How the job ends; set from the decision to end it."""
    report: bool = False
    """Whether the Job exists that writes the report about the ending."""
    ended: AttemptEnd | None = None
    """The running attempt that a policy ends in this round."""
    preparation_end: PreparationEnd | None = None
    """The disruption of the preparation that this round records."""
    workload: str | None = None
    """Name of the Kueue Workload that should exist."""
    remove_pods: tuple[Object, ...] = ()
    """Pods to delete without waiting for their nodes: those of lost nodes, and failed ones that do not exit."""
    stop_pods: tuple[Object, ...] = ()
    """Pods to delete with their grace period."""
    stale_jobs: tuple[Object, ...] = ()
    """Finished Jobs to delete, because others of their names must start."""
    delete: bool = False
    """Whether the AgenticRLJob itself should be deleted."""
    release: bool = False
    """Whether the AgenticRLJob, which was deleted, loses the operator's finalizer."""
    retry_at: float | None = None
    """When the next attempt to run is made; seconds since the epoch. Recorded as status.nextRetryTime."""
    wake_at: float | None = None
    """When to decide again even if nothing has changed; seconds since the epoch."""

    def without_explanation(self) -> Decision:
        """Return the decision without the fields that change no object: equal results have equal objects."""
        return Decision(
            self.stage,
            NO_RESTARTS,
            phase=self.phase,
            prepare=self.prepare,
            serving=self.serving,
            attempt=self.attempt,
            ending=self.ending,
            report=self.report,
            workload=self.workload,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Defer:
    """The answer of a policy that leaves the decision to the policies after it."""

    wake_at: float | None = None
    """When the policy must be asked again."""
    remove_pods: tuple[Object, ...] = ()
    """Pods to delete, as `Decision.remove_pods`."""
    stop_pods: tuple[Object, ...] = ()
    """Pods to delete, as `Decision.stop_pods`."""
    workload: str | None = None
    """Kueue Workload to keep, as `Decision.workload`."""


Verdict = Decision | Defer | None
"""The answer of a policy; None if it does not apply."""


def wake_earlier(decision: Decision, when: float | None) -> Decision:
    """Return the decision with a wake-up no later than `when`, if there is one."""
    times = [time for time in (decision.wake_at, when) if time is not None]
    return replace(decision, wake_at=min(times, default=None))


MAX_NAMES = 3
"""Objects that a message names."""


def listed(objects: Sequence[str]) -> str:
    """Return the first names of a list of objects."""
    return ", ".join(objects[:MAX_NAMES]) + (", ..." if len(objects) > MAX_NAMES else "")
