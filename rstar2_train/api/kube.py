"""Subsets of Kubernetes pod types that a runtimePatch may use: variables, volumes, tolerations, affinity.

Volumes are limited to the kinds that restricted Pod Security admits and that hold no account token. Because of these
subsets a job needs no embedded PodTemplate.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from rstar2_train.api.base import (
    ATOMIC,
    ATOMIC_MAP,
    FOLDER,
    LABEL_KEY,
    LABEL_VALUE,
    POD_FIELD,
    RELATIVE,
    VARIABLE,
    ApiModel,
    KeyReference,
    LocalReference,
    Name,
    ObjectName,
    Quantity,
    SecretKey,
    keys,
)

Key = Annotated[str, StringConstraints(pattern=LABEL_KEY, max_length=317)]
"""A label key with its prefix."""
LabelValue = Annotated[str, StringConstraints(pattern=LABEL_VALUE, max_length=63)]
Labels = Annotated[dict[str, LabelValue], Field(max_length=16), keys(LABEL_KEY)]
"""Label key -> value."""

Annotations = Annotated[
    dict[str, Annotated[str, StringConstraints(max_length=4096)]],
    Field(max_length=16, json_schema_extra=ATOMIC_MAP),
    keys(LABEL_KEY),
]
"""Annotation key -> value."""


class ConfigKeyReference(LocalReference):
    """A reference to one key of a ConfigMap in the job's namespace."""

    key: SecretKey
    """Key of the ConfigMap."""


class FieldReference(ApiModel):
    """A field of the pod."""

    field_path: Annotated[str, StringConstraints(pattern=POD_FIELD, max_length=400)]
    """Path, such as metadata.name, metadata.labels['KEY'], spec.nodeName or status.podIP."""


class EnvVarSource(ApiModel):
    """The source of a variable: exactly one of secretKeyRef, configMapKeyRef, fieldRef."""

    model_config = ApiModel.model_config | {"json_schema_extra": ATOMIC_MAP}

    secret_key_ref: KeyReference | None = None
    """Key of a Secret."""
    config_map_key_ref: ConfigKeyReference | None = None
    """Key of a ConfigMap."""
    field_ref: FieldReference | None = None
    """Field of the pod."""


class EnvVar(ApiModel):
    """An environment variable."""

    name: Annotated[str, StringConstraints(pattern=VARIABLE, max_length=128)]
    """Name. RSTAR2_*, POD_*, RAY_*, KUBERNETES_*, HOME, HOSTNAME, REDIS_PASSWORD and the like are reserved."""
    value: Annotated[str, StringConstraints(max_length=4096)] | None = None
    """Value. Default: empty, unless valueFrom is set."""
    value_from: EnvVarSource | None = None
    """Source of the value, instead of value."""


class KeyToPath(ApiModel):
    """One key of a ConfigMap or Secret as a file."""

    key: Annotated[str, StringConstraints(max_length=253)]
    """Key."""
    path: Annotated[str, StringConstraints(pattern=RELATIVE, max_length=253)]
    """File, relative to the volume."""


class ClaimVolume(ApiModel):
    """A PersistentVolumeClaim of the job's namespace."""

    claim_name: ObjectName
    """Name of the claim."""
    read_only: bool = False
    """Whether every mount is read-only."""


class ConfigMapVolume(ApiModel):
    """A ConfigMap as files."""

    name: ObjectName
    """Name of the ConfigMap."""
    items: Annotated[list[KeyToPath], Field(max_length=32), ATOMIC] = []
    """Keys to mount. Default: all."""


class SecretVolume(ApiModel):
    """A Secret as files."""

    secret_name: ObjectName
    """Name of the Secret."""
    items: Annotated[list[KeyToPath], Field(max_length=32), ATOMIC] = []
    """Keys to mount. Default: all."""


class EmptyDirVolume(ApiModel):
    """Scratch space with the lifetime of the pod."""

    medium: Literal["", "Memory"] = ""
    """Memory: a tmpfs, which counts towards the pod's memory."""
    size_limit: Quantity | None = None
    """Size above which the pod is evicted."""


class Volume(ApiModel):
    """A pod volume: exactly one of persistentVolumeClaim, configMap, secret, emptyDir."""

    name: Name
    """Name that volumeMounts refer to; unique in the patch."""
    persistent_volume_claim: ClaimVolume | None = None
    """A PersistentVolumeClaim of the job's namespace."""
    config_map: ConfigMapVolume | None = None
    """A ConfigMap as files."""
    secret: SecretVolume | None = None
    """A Secret as files."""
    empty_dir: EmptyDirVolume | None = None
    """Scratch space with the lifetime of the pod."""


class VolumeMount(ApiModel):
    """A mount of one of the patch's volumes in every container of the role."""

    name: Name
    """Volume of the same patch."""
    mount_path: Annotated[str, StringConstraints(pattern=FOLDER, max_length=512)]
    """Path in the container. /etc/rstar2, /state, /pvc, /tmp itself, /dev, /proc and /sys are reserved."""
    sub_path: Annotated[str, StringConstraints(pattern=RELATIVE, max_length=512)] | None = None
    """File or directory in the volume. Default: the whole volume."""
    read_only: bool = False
    """Whether the mount is read-only."""


class EnvSource(ApiModel):
    """A Secret or ConfigMap whose keys become environment variables: exactly one of both."""

    secret_ref: LocalReference | None = None
    """Secret of the job's namespace."""
    config_map_ref: LocalReference | None = None
    """ConfigMap of the job's namespace."""


class SchedulingGate(ApiModel):
    """A gate that holds a pod back from the scheduler."""

    name: Key
    """Name, such as example.org/budget."""


class TopologySpread(ApiModel):
    """Spread of the pods of a role over topology domains."""

    topology_key: Key
    """Node label whose value defines the topology domain."""
    max_skew: Annotated[int, Field(ge=1, le=1024)] = 1
    """Maximum difference between the numbers of pods in two domains."""
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"] = "ScheduleAnyway"
    """Whether a pod waits if no domain fits."""


class PodClaim(ApiModel):
    """A device of dynamic resource allocation: exactly one of both sources."""

    name: Name
    """Name of the claim in the pod; unique in the patch."""
    resource_claim_name: ObjectName | None = None
    """ResourceClaim that all pods share."""
    resource_claim_template_name: ObjectName | None = None
    """ResourceClaimTemplate of a claim per pod."""


class Toleration(ApiModel):
    """A pod toleration."""

    key: Key | None = None
    """Taint key. Without a key, operator Exists matches every taint."""
    operator: Literal["Exists", "Equal"] | None = None
    """Comparison of the value. Default: Equal."""
    value: LabelValue | None = None
    """Taint value."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Taint effect. Default: all."""
    toleration_seconds: Annotated[int, Field(ge=0, le=31_536_000)] | None = None
    """Seconds that a NoExecute taint is tolerated. Default: without limit."""


class Requirement(ApiModel):
    """A requirement on one label."""

    key: Key
    """Label key."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    """Comparison of the label's value."""
    values: Annotated[list[LabelValue], Field(max_length=32), ATOMIC] = []
    """Values to compare with."""


class NodeTerm(ApiModel):
    """Requirements on a node's labels; all must hold."""

    match_expressions: Annotated[list[Requirement], Field(min_length=1, max_length=16), ATOMIC]
    """Requirements."""


class NodeSelectorTerms(ApiModel):
    """Nodes that match at least one term."""

    node_selector_terms: Annotated[list[NodeTerm], Field(min_length=1, max_length=8), ATOMIC]
    """Terms, of which at least one must match."""


class PreferredNodes(ApiModel):
    """A weighted preference for nodes."""

    weight: Annotated[int, Field(ge=1, le=100)]
    """Weight relative to other preferences."""
    preference: NodeTerm
    """Nodes to prefer."""


class NodeAffinity(ApiModel):
    """Nodes that the pods require or prefer."""

    required_during_scheduling_ignored_during_execution: NodeSelectorTerms | None = None
    """Nodes that the pods require."""
    preferred_during_scheduling_ignored_during_execution: Annotated[
        list[PreferredNodes], Field(max_length=8), ATOMIC
    ] = []
    """Nodes that the pods prefer."""


class PodSelector(ApiModel):
    """A selector of pods by labels."""

    model_config = ApiModel.model_config | {"json_schema_extra": ATOMIC_MAP}

    match_labels: Labels = {}
    """Labels that the pods have."""


class PodTerm(ApiModel):
    """Pods, and the topology domain that they share."""

    label_selector: PodSelector
    """Pods of the job's namespace."""
    topology_key: Key
    """Node label whose value defines the topology domain."""


class PreferredPods(ApiModel):
    """A weighted preference for topology domains of other pods."""

    weight: Annotated[int, Field(ge=1, le=100)]
    """Weight relative to other preferences."""
    pod_affinity_term: PodTerm
    """Pods and topology domain."""


class PodAffinity(ApiModel):
    """Pods whose topology domain is required or preferred (podAntiAffinity: avoided)."""

    required_during_scheduling_ignored_during_execution: Annotated[list[PodTerm], Field(max_length=8), ATOMIC] = []
    """Required terms."""
    preferred_during_scheduling_ignored_during_execution: Annotated[
        list[PreferredPods], Field(max_length=8), ATOMIC
    ] = []
    """Preferred terms."""


class Affinity(ApiModel):
    """Scheduling constraints, as in a pod's spec.affinity."""

    node_affinity: NodeAffinity | None = None
    """Nodes that the pods require or prefer."""
    pod_affinity: PodAffinity | None = None
    """Pods to be scheduled near."""
    pod_anti_affinity: PodAffinity | None = None
    """Pods to be scheduled away from."""
