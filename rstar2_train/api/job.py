"""The AgenticRLJob: metadata, spec, and the policies of the whole job.

Parsed from a manifest by `validation.check`, from the job file by every process of a job. `crd.py` generates the
CustomResourceDefinition from it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from rstar2_train.api.base import (
    API_VERSION,
    ATOMIC,
    BY_NAME,
    DOMAIN_PATH,
    KIND,
    LABEL_KEY,
    SET,
    ApiModel,
    JobName,
    ListType,
    LocalReference,
    OptionalName,
    RegistryPrefix,
    SecretKey,
    Text,
)
from rstar2_train.api.contracts import Reason
from rstar2_train.api.lora import LORA_LEARNING_RATE, LoRASpec
from rstar2_train.api.objectives import TeacherSpec
from rstar2_train.api.roles import (
    AcceleratorSpec,
    ExecutorSpec,
    JudgeSpec,
    ModelSource,
    RedisSpec,
    RolloutSpec,
    RuntimePatch,
    TrackingSpec,
    TrainerSpec,
)
from rstar2_train.api.stages import GRPODefaults, GRPOSettings, Sampling, Stage, resolve_grpo
from rstar2_train.api.storage import StorageSpec
from rstar2_train.api.tasks import SANDBOX_REWARDS, AgentSpec, EnvironmentSpec, MCPServerSpec, RewardSpec, ToolSpec

CONTROLLER = "rstar2.dev/operator"
"""Value of spec.managedBy of jobs that set none."""
Seconds = Annotated[int, Field(ge=1, le=31_536_000)]
FailingRole = Literal["trainer", "rollout", "teacher", "judge", "executor", "redis", "environment", "agent"]
FailureReason = Literal[Reason, "OOMKilled", "Evicted", "Disrupted", "PodLost", "PodRejected"]
"""Outcome reasons, and the reasons of failures of pods."""
ROLE_REASONS = ("OOMKilled", "Evicted", "Disrupted", "PodRejected")
"""Reasons of failures of pods of other roles than the trainer's, which report no outcome."""
PodCondition = Annotated[str, StringConstraints(pattern=LABEL_KEY, max_length=317)]
"""Type of a pod's condition."""


class CheckpointSpec(ApiModel):
    """When checkpoints are written, and how many are kept."""

    every_steps: Annotated[int, Field(ge=1, le=100_000)] = 5
    """Steps between two checkpoints. The last step of a stage always has one."""
    keep_last: Annotated[int, Field(ge=1, le=1000)] = 3
    """Checkpoints that are kept per stage."""
    keep_best: bool = True
    """Whether to keep the checkpoint with the best mean reward too."""


class ValidationSpec(ApiModel):
    """The held-out set that measures the model of each training stage; that of an SFT stage in the next stage."""

    data: Text
    """Problems: a JSONL, JSON, CSV, Parquet or Arrow file of rows `{problem, answer}`, with optional `slice` (a group
    name) and `hard`."""
    samples: Annotated[int, Field(ge=1, le=1024)] = 4
    """Samples per problem."""
    max_problems: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Maximum problems, from the start of the file. Default: all."""
    sampling: Sampling = Sampling()
    """Sampling parameters and limits; the same for every stage, so that stages can be compared."""


class TrajectoriesSpec(ApiModel):
    """Retention of stored trajectories."""

    keep_steps: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Steps per stage whose trajectories are kept, the newest first. Default: all."""


class FailureRule(ApiModel):
    """Action after a failure with one of the listed exit codes, reasons or pod conditions."""

    roles: Annotated[list[FailingRole], Field(min_length=1, max_length=8), SET] = ["trainer"]
    """Roles whose pods the rule is about. Containers of the others are restarted by default."""
    on_exit_codes: Annotated[list[Annotated[int, Field(ge=1, le=255)]], Field(max_length=16), SET] = []
    """Exit codes that match: of the orchestrator, or of a container of another role."""
    on_reasons: Annotated[list[FailureReason], Field(max_length=16), SET] = []
    """Outcome reasons, or reasons of pods, that match. Pods of other roles than the trainer's have only OOMKilled,
    Evicted, Disrupted and PodRejected."""
    on_pod_conditions: Annotated[list[PodCondition], Field(max_length=16), SET] = []
    """Conditions of a pod that match if they are True, such as DisruptionTarget."""
    action: Literal["FailJob", "RestartStage"]
    """FailJob: the job fails. RestartStage: a new attempt starts from the last checkpoint."""
    counts_towards_max: bool = True
    """Whether the restart counts towards maxRestarts."""


class FailurePolicy(ApiModel):
    """Reaction to the failure of a stage's attempt."""

    max_restarts: Annotated[int, Field(ge=0, le=10_000)] = 6
    """Counted restarts of the whole job; the next counted failure fails it."""
    window_seconds: Seconds | None = None
    """Seconds from a counted failure after which counting restarts at 0. Default: the whole job is one window."""
    rules: Annotated[list[FailureRule], Field(max_length=32), ATOMIC] = []
    """Rules in order; the first match decides. Default: fail on exit code 78 (a retry cannot help), restart on
    any other failure."""


class NodeLoss(ApiModel):
    """Reaction to a node that does not report any more, or is faulty and takes no new pods."""

    after_seconds: Annotated[int, Field(ge=30, le=86_400)]
    """Seconds after which the pods of such a node are removed and the stage restarts on other nodes, not counted."""


class Stuck(ApiModel):
    """Reaction to an attempt without progress."""

    factor: Annotated[int, Field(ge=2, le=1000)] = 10
    """Usual step times without progress."""
    action: Literal["Report", "Restart"] = "Report"
    """Report: condition Stuck. Restart: also a counted restart."""


class HubTokenReference(LocalReference):
    """A token in a Secret of the job's namespace."""

    key: SecretKey = "HF_TOKEN"
    """Key of the token."""


class TeacherTokenReference(LocalReference):
    """A token in a Secret of the job's namespace."""

    key: SecretKey = "token"
    """Key of the token."""


class CAReference(LocalReference):
    """A bundle of certificates in a Secret or a ConfigMap of the job's namespace."""

    kind: Literal["Secret", "ConfigMap"] = "Secret"
    """Kind of the object."""
    key: SecretKey = "ca.crt"
    """Key of the bundle."""


class SecretRefs(ApiModel):
    """Secrets of the site."""

    hub_token: HubTokenReference | None = None
    """Token of the Hugging Face Hub, for gated and private repositories."""
    proxy: LocalReference | None = None
    """Secret whose keys HTTPS_PROXY, HTTP_PROXY and NO_PROXY become variables of pods that use a bucket or the Hub."""
    storage: LocalReference | None = None
    """Secret with the credentials of buckets, as variables of the preparation; with url, of all pods that use it."""
    teacher: TeacherTokenReference | None = None
    """Bearer token of objective.teacher.endpoint. `rstar2 run` reads the variable RSTAR2_TEACHER_TOKEN instead."""
    ca: CAReference | None = None
    """Bundle of all authorities that trainer, prepare and report pods, and with storage.url engines, trust. Default:
    that of the image."""


class JobSpec(ApiModel):
    """Desired state of the job."""

    suspend: bool = False
    """If true: write a checkpoint, then delete all pods and keep the storage. If false again: resume."""
    managed_by: Annotated[str, StringConstraints(pattern=DOMAIN_PATH, max_length=63)] | None = None
    """Controller that runs the job; others ignore it. Immutable. Default: rstar2.dev/operator."""
    queue_name: OptionalName = ""
    """Kueue LocalQueue: each stage waits for quota, again after an eviction (phase Pending). Default: none."""
    priority_class_name: OptionalName = ""
    """PriorityClass of the pods."""
    pending_deadline_seconds: Seconds = 3600
    """Seconds until all trainer pods, and one pod of each other role, must be scheduled and started. Then all are
    deleted and retried later."""
    active_deadline_seconds: Seconds | None = None
    """Seconds from start or resume after which the job fails. Default: none."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=31_536_000)] | None = None
    """Seconds after which a finished job is deleted. Default: never."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Seed of data order, sampling and resampling. Immutable."""
    model: ModelSource
    """The initial policy."""
    storage: StorageSpec = StorageSpec()
    """Storage for checkpoints, trajectories and reports. `rstar2 run` uses a local directory instead."""
    accelerator: AcceleratorSpec = AcceleratorSpec.from_vendor("AMD")
    """Accelerator of trainer and engine pods. Immutable."""
    stages: Annotated[list[Stage], Field(min_length=1, max_length=32), BY_NAME]
    """The curriculum, in order."""
    grpo: GRPODefaults = GRPODefaults()
    """Defaults of every GRPO stage: group-relative policy optimisation with Resample-on-Correct (GRPO-RoC).

    A step samples promptsPerStep problems rolloutsPerPrompt times each. It keeps keepPerPrompt rollouts of each group:
    failures of all kinds, and the successes with the cleanest tool use. A stage's own fields override these, a
    member object such as objective as a whole; a field that neither sets has the default in its description, the
    paper's.
    """
    validation: ValidationSpec | None = None
    """The held-out set on which the model of each training stage is measured after the stage, never within it: that of
    an SFT stage by the next stage, which has engines. Default: none."""
    checkpoint: CheckpointSpec = CheckpointSpec()
    """When checkpoints are written, and how many are kept."""
    trajectories: TrajectoriesSpec = TrajectoriesSpec()
    """Retention of stored trajectories."""
    trainer: TrainerSpec = TrainerSpec()
    """The training pods. Each stage attempt runs one Ray cluster."""
    rollout: RolloutSpec = RolloutSpec()
    """The vLLM engines, which sample the rollouts. kubectl scale changes their replicas."""
    teacher: TeacherSpec | None = None
    """Engines that serve the teacher of objective.teacher.source in the stages that have one. Default: none; the ranks
    hold the teacher."""
    tools: Annotated[list[ToolSpec], Field(max_length=16), BY_NAME] = []
    """Tools of the model. Default: the tool of rollout.tool."""
    mcp_servers: Annotated[list[MCPServerSpec], Field(max_length=8), BY_NAME] = []
    """Servers of tools."""
    environments: Annotated[list[EnvironmentSpec], Field(max_length=1), BY_NAME] = []
    """Environment of the rollouts; at most one."""
    agent: AgentSpec | None = None
    """Program that plays the rollouts. Default: the model's own tool calls."""
    rewards: Annotated[list[RewardSpec], Field(max_length=16), BY_NAME] = []
    """Rewards of final answers; a row selects one by name. Default: the environment's, else Math."""
    judge: JudgeSpec = JudgeSpec()
    """The Code Judge: its API and workers queue the model's tool calls and send them to the executors."""
    executor: ExecutorSpec = ExecutorSpec()
    """The executors: sandboxes that run the model's code, one call at a time."""
    redis: RedisSpec = RedisSpec()
    """Redis: the queue between judge API and judge workers."""
    tracking: TrackingSpec = TrackingSpec()
    """Experiment tracking."""
    failure_policy: FailurePolicy = FailurePolicy()
    """Reaction to the failure of a stage's attempt."""
    node_loss: NodeLoss | None = None
    """Reaction to a lost node. Default: wait until the node returns or a person removes it."""
    stuck: Stuck = Stuck()
    """Reaction to an attempt without progress."""
    registry_prefix: RegistryPrefix | None = None
    """Prefix of every image that the job does not set. Default: none."""
    secret_refs: SecretRefs = SecretRefs()
    """Secrets of the site."""
    runtime_patches: Annotated[list[RuntimePatch], Field(max_length=16), ListType("map", "manager")] = []
    """Bounded changes to pods: placement, metadata, variables, volumes and accounts; never isolation or security."""

    @property
    def needs_judge(self) -> bool:
        """Whether stages that sample need the judge, its executors and Redis.

        They run the calls of tools that no server has, and the rewards in SANDBOX_REWARDS. An agent's program has its
        own tools and reward; so has an environment, unless the job adds others.
        """
        if self.agent is not None:
            return False
        tools = any(tool.server is None for tool in self.tools)
        rewards = any(reward.type in SANDBOX_REWARDS for reward in self.rewards)
        if self.environments:
            return tools or rewards
        return tools or not self.tools or rewards or not self.rewards


class Metadata(ApiModel):
    """The part of Kubernetes' ObjectMeta that a job file needs. Other fields are ignored."""

    model_config = ApiModel.model_config | {"extra": "ignore"}

    name: JobName
    """Name of the job."""
    namespace: Text | None = None
    """Namespace of the job."""
    uid: Text | None = None
    """UID of the job; `rstar2 run` creates one at the first run."""
    labels: dict[str, Any] = {}
    """Labels."""
    annotations: dict[str, Any] = {}
    """Annotations."""


class AgenticRLJob(ApiModel):
    """An agentic reinforcement-learning job: a curriculum of stages for one policy."""

    api_version: Literal["rstar2.dev/v1alpha1"] = API_VERSION
    """API group and version."""
    kind: Literal["AgenticRLJob"] = KIND
    """Always AgenticRLJob."""
    metadata: Metadata
    """Name and identity."""
    spec: JobSpec
    """Desired state."""
    status: dict[str, Any] | None = Field(default=None, exclude=True)
    """Observed state, written by the operator; ignored on input."""

    def stage(self, name: str) -> Stage:
        """Return the stage with that name. Raises KeyError."""
        for stage in self.spec.stages:
            if stage.name == name:
                return stage
        raise KeyError(f"job {self.metadata.name} has no stage {name!r}")

    def grpo_fields(self) -> list[tuple[str, GRPODefaults]]:
        """Return the fields of GRPO that the job sets, with their paths: those of spec.grpo, then those of stages."""
        stages = [
            (f"spec.stages[{index}].grpo", stage.grpo)
            for index, stage in enumerate(self.spec.stages)
            if stage.grpo is not None
        ]
        return [("spec.grpo", self.spec.grpo), *stages]

    def grpo_settings(self, stage: Stage) -> GRPOSettings:
        """Return the effective settings of a GRPO stage; with LoRA, the default learning rate is higher."""
        own, shared = stage.grpo or GRPODefaults(), self.spec.grpo
        settings = resolve_grpo(shared, own)
        if self.spec.teacher is not None and (teacher := settings.objective.teacher) and teacher.source:
            objective = settings.objective.model_copy(update={"own_engines": True})
            settings = settings.model_copy(update={"objective": objective})
        if self.lora(stage) is None or own.learning_rate is not None or shared.learning_rate is not None:
            return settings
        return settings.model_copy(update={"learning_rate": LORA_LEARNING_RATE})

    def served_teacher(self, stage: Stage) -> str | None:
        """Return the source of the teacher that engines of spec.teacher serve in a stage; None: they serve none."""
        if self.spec.teacher is None or stage.type != "GRPO":
            return None
        teacher = self.grpo_settings(stage).objective.teacher
        return teacher.source if teacher is not None else None

    def lora(self, stage: Stage) -> LoRASpec | None:
        """Return the adapter that a stage trains; None: the whole model, or no training."""
        own = stage.trainer.lora if stage.trainer is not None else None
        return (own or self.spec.trainer.lora) if stage.learns else None

    def continued(self, stage: Stage) -> Stage | None:
        """Return the stage whose adapter a stage continues; None: it starts a new one, or trains the whole model."""
        lora = self.lora(stage)
        return None if lora is None or lora.start == "New" else self.trained_before(stage)

    def trained_before(self, stage: Stage) -> Stage | None:
        """Return the last training stage before a stage, from whose model it starts; None: the job's model source."""
        earlier = self.spec.stages[: self.spec.stages.index(stage)]
        return next((candidate for candidate in reversed(earlier) if candidate.learns), None)

    def replicas(self, stage: Stage) -> int:
        """Return the number of pods of one attempt of a stage."""
        if not stage.learns:
            return 1
        own = stage.trainer.replicas if stage.trainer is not None else None
        return own or self.spec.trainer.replicas

    def total_steps(self, stage: Stage) -> int | None:
        """Return the steps of a GRPO stage, None for a stage whose data determines them."""
        return self.grpo_settings(stage).steps if stage.type == "GRPO" else None
