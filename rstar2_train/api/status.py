"""The status of an AgenticRLJob, written by the operator alone; the CRD's status schema is generated from it.

What `kubectl get arl` and `kubectl describe` show, and what scripts wait for. Everything is bounded, so that a long
curriculum's status stays far below the size of an object, and optional, so that an older object is still valid.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, WithJsonSchema

from rstar2_train.api.base import ApiModel, Name
from rstar2_train.api.contracts import CheckpointRef

Word = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9]*$", max_length=64)]
"""A CamelCase word."""
Cause = Annotated[str, StringConstraints(pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$", max_length=256)]
"""Why, in one word: the form of every condition's reason in Kubernetes."""
Message = Annotated[str, StringConstraints(max_length=4096)]
Count = Annotated[int, Field(ge=0)]
Time = Annotated[str, WithJsonSchema({"type": "string", "format": "date-time"})]
"""RFC 3339, in UTC."""
RunId = Annotated[str, StringConstraints(max_length=128)]
Number = Annotated[str, StringConstraints(max_length=32)]
"""A decimal as text: the API has no floats that all clients read alike."""
Metrics = Annotated[dict[str, Number], Field(max_length=32)]


def _keyed(key: str) -> dict[str, Any]:
    """A list whose entries have their own owner: two writers change different entries of it."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


class Condition(ApiModel):
    """One statement about the job, true or not; made like every condition in Kubernetes."""

    type: Word
    """Admitted, StorageReady, RedisReady, JudgeReady, RolloutReady, Training, Suspended, Degraded, Complete, Failed."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: Cause
    """Why, in one CamelCase word; of Degraded one for each kind of cause, with commas between."""
    message: Message = ""
    """Why, and what to do about it, for a person; in the cluster's own words where it said something."""
    last_transition_time: Time
    """When status last changed."""
    observed_generation: Count | None = None
    """metadata.generation of the spec that this is about."""


class StageStatus(ApiModel):
    """What a stage has reached."""

    name: Name
    """As in spec.stages."""
    type: Word | None = None
    """SFT, GRPO, Filter or Evaluate."""
    phase: Word | None = None
    """Waiting, Running, Restarting, Suspending, Suspended, Done or Failed."""
    step: Count | None = None
    """Steps done."""
    total_steps: Count | None = None
    """Steps that it has; not known before the data of an SFT stage is read."""
    start_time: Time | None = None
    """When its first attempt began."""
    end_time: Time | None = None
    """When it ended for good."""
    checkpoint: CheckpointRef | None = None
    """Its last checkpoint: what the next attempt goes on from, or what it handed on."""
    attempts: Count | None = None
    """Attempts so far."""
    outcome: Word | None = None
    """How the last attempt ended: completed, advanced, suspended or failed."""
    reason: Cause | None = None
    """Why, in one word: StepsReached, TruncationSettled, AllCorrect, Collapsed, RanksLost, ..."""
    message: Message | None = None
    """Why, for a person."""
    mlflow_run_id: RunId | None = None
    """Its nested MLflow run."""
    metrics: Metrics | None = None
    """The last value of its main metrics, such as reward, pass@1 and tool errors, as decimals."""


class RoleStatus(ApiModel):
    """The pods of a role."""

    name: Annotated[str, StringConstraints(max_length=32)]
    """trainer, rollout, judge, executor or redis."""
    ready: Count = 0
    """Pods that are ready."""
    desired: Count = 0
    """Pods that the current stage needs."""
    message: Message | None = None
    """What the others wait for, in the words of the kubelet or the scheduler."""


class JobStatus(ApiModel):
    """What the operator knows about the job."""

    phase: Word | None = None
    """Pending, Preparing, Running, Restarting, Suspending, Suspended, Finishing, Complete, Failed or Invalid."""
    message: Message | None = None
    """The phase in words: what it waits for, or why it ended."""
    stage: Name | None = None
    """The stage it is at."""
    step: Count | None = None
    """Steps of that stage that are done."""
    total_steps: Count | None = None
    """Steps that the stage has."""
    reward: Number | None = None
    """Mean reward of the last step, as a decimal."""
    progress_percentage: Annotated[int, Field(ge=0, le=100)] | None = None
    """How much of the whole curriculum is done."""
    estimated_remaining_seconds: Count | None = None
    """Time left for the current stage at its present speed."""
    restarts: Count | None = None
    """Restarts of stages so far."""
    restarts_counted_towards_max: Count | None = None
    """Those of them that spec.failurePolicy.maxRestarts limits."""
    start_time: Time | None = None
    """When the operator first acted on the job."""
    completion_time: Time | None = None
    """When it completed or failed."""
    checkpoint: CheckpointRef | None = None
    """The last checkpoint of the job."""
    mlflow_run_id: RunId | None = None
    """Its MLflow run; each stage has a nested one."""
    observed_generation: Count | None = None
    """metadata.generation of the spec that this status is about."""
    rollout_replicas: Count | None = None
    """Engines that exist (for kubectl scale and autoscalers)."""
    rollout_selector: Annotated[str, StringConstraints(max_length=512)] | None = None
    """Label selector of the engines' pods (for autoscalers)."""
    conditions: Annotated[list[Condition], Field(max_length=32, json_schema_extra=_keyed("type"))] | None = None
    """Statements about the job, by type."""
    stages: Annotated[list[StageStatus], Field(max_length=32, json_schema_extra=_keyed("name"))] | None = None
    """The stages, in the order of spec.stages."""
    roles: Annotated[list[RoleStatus], Field(max_length=8, json_schema_extra=_keyed("name"))] | None = None
    """Ready and desired pods of each role."""
