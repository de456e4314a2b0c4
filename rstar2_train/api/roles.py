"""The roles that serve a job's stages: trainer, rollout engines, judge, Redis; where they run, what tracks them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from rstar2_train.api.base import (
    COMPUTE,
    DEVICE,
    OPTIONAL_DEVICE,
    AnyValue,
    ApiModel,
    ImageName,
    ObjectName,
    Positive,
    Quantity,
    Text,
    keys,
)
from rstar2_train.api.kube import Affinity, EnvVar, Labels, Toleration, Volume, VolumeMount

AccessMode = Literal["ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"]
Role = Literal["trainer", "rollout", "judge", "executor", "redis"]

GPU_RESOURCES = {"amd": "amd.com/gpu", "nvidia": "nvidia.com/gpu", "none": ""}
"""What each vendor's device plugin calls its accelerators."""
RESERVED_FOLDERS = (
    *("/etc/rstar2", "/state", "/pvc", "/tmp", "/dev", "/proc", "/sys", "/run/secrets", "/var/run/secrets"),
)
"""Where pods have mounts of their own, which a runtimePatch must not cover."""
RESERVED_PREFIXES = ("RSTAR2_", "POD_", "RAY_", "KUBERNETES_")
"""What names of environment variables begin with that a runtimePatch must not set: identity, addresses, Ray."""
RESERVED_VARIABLES = ("HOME", "HOSTNAME", "JOB_COMPLETION_INDEX", "REDIS_PASSWORD")
"""Further such variables, by their whole names."""
REDIS_DATA = "/data"
"""Where Redis has its volume."""
EXECUTORS_TAKE = ("nodeSelector", "tolerations", "imagePullSecrets")
"""All that a runtimePatch may change about executors: the sandbox is not to be weakened."""
Amounts = Annotated[dict[str, Quantity], Field(max_length=16), keys(COMPUTE)]
"""Resource name -> amount."""


class Resources(ApiModel):
    """Kubernetes resource requests and limits of one pod."""

    requests: Amounts = {}
    """Minimum amounts, such as cpu, memory, amd.com/gpu."""
    limits: Amounts = {}
    """Maximum amounts."""


class ModelSource(ApiModel):
    """The policy to start from."""

    source: Text
    """pvc://CLAIM/PATH, hf://OWNER/NAME[@REVISION] (fetched once), generated://NAME/FILE, or a path."""
    chat_template: Text | None = None
    """File with a Jinja chat template; default: the model's own."""
    tool_parser: Literal["hermes"] = "hermes"
    """How tool calls are written; the Hermes form of the paper."""
    system_prompt: Annotated[str, StringConstraints(max_length=16384)] | None = None
    """System message of every conversation; default: the built-in one with the tools' signatures."""
    prompt_prefix: Annotated[str, StringConstraints(max_length=4096)] | None = None
    """Put before every problem; default: the built-in request for an <answer> with a \\boxed{}."""
    instruct: bool = False
    """The source is already instruction-tuned: no SFT stage is needed (silences the warning)."""


class StorageSpec(ApiModel):
    """Where checkpoints, trajectories and reports live. In `rstar2 run` this is a folder."""

    claim_name: ObjectName | None = None
    """An existing claim to use, in place of one made for the job."""
    size: Quantity | None = None
    """Size of the claim that is made when claimName is not set; may grow later. Default: 100Gi."""
    storage_class_name: ObjectName | None = None
    """Its storage class; default: the cluster's."""
    access_modes: Annotated[list[AccessMode], Field(min_length=1, max_length=3)] = ["ReadWriteMany"]
    """Its access modes; more than one node needs ReadWriteMany."""
    reclaim: Literal["Retain", "Delete"] = "Retain"
    """Retain: deleting the job never deletes its checkpoints. Delete: the claim goes with it, but never claimName's."""


class RDMASpec(ApiModel):
    """RDMA devices for the trainer pods."""

    resource: Annotated[str, StringConstraints(pattern=DEVICE, max_length=317)]
    """Extended resource name of the device plugin."""


class AcceleratorSpec(ApiModel):
    """What trainer and rollout pods compute on. Data, never matched by name elsewhere."""

    vendor: Literal["amd", "nvidia", "none"] = "amd"
    """amd (ROCm), nvidia (CUDA), or none: CPU, with gloo."""
    resource: Annotated[str, StringConstraints(pattern=OPTIONAL_DEVICE, max_length=317)] = ""
    """Extended resource that the device plugin offers; default: amd.com/gpu or nvidia.com/gpu, by the vendor."""
    rdma: RDMASpec | None = None
    """RDMA devices (a documented exception to restricted pods)."""

    @model_validator(mode="after")
    def _resource_of_vendor(self) -> AcceleratorSpec:
        self.resource = self.resource or GPU_RESOURCES[self.vendor]
        return self


class TrainerSpec(ApiModel):
    """The pods that learn: one Ray cluster a stage attempt."""

    replicas: Annotated[int, Field(ge=1, le=4096)] = 1
    """Pods (locally: ranks are replicas x max(1, gpusPerReplica) processes)."""
    gpus_per_replica: Annotated[int, Field(ge=0, le=64)] = 8
    """Accelerators, and so ranks, in each pod."""
    tokens_per_micro_batch: Annotated[int, Field(ge=256, le=100_000_000)] = 16384
    """Most tokens, padding included, that one forward pass of one rank holds."""
    logprob_chunk_tokens: Annotated[int, Field(ge=16, le=1_000_000)] = 2048
    """Rows of logits that exist at once; the vocabulary-wide logits never exist whole."""
    activation_checkpointing: bool = True
    """Recompute activations in the backward pass."""
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    """CPU threads of each rank; default: the cores shared out."""
    image: ImageName | None = None
    """Container image; default: the operator's."""
    resources: Resources = Resources()
    """Requests and limits of each pod."""
    termination_grace_period_seconds: Annotated[int, Field(ge=10, le=7200)] = 120
    """Between SIGTERM and SIGKILL: time to end the update and to write a checkpoint."""

    @property
    def ranks_per_replica(self) -> int:
        """Ranks in each pod: one for each accelerator, or one on the CPU."""
        return max(1, self.gpus_per_replica)


class AdmissionSpec(ApiModel):
    """When the next trajectory may enter an engine (paper §3.2)."""

    policy: Literal["static", "reserve"] = "reserve"
    """reserve: only when its whole budget fits the free KV cache; static: a fixed number an engine."""
    max_in_flight: Annotated[int, Field(ge=1, le=100_000)] = 256
    """static: trajectories an engine; reserve: an upper bound beside the KV cache."""


ToolName = Literal["execute_python_code_with_standard_io", "jupyter_code"]


class RolloutSpec(ApiModel):
    """The vLLM engines."""

    replicas: Annotated[int, Field(ge=1, le=4096)] = 1
    """Engines."""
    tensor_parallel: Annotated[int, Field(ge=1, le=64)] = 1
    """Accelerators an engine is split over."""
    image: ImageName | None = None
    """Container image; default: the operator's."""
    resources: Resources = Resources()
    """Requests and limits of each pod."""
    engine_args: Annotated[dict[str, AnyValue], Field(max_length=64)] = {}
    """Further vLLM arguments, by their long names without the dashes."""
    admission: AdmissionSpec = AdmissionSpec()
    """When the next trajectory may enter an engine (paper §3.2)."""
    tool_response_tokens: Annotated[int, Field(ge=8, le=1_000_000)] = 1024
    """Longer tool output is cut in the middle to so many characters x 4."""
    max_calls_per_turn: Annotated[int, Field(ge=1, le=64)] = 8
    """Further tool calls of a turn are answered with an error."""
    tool: ToolName = "execute_python_code_with_standard_io"
    """The model's tool: a Python program a call (the paper's), or jupyter_code, cells of one session a trajectory."""


class JudgeLimits(ApiModel):
    """Limits of one tool call."""

    wall_seconds: Annotated[float, Field(gt=0, le=600)] = 4
    """Wall-clock time."""
    memory_mib: Annotated[int, Field(ge=32, le=1_048_576, alias="memoryMiB")] = 512
    """Address space."""
    output_bytes: Annotated[int, Field(ge=256, le=8 << 20)] = 65536
    """Bytes of stdout, and of stderr, that are kept; a call that writes more ends with output_limit."""
    processes: Annotated[int, Field(ge=1, le=1024)] = 16
    """Processes and threads."""


class JudgeSpec(ApiModel):
    """The Code Judge: runs the model's Python in gVisor."""

    replicas: Annotated[int, Field(ge=1, le=1024)] = 1
    """Judge API pods."""
    executors: Annotated[int, Field(ge=1, le=65536)] = 2
    """Sandboxes; one call in flight in each, so one a core."""
    cpu_per_executor: Positive = 1
    """Cores of each executor pod."""
    image: ImageName | None = None
    """Container image; default: the operator's."""
    limits: JudgeLimits = JudgeLimits()
    """Limits of one tool call."""
    isolation: Literal["gvisor", "none"] = "gvisor"
    """none runs the model's code with no sandbox: only for code that you would run yourself."""
    runtime_class_name: ObjectName = "gvisor"
    """RuntimeClass of the executor pods."""


class RedisSpec(ApiModel):
    """The queue between judge API and judge workers."""

    image: ImageName | None = None
    """Container image; default: the operator's."""
    resources: Resources = Resources()
    """Requests and limits."""
    storage: Quantity = "1Gi"
    """Size of the volume for its append-only file; fixed once the job exists."""


class MLflowSpec(ApiModel):
    """Where progress is tracked."""

    uri: Text | None = None
    """Tracking URI; default: the chart's MLflow, or a sqlite file beside the job's state."""
    experiment: Text = "rstar2"
    """Experiment name."""
    secret_ref: ObjectName | None = None
    """Secret with MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD."""


class TrackingSpec(ApiModel):
    """Experiment tracking."""

    mlflow: MLflowSpec = MLflowSpec()
    """The MLflow server that progress goes to."""
    traces_per_step: Annotated[int, Field(ge=0, le=1024)] = 2
    """Sampled trajectories a step that become MLflow traces."""


class RuntimePatch(ApiModel):
    """A bounded change to the pods of some roles: never labels, isolation, security, accounts or numbers of devices.

    Several patches of a role add up; where two say different things of what a pod has one of, they are refused.
    """

    manager: Text
    """Who asks for it: shown in errors."""
    roles: Annotated[list[Role], Field(min_length=1, max_length=5)]
    """Roles it applies to; executors take only nodeSelector, tolerations and imagePullSecrets."""
    env: Annotated[list[EnvVar], Field(max_length=64)] = []
    """Environment variables of every container; one of the operator's tuning variables (NCCL_*, HSA_*) gives way."""
    volumes: Annotated[list[Volume], Field(max_length=16)] = []
    """Pod volumes."""
    volume_mounts: Annotated[list[VolumeMount], Field(max_length=16)] = []
    """Mounts of them."""
    node_selector: Labels = {}
    """Labels that a node must have."""
    tolerations: Annotated[list[Toleration], Field(max_length=16)] = []
    """Taints that the pods put up with."""
    affinity: Affinity | None = None
    """Where the pods run."""
    image_pull_secrets: Annotated[list[ObjectName], Field(max_length=8)] = []
    """Secrets of the registries that images come from."""
    resources: Resources | None = None
    """Requests and limits of every container."""
