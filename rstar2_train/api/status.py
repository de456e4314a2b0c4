"""The status of an AgenticRLJob, written only by the operator; the CRD's status schema is generated from it.

`kubectl get arl` and `kubectl describe` show it, and scripts wait for it. Every field is bounded, so that the status of
a long curriculum stays far below the maximum size of an object, and optional, so that older objects stay valid.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, WithJsonSchema

from rstar2_train.api.base import BY_NAME, ApiModel, ListType, Name, ObjectName
from rstar2_train.api.contracts import CheckpointRef

Word = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9]*$", max_length=64)]
"""A CamelCase word."""
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]+$", max_length=64)]
"""A hash in hexadecimal digits."""
Cause = Annotated[str, StringConstraints(pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$", max_length=256)]
"""The reason of a condition, in the form that Kubernetes prescribes."""
Message = Annotated[str, StringConstraints(max_length=4096)]
Count = Annotated[int, Field(ge=0)]
Time = Annotated[str, WithJsonSchema({"type": "string", "format": "date-time"})]
"""RFC 3339 in UTC."""
RunId = Annotated[str, StringConstraints(max_length=128)]
Number = Annotated[str, StringConstraints(max_length=32)]
"""A decimal as text: clients of the API do not read floats alike."""
Metrics = Annotated[dict[str, Number], Field(max_length=32)]


class Condition(ApiModel):
    """A condition, with the fields of metav1.Condition."""

    type: Word
    """Ready, Stalled, PodsScheduled, StorageReady, RedisReady, JudgeReady, RolloutReady, Training, Suspended, Degraded,
    PlanFits, SpecIgnored, Succeeded or Failed."""
    status: Literal["True", "False", "Unknown"]
    """Status of the condition."""
    reason: Cause
    """Reason in one CamelCase word. Degraded has the reason of the first problem."""
    message: Message = ""
    """Explanation and advice. Degraded lists one problem per line."""
    last_transition_time: Time
    """Last time that status changed."""
    observed_generation: Count | None = None
    """metadata.generation that the condition is about."""


class EndedAttempt(ApiModel):
    """An attempt that the operator ended."""

    attempt: Count
    """Number of the attempt."""
    action: Word
    """RestartStage or FailJob."""
    reason: Cause
    """Reason of its end."""
    message: Message = ""
    """Explanation."""
    disruptions: Count = 0
    """Consecutive disruptions without a new checkpoint."""
    failures: Count = 0
    """Consecutive failures before it without a new checkpoint."""
    step: Count | None = None
    """Step of the last checkpoint at its end."""
    time: Time | None = None
    """Time of its end."""


class StageStatus(ApiModel):
    """Observed state of a stage."""

    name: Name
    """Name, as in spec.stages."""
    type: Word | None = None
    """SFT, GRPO, Filter or Evaluate."""
    phase: Word | None = None
    """Pending, Running, Suspending, Suspended, Succeeded or Failed."""
    step: Count | None = None
    """Steps done."""
    total_steps: Count | None = None
    """Steps of the stage; unknown until the data of an SFT stage is loaded."""
    last_step_time: Time | None = None
    """End of the last step."""
    step_seconds: Count | None = None
    """Usual seconds per step."""
    start_time: Time | None = None
    """Start of the first attempt."""
    completion_time: Time | None = None
    """Time at which the stage succeeded or failed."""
    checkpoint: CheckpointRef | None = None
    """Last checkpoint."""
    attempts: Count | None = None
    """Attempts so far."""
    disrupted_attempt: Count | None = None
    """Last attempt with a pod that was evicted, preempted, drained or deleted, or that lost its node."""
    ended: EndedAttempt | None = None
    """Last attempt that the operator ended."""
    outcome_time: Time | None = None
    """Time of the outcome."""
    outcome: Word | None = None
    """Result of the last attempt: Completed, Advanced, Suspended or Failed."""
    reason: Cause | None = None
    """Reason of the outcome: StepsReached, TruncationSettled, AllCorrect, Collapsed, RanksLost, ..."""
    message: Message | None = None
    """Explanation of the outcome."""
    mlflow_run_id: RunId | None = None
    """Nested MLflow run of the stage."""
    metrics: Metrics | None = None
    """Last values of the main metrics, such as reward, pass@1 and tool errors, as decimals."""


class PreparationStatus(ApiModel):
    """A preparation of the storage that is in progress, or was disrupted."""

    job: Annotated[str, StringConstraints(max_length=64)] | None = None
    """UID of its Job."""
    disruptions: Count = 0
    """Consecutive disruptions: deletions of the Job by others, and rejected pods."""
    action: Word | None = None
    """Restart or FailJob, after a disruption."""
    reason: Cause | None = None
    """Reason of the job's failure."""
    message: Message = ""
    """Cause of the last disruption."""
    time: Time | None = None
    """Time of the last disruption."""


class RoleStatus(ApiModel):
    """Pods of a role."""

    name: Annotated[str, StringConstraints(max_length=32)]
    """Role, such as trainer or rollout."""
    ready: Count = 0
    """Pods that are ready."""
    desired: Count = 0
    """Pods that the current stage needs."""


class FaultyNode(ApiModel):
    """A faulty node that takes no new pods, with a pod of an attempt."""

    name: ObjectName
    """Name of the node."""
    since: Time
    """Time since which the operator knows it; spec.nodeLoss.afterSeconds counts from it."""


class JobStatus(ApiModel):
    """Observed state of the job."""

    phase: Word | None = None
    """Pending, Preparing, Running, Suspending, Suspended, Finalizing, Deleting, Succeeded or Failed."""
    reason: Cause | None = None
    """Reason of the phase in one CamelCase word."""
    message: Message | None = None
    """Explanation of the phase."""
    stage: Name | None = None
    """Current stage."""
    step: Count | None = None
    """Steps done of the current stage."""
    total_steps: Count | None = None
    """Steps of the current stage."""
    reward: Number | None = None
    """Mean reward of the last step, as a decimal."""
    progress_percentage: Annotated[int, Field(ge=0, le=100)] | None = None
    """Share of the curriculum that is done, in percent."""
    estimated_remaining_seconds: Count | None = None
    """Estimated seconds until the current stage ends."""
    restarts: Count | None = None
    """Restarts of stages and of the preparation so far."""
    restarts_counted_towards_max: Count | None = None
    """Restarts that spec.failurePolicy.maxRestarts limits."""
    restart_window_start_time: Time | None = None
    """First counted restart in the window of spec.failurePolicy."""
    prepared_sources: Digest | None = None
    """Digest of the downloaded sources."""
    preparation: PreparationStatus | None = None
    """Preparation in progress; absent after it."""
    start_time: Time | None = None
    """Time at which the operator first acted on the job."""
    active_since: Time | None = None
    """Start or last resume; spec.activeDeadlineSeconds counts from it."""
    suspended_since: Time | None = None
    """Time at which the job was suspended; set while it is suspended."""
    next_retry_time: Time | None = None
    """Time of the next attempt after a failure or a scheduling timeout; set while the job waits for it."""
    faulty_nodes: Annotated[list[FaultyNode], Field(max_length=64), BY_NAME] | None = None
    """Faulty, closed nodes with pods of an attempt; each has its own timer."""
    finalizing_since: Time | None = None
    """Time at which the report became due, after all pods of stages had terminated; set while the job finalizes."""
    completion_time: Time | None = None
    """Time at which the job succeeded or failed; spec.ttlSecondsAfterFinished counts from it."""
    checkpoint: CheckpointRef | None = None
    """Last checkpoint of the current stage."""
    mlflow_run_id: RunId | None = None
    """MLflow run of the current stage."""
    observed_generation: Count | None = None
    """metadata.generation that the status is about."""
    rollout_replicas: Count | None = None
    """Engines, for kubectl scale and autoscalers."""
    rollout_selector: Annotated[str, StringConstraints(max_length=512)] | None = None
    """Label selector of the engines' pods, for autoscalers."""
    conditions: Annotated[list[Condition], Field(max_length=32), ListType("map", "type")] | None = None
    """Conditions by type."""
    stages: Annotated[list[StageStatus], Field(max_length=32), BY_NAME] | None = None
    """Observed state of the stages, in the order of spec.stages."""
    roles: Annotated[list[RoleStatus], Field(max_length=8), BY_NAME] | None = None
    """Ready and desired pods per role."""
