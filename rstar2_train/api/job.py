"""The AgenticRLJob itself: metadata, spec, and the policies that hold for the whole job."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from rstar2_train.api.base import API_VERSION, KIND, ApiModel, ImageName, JobName, ObjectName, OptionalName, Text
from rstar2_train.api.contracts import Reason
from rstar2_train.api.roles import (
    AcceleratorSpec,
    JudgeSpec,
    ModelSource,
    RedisSpec,
    RolloutSpec,
    RuntimePatch,
    StorageSpec,
    TrackingSpec,
    TrainerSpec,
)
from rstar2_train.api.stages import GRPODefaults, GRPOSettings, Sampling, Stage, resolve_grpo


class CheckpointSpec(ApiModel):
    """When a stage can be resumed from."""

    every_steps: Annotated[int, Field(ge=1, le=100_000)] = 5
    """Steps between two checkpoints; the last step of a stage always has one."""
    keep_last: Annotated[int, Field(ge=1, le=1000)] = 3
    """Checkpoints of a stage that are kept."""
    keep_best: bool = True
    """Keep the one with the best mean reward too."""


class ValidationSpec(ApiModel):
    """The held-out set that the model is measured on at the end of every stage."""

    data: Text
    """JSONL or Parquet of `{id, problem, answer}`; rows may carry `slice` (a group name) and `hard`."""
    samples: Annotated[int, Field(ge=1, le=1024)] = 4
    """Samples of each problem."""
    max_problems: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Use only the first so many problems."""
    sampling: Sampling = Sampling()
    """Sampling and limits; the same at the end of every stage, so that stages can be compared."""


class RetainSpec(ApiModel):
    """How much of a job's past is kept in its storage."""

    trajectory_steps: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Steps of trajectories kept a stage; default: all."""


class FailureRule(ApiModel):
    """What to do when a stage's attempt ends in a certain way; the first rule that matches decides."""

    on_exit_codes: Annotated[list[Annotated[int, Field(ge=1, le=255)]], Field(max_length=16)] = []
    """Exit codes of the driver that match."""
    on_reason: Annotated[list[Reason], Field(max_length=16)] = []
    """Outcome reasons that match."""
    action: Literal["RestartStage", "FailJob", "Ignore"]
    """RestartStage: from its last checkpoint; Ignore: restart without counting."""
    counts_towards_max: bool = True
    """Whether a restart counts towards maxRestarts."""


class FailurePolicy(ApiModel):
    """What happens when a stage fails."""

    max_restarts: Annotated[int, Field(ge=0, le=10_000)] = 6
    """Counted restarts of the whole job before it fails."""
    rules: Annotated[list[FailureRule], Field(max_length=32)] = []
    """Tried in order before the default: restart on a crash or a retryable outcome, fail on 78."""


class Deadlines(ApiModel):
    """Time limits."""

    pending_seconds: Annotated[int, Field(ge=1, le=31_536_000)] | None = None
    """Release a stage's pods together when they are not all scheduled in time."""
    active_seconds: Annotated[int, Field(ge=1, le=31_536_000)] | None = None
    """Fail the job when it has been active for so long."""


class SecretRefs(ApiModel):
    """Secrets and registries of the site."""

    hub_token: ObjectName | None = None
    """Secret with HF_TOKEN."""
    proxy: ObjectName | None = None
    """Secret with HTTPS_PROXY, HTTP_PROXY, NO_PROXY."""
    ca: ObjectName | None = None
    """Secret with ca.crt. Not supported yet: a job that sets it is refused."""
    registry_prefix: ImageName | None = None
    """Put before every image that is not set explicitly."""


class JobSpec(ApiModel):
    """What the user asks for."""

    suspend: bool = False
    """Checkpoint, then release everything; set to false to go on where it stopped."""
    queue_name: OptionalName = ""
    """Kueue LocalQueue. Not supported yet: a job that sets it is refused."""
    priority_class_name: OptionalName = ""
    """PriorityClass of the pods."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Seeds data order, sampling and resampling."""
    model: ModelSource
    """The policy to start from."""
    storage: StorageSpec = StorageSpec()
    """Where checkpoints, trajectories and reports live. `rstar2 run` uses a folder instead."""
    accelerator: AcceleratorSpec = AcceleratorSpec()
    """What trainer and rollout pods compute on."""
    stages: Annotated[list[Stage], Field(min_length=1, max_length=32)]
    """The curriculum, in order."""
    grpo: GRPODefaults = GRPODefaults()
    """Defaults of every GRPO stage: group-relative policy optimisation with Resample-on-Correct (GRPO-RoC).

    A step samples promptsPerStep problems rolloutsPerPrompt times each, keeps keepPerPrompt rollouts of every group
    (all kinds of failures, and the successes with the cleanest tool use), and updates the policy on them with the
    clipped, token-averaged loss. A stage's own settings lie over these, field by field; what neither sets has the
    default shown, which is the paper's.
    """
    validation: ValidationSpec | None = None
    """The held-out set that the model is measured on at the end of every stage."""
    checkpoint: CheckpointSpec = CheckpointSpec()
    """When a stage can be resumed from, and how many checkpoints are kept."""
    trainer: TrainerSpec = TrainerSpec()
    """The pods that learn: one Ray cluster a stage attempt."""
    rollout: RolloutSpec = RolloutSpec()
    """The vLLM engines, which sample the rollouts. kubectl scale changes their replicas."""
    judge: JudgeSpec = JudgeSpec()
    """The Code Judge: runs the model's Python in gVisor."""
    redis: RedisSpec = RedisSpec()
    """The queue between judge API and judge workers."""
    tracking: TrackingSpec = TrackingSpec()
    """Experiment tracking."""
    failure_policy: FailurePolicy = FailurePolicy()
    """What happens when an attempt of a stage fails."""
    deadlines: Deadlines = Deadlines()
    """Time limits of the job; none are set by default."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=31_536_000)] | None = None
    """Delete the job so long after it ended."""
    retain: RetainSpec = RetainSpec()
    """How much of its past is kept."""
    secret_refs: SecretRefs = SecretRefs()
    """Secrets and registries of the site."""
    runtime_patches: Annotated[list[RuntimePatch], Field(max_length=16)] = []
    """Bounded changes to pods: never labels, isolation, security or accounts."""


class Metadata(ApiModel):
    """The part of Kubernetes' ObjectMeta that a job file needs; the rest is carried along unread."""

    model_config = ApiModel.model_config | {"extra": "ignore"}

    name: JobName
    """Name of the job."""
    namespace: Text | None = None
    """Its namespace."""
    uid: Text | None = None
    """Its UID; locally one is made at the first run."""
    labels: dict[str, Any] = {}
    """Labels."""
    annotations: dict[str, Any] = {}
    """Annotations."""


class AgenticRLJob(ApiModel):
    """An agentic reinforcement-learning job: a curriculum of stages for one policy."""

    api_version: Literal["rstar2.dev/v1alpha1"] = API_VERSION
    """Version of this form."""
    kind: Literal["AgenticRLJob"] = KIND
    """Always AgenticRLJob."""
    metadata: Metadata
    """Name and identity."""
    spec: JobSpec
    """What is asked for."""
    status: dict[str, Any] | None = Field(default=None, exclude=True)
    """Written by the operator; ignored on input."""

    def stage(self, name: str) -> Stage:
        """The stage called `name`; KeyError when there is none."""
        for stage in self.spec.stages:
            if stage.name == name:
                return stage
        raise KeyError(f"job {self.metadata.name} has no stage {name!r}")

    def grpo_settings(self, stage: Stage) -> GRPOSettings:
        """The settings that a GRPO stage runs with."""
        return resolve_grpo(self.spec.grpo, stage.grpo or GRPODefaults())

    def replicas(self, stage: Stage) -> int:
        """Pods of a stage attempt."""
        return (stage.trainer_replicas or self.spec.trainer.replicas) if stage.learns else 1

    def total_steps(self, stage: Stage) -> int | None:
        """Steps of a GRPO stage; None where the data decides."""
        return self.grpo_settings(stage).steps if stage.type == "GRPO" else None
