"""Models of the roles that serve a job: trainer, engines, judge, executors, Redis, accelerator and tracking.

`job.py` assembles them into the spec. The operator's builders and `rstar2 run` read them to start pods or processes.
"""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field, StringConstraints

from rstar2_train.api.base import (
    ATOMIC,
    ATOMIC_MAP,
    BY_NAME,
    COMPUTE,
    DEVICE,
    SET,
    AnyValue,
    ApiModel,
    ImageName,
    ListType,
    LocalReference,
    ObjectName,
    Quantity,
    SecretKey,
    Text,
    keys,
)
from rstar2_train.api.kube import (
    Affinity,
    Annotations,
    EnvSource,
    EnvVar,
    Labels,
    PodClaim,
    SchedulingGate,
    Toleration,
    TopologySpread,
    Volume,
    VolumeMount,
)
from rstar2_train.api.lora import LoRASpec

NumberFormat = Literal["Auto", "Float32", "BFloat16"]
Sharding = Literal["Auto", "Full", "PerHost"]
Requirement = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*([<>=!~]=?[0-9A-Za-z.*+,<>=!~]+)?$", max_length=100)
]
"""A package of PyPI, optionally with versions."""
Role = Literal[
    "trainer", "rollout", "teacher", "judge", "executor", "redis", "environment", "agent", "prepare", "report"
]
Vendor = Literal["AMD", "NVIDIA", "None"]

GPU_RESOURCES: dict[Vendor, str] = {"AMD": "amd.com/gpu", "NVIDIA": "nvidia.com/gpu"}
"""Extended resource that each vendor's device plugin offers by default."""
RESERVED_FOLDERS = (
    *("/etc/rstar2", "/state", "/pvc", "/tmp", "/dev", "/proc", "/sys", "/run/secrets", "/var/run/secrets"),
)
"""Mount paths of the operator and the kernel, which a runtimePatch must not cover."""
RESERVED_PREFIXES = ("RSTAR2_", "POD_", "RAY_", "KUBERNETES_")
"""Prefixes of environment variables that a runtimePatch must not set: identity, addresses, Ray."""
RESERVED_VARIABLES = ("HOME", "HOSTNAME", "JOB_COMPLETION_INDEX", "REDIS_PASSWORD")
"""Further environment variables that a runtimePatch must not set."""
ACCELERATOR_CLAIM = "rstar2-accelerator"
"""Name of the claim of accelerator.claimTemplates in a pod, which a runtimePatch must not use."""
REDIS_DATA = "/data"
"""Mount path of Redis' volume."""
RESERVED_DOMAINS = ("rstar2.dev", "app.kubernetes.io", "batch.kubernetes.io", "kueue.x-k8s.io")
"""Domains of labels and annotations that a runtimePatch must not set: the operator and Kueue select pods by them."""
RESERVED_LABELS = ("controller-uid", "job-name", "pod-template-hash", "controller-revision-hash")
"""Labels without a reserved domain that controllers of the cluster set."""
EXECUTOR_PATCH_FIELDS = (
    *("nodeSelector", "tolerations", "imagePullSecrets", "labels", "annotations"),
    *("schedulerName", "schedulingGates", "topologySpreadConstraints"),
)
"""Fields of a runtimePatch that apply to executors; no other field may weaken the sandbox."""
SANDBOX_ANNOTATIONS = (
    *("dev.gvisor", "io.kubernetes.cri", "io.katacontainers", "io.containerd"),
    *("container.apparmor.security", "container.seccomp.security", "seccomp.security"),
    *("crio.io", "cri-o.io", "run.oci", "org.systemd.property"),
)
"""Parts of annotations that container runtimes read, and that could weaken the sandbox of executors."""
Amounts = Annotated[dict[str, Quantity], Field(max_length=16), keys(COMPUTE)]
"""Resource name -> amount."""


class Resources(ApiModel):
    """Kubernetes resource requests and limits of one pod."""

    requests: Amounts = {}
    """Minimum amounts, such as cpu, memory, amd.com/gpu."""
    limits: Amounts = {}
    """Maximum amounts."""


ToolParser = Literal["hermes", "llama3_json", "pythonic", "mistral", "gemma"]


class ModelSource(ApiModel):
    """The initial policy."""

    source: Text
    """pvc://CLAIM/PATH, hf://OWNER/NAME[@REVISION] or s3://BUCKET/PREFIX (also gs://, az://; downloaded once),
    generated://NAME/FILE, or a path."""
    chat_template: Text | None = None
    """Jinja file with the chat template. Default: the template of the model."""
    tool_parser: ToolParser | None = None
    """Form of tool calls. Default: that of the chat template, else hermes."""
    system_prompt: Annotated[str, StringConstraints(max_length=16384)] | None = None
    """System message of every conversation. Default: built-in, with the tools' signatures. In a job with spec.tools,
    {tools} stands for them."""
    prompt_prefix: Annotated[str, StringConstraints(max_length=4096)] | None = None
    """Text before every problem. Default: a request for an <answer> with a \\boxed{}."""
    assume_instruction_tuned: bool = False
    """Whether the source is instruction-tuned: no warning about a missing SFT stage."""


class RDMASpec(ApiModel):
    """RDMA devices of the trainer pods."""

    resource: Annotated[str, StringConstraints(pattern=DEVICE, max_length=317)]
    """Extended resource that the RDMA device plugin offers."""
    count: Annotated[int, Field(ge=1, le=64)] = 1
    """Devices per trainer pod."""


class ClaimTemplates(ApiModel):
    """ResourceClaimTemplates of the job's namespace, by which a DRA driver gives pods their accelerators."""

    trainer: ObjectName
    """Template of a trainer pod, with trainer.gpusPerReplica devices."""
    rollout: ObjectName | None = None
    """Template of an engine, with rollout.tensorParallel devices; required if a stage samples."""
    teacher: ObjectName | None = None
    """Template of an engine of the teacher, with teacher.tensorParallel devices; required with spec.teacher."""


class AcceleratorSpec(ApiModel):
    """Accelerator of trainer and engine pods. Immutable."""

    vendor: Vendor
    """AMD (ROCm), NVIDIA (CUDA), or None (CPU, with gloo)."""
    resource: Annotated[str, StringConstraints(pattern=DEVICE, max_length=317)] | None = None
    """Extended resource that the device plugin offers, such as amd.com/gpu. Unless vendor is None, exactly one of
    resource and claimTemplates is required."""
    claim_templates: ClaimTemplates | None = None
    """Claims of dynamic resource allocation, on clusters with a DRA driver instead of the device plugin."""
    rdma: RDMASpec | None = None
    """RDMA devices of the trainer pods."""

    @classmethod
    def from_vendor(cls, vendor: Vendor) -> AcceleratorSpec:
        """Return the accelerator of a vendor with its device plugin's default resource."""
        return cls(vendor=vendor, resource=GPU_RESOURCES.get(vendor))


class TrainerSpec(ApiModel):
    """The training pods. Each stage attempt runs one Ray cluster."""

    replicas: Annotated[int, Field(ge=1, le=4096)] = 1
    """Pods. The number of ranks is replicas x max(1, gpusPerReplica)."""
    gpus_per_replica: Annotated[int, Field(ge=0, le=64)] = 8
    """Accelerators, and therefore ranks, per pod. 0 if accelerator.vendor is None."""
    tokens_per_micro_batch: Annotated[int, Field(ge=256, le=100_000_000)] | None = None
    """Maximum tokens, padding included, in one forward pass of one rank. Default: 16384 to 40960, by free memory."""
    dtype: NumberFormat = "Auto"
    """Number format of forward and backward; weights and moments are float32. Auto: BFloat16 on accelerators; on a CPU
    that computes with it, if the engines do (engineArgs.dtype: bfloat16); else Float32."""
    logprob_chunk_tokens: Annotated[int, Field(ge=16, le=1_000_000)] = 2048
    """Tokens whose logits are in memory at the same time."""
    activation_checkpointing: Literal["Auto", "Always", "Never"] = "Auto"
    """Layers whose activations are recomputed in the backward pass. Auto: as few as the free memory requires. Always:
    all. Never: none."""
    packing: bool | None = None
    """Whether a micro-batch has its sequences one after another, without padding. Default: on accelerators."""
    compile: bool | None = None
    """Whether to compile the layers. Default: on accelerators."""
    sharding: Sharding = "Auto"
    """Full: over all ranks. PerHost: within each host. Auto: PerHost if a copy fits on a host with accelerators."""
    offload: bool = False
    """Whether weights, gradients and optimiser stay in host memory between their uses; with LoRA the base too."""
    lora: LoRASpec | None = None
    """Train an adapter in every training stage. Default: the whole model."""
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    """CPU threads per rank. Default: the pod's cores divided by its ranks."""
    image: ImageName | None = None
    """Container image. Default: that of the chart's jobImages."""
    resources: Resources = Resources()
    """Requests and limits per pod."""
    termination_grace_period_seconds: Annotated[int, Field(ge=10, le=7200)] = 120
    """Seconds between SIGTERM and SIGKILL: time to finish the update and write a checkpoint."""
    disruption_policy: Literal["Allow", "Refuse"] = "Allow"
    """Refuse: a PodDisruptionBudget refuses every eviction of a trainer pod, so that `kubectl drain` waits."""

    @property
    def ranks_per_replica(self) -> int:
        """Ranks per pod: one per accelerator, or one on the CPU."""
        return max(1, self.gpus_per_replica)

    @property
    def recomputes(self) -> bool | None:
        """Whether all layers recompute their activations; None: as few as the free memory requires."""
        return {"Auto": None, "Always": True, "Never": False}[self.activation_checkpointing]


class AdmissionSpec(ApiModel):
    """When the next trajectory may enter an engine (paper §3.2)."""

    policy: Literal["Static", "Reserve", "Graded"] = "Graded"
    """Graded: when its expected length fits into the free KV cache. Reserve: when its prompt and whole budget fit.
    Static: a fixed number per engine."""
    max_in_flight: Annotated[int, Field(ge=1, le=100_000)] = 256
    """Maximum trajectories per engine; with Graded and Reserve, in addition to the limit of the KV cache."""


ToolName = Literal["execute_python_code_with_standard_io", "jupyter_code"]
BUILTIN_TOOLS: tuple[ToolName, ...] = get_args(ToolName)
NOTEBOOK: ToolName = "jupyter_code"
"""The built-in tool whose calls are cells of a session."""


WeightTransportName = Literal["Auto", "Delta", "Collective", "Folder"]


EngineArgs = Annotated[dict[str, AnyValue], Field(max_length=64)]


class RolloutSpec(ApiModel):
    """The vLLM engines."""

    replicas: Annotated[int, Field(ge=1, le=4096)] = 1
    """Engines."""
    tensor_parallel: Annotated[int, Field(ge=1, le=64)] = 1
    """Accelerators per engine."""
    image: ImageName | None = None
    """Container image. Default: that of the chart's jobImages."""
    resources: Resources = Resources()
    """Requests and limits per pod."""
    engine_args: EngineArgs = {}
    """Further vLLM arguments by their long names without the dashes, such as max-model-len. Arguments that could change
    the model, its probabilities or its sampling are refused."""
    admission: AdmissionSpec = AdmissionSpec()
    """When the next trajectory may enter an engine (paper §3.2)."""
    workers: Annotated[int, Field(ge=1, le=64)] | None = None
    """Processes that run trajectories. Default: 1 per 1,000 concurrent ones."""
    tool_response_tokens: Annotated[int, Field(ge=8, le=1_000_000)] = 1024
    """Limit of one tool response. Longer output is cut in the middle; a note on the omitted length is added."""
    max_calls_per_turn: Annotated[int, Field(ge=1, le=64)] = 8
    """Maximum tool calls per turn. Further calls of the turn return an error."""
    tool: ToolName = "execute_python_code_with_standard_io"
    """Tool of the model: a Python program per call (the paper's), or jupyter_code, cells of one session per
    trajectory."""
    weight_transport: WeightTransportName = "Folder"
    """Path of new weights to the engines. Auto: Delta for 16-bit weights, else Folder. Collective is experimental: it
    never ran on GPUs (NCCL, RCCL)."""
    weight_snapshot_every: Annotated[int, Field(ge=1, le=10_000)] = 50
    """With Delta and Collective: weight versions per full snapshot."""
    weight_timeout_seconds: Annotated[int, Field(ge=10, le=7200)] = 600
    """Longest time in which one engine loads a weight version."""
    weight_probe: bool | None = None
    """Whether an engine serves a version only if its log-probabilities of fixed tokens agree with the trainer's.
    Default: only in stages with LoRA, which always have it."""


class JudgeLimitsSpec(ApiModel):
    """Limits of one tool call."""

    timeout_seconds: Annotated[int, Field(ge=1, le=600)] = 4
    """Wall-clock time."""
    memory: Quantity = "512Mi"
    """Address space, 32Mi to 1Ti; rounded down to whole MiB."""
    output: Quantity = "64Ki"
    """Kept bytes of stdout and of stderr, 256 to 8Mi; a call that writes more gets status output_limit."""
    processes: Annotated[int, Field(ge=1, le=1024)] = 48
    """Processes and threads, in addition to the main thread."""


class JudgeSpec(ApiModel):
    """The Code Judge: its API and workers queue the model's tool calls and send them to the executors."""

    replicas: Annotated[int, Field(ge=1, le=1024)] = 1
    """Pods, each with an API and a worker."""
    image: ImageName | None = None
    """Container image of judge and executors. Default: that of the chart's jobImages."""
    packages: Annotated[list[Requirement], Field(max_length=32), SET] = []
    """Python packages of the sandbox, such as scipy or pandas==3.0.1. In a cluster the image must have them."""
    limits: JudgeLimitsSpec = JudgeLimitsSpec()
    """Limits of one tool call."""


class ExecutorSpec(ApiModel):
    """The executors: sandboxes that run the model's code, one call at a time."""

    replicas: Annotated[int, Field(ge=1, le=65536)] = 2
    """Executors, and therefore tool calls that run at the same time."""
    cpu: Quantity = "1"
    """CPU of each executor: request and limit."""
    isolation: Literal["GVisor", "None"] = "GVisor"
    """GVisor, or None: no sandbox, only for code that you would run yourself."""
    runtime_class_name: ObjectName = "gvisor"
    """RuntimeClass of the executor pods; ignored if isolation is None."""

    @property
    def isolation_option(self) -> Literal["gvisor", "none"]:
        """The value of the judge's command-line option --isolation."""
        return "gvisor" if self.isolation == "GVisor" else "none"


class RedisSpec(ApiModel):
    """Redis: the queue between judge API and judge workers."""

    image: ImageName | None = None
    """Container image. Default: that of the chart's jobImages."""
    resources: Resources = Resources(requests={"cpu": "100m", "memory": "256Mi"}, limits={"memory": "2Gi"})
    """Requests and limits."""
    storage: Quantity = "1Gi"
    """Size of the volume for the append-only file. Immutable."""


class LoginReference(LocalReference):
    """A user and a password in a Secret of the job's namespace."""

    username_key: SecretKey = "MLFLOW_TRACKING_USERNAME"
    """Key of the user's name."""
    password_key: SecretKey = "MLFLOW_TRACKING_PASSWORD"
    """Key of the password."""


class MLflowSpec(ApiModel):
    """The MLflow server that receives metrics and traces."""

    uri: Text | None = None
    """Tracking URI. Default: the chart's MLflow, or a SQLite file in the job's storage."""
    experiment: Text = "rstar2"
    """Experiment name."""
    secret_ref: LoginReference | None = None
    """Secret with user and password of the server."""


class TrackingSpec(ApiModel):
    """Experiment tracking."""

    mlflow: MLflowSpec = MLflowSpec()
    """The MLflow server that receives metrics and traces."""
    traces_per_step: Annotated[int, Field(ge=0, le=1024)] = 2
    """Sampled trajectories per step that become MLflow traces."""


class RuntimePatch(ApiModel):
    """A bounded change to the pods of some roles, never to the operator's labels, isolation or security.

    Patches of one role add up. Patches that contradict each other are rejected.
    """

    manager: Annotated[str, StringConstraints(min_length=1, max_length=128)]
    """Author of the patch; unique in the job."""
    roles: Annotated[list[Role], Field(min_length=1, max_length=10), SET]
    """Roles to patch. Executors accept only placement without affinity, metadata and imagePullSecrets. Patches of
    trainer reach prepare and report in part."""
    labels: Annotated[Labels, Field(json_schema_extra=ATOMIC_MAP)] = {}
    """Further labels of the pods, such as the queue of a scheduler."""
    annotations: Annotations = {}
    """Annotations of the pods, such as the networks of Multus."""
    service_account_name: ObjectName | None = None
    """ServiceAccount of the pods, for identities of a cloud. Its token is mounted only where the operator needs it."""
    env: Annotated[list[EnvVar], Field(max_length=64), BY_NAME] = []
    """Environment variables of every container. They override the operator's tuning variables (NCCL_*, HSA_*)."""
    env_from: Annotated[list[EnvSource], Field(max_length=16), ATOMIC] = []
    """Secrets and ConfigMaps whose keys become environment variables; the operator's own variables win."""
    volumes: Annotated[list[Volume], Field(max_length=16), BY_NAME] = []
    """Pod volumes."""
    volume_mounts: Annotated[list[VolumeMount], Field(max_length=16), ListType("map", "mountPath")] = []
    """Mounts of the patch's volumes."""
    node_selector: Annotated[Labels, Field(json_schema_extra=ATOMIC_MAP)] = {}
    """Labels that a node must have."""
    tolerations: Annotated[list[Toleration], Field(max_length=16), ATOMIC] = []
    """Pod tolerations."""
    affinity: Affinity | None = None
    """Affinity as in a pod: matchExpressions of nodes, matchLabels of pods."""
    topology_spread_constraints: Annotated[list[TopologySpread], Field(max_length=4), ATOMIC] = []
    """Spread of the pods of a role over topology domains."""
    scheduler_name: ObjectName | None = None
    """Scheduler of the pods. Default: the cluster's."""
    scheduling_gates: Annotated[list[SchedulingGate], Field(max_length=8), BY_NAME] = []
    """Gates that a controller of the site removes before the pods are scheduled."""
    resource_claims: Annotated[list[PodClaim], Field(max_length=8), ATOMIC] = []
    """Devices of dynamic resource allocation."""
    image_pull_secrets: Annotated[list[LocalReference], Field(max_length=8), BY_NAME] = []
    """Registry credentials."""
    resources: Resources | None = None
    """Requests and limits of every container."""
