"""Settings of the operator, from environment variables that the chart sets.

They are read once at the start; a changed setting needs a new pod.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import get_args

from rstar2_operator.node_health import FaultIndicator, parse_indicators
from rstar2_train.api import pod_rules
from rstar2_train.api.base import IMAGE, PATTERNS, REGISTRY_PREFIX, ImageName, RegistryPrefix
from rstar2_train.api.job import CONTROLLER
from rstar2_train.api.roles import Role, RuntimePatch

PREFIX = "RSTAR2_"
LEASE_SECONDS = 15
"""That of controller-runtime."""
JOB_PODS_FIELDS = frozenset({"image_pull_secrets", "labels", "annotations", "tolerations", "node_selector"})
"""Fields of a runtimePatch that a site may set for the pods of all jobs."""
_TEXTS = {"ImageName": IMAGE, "RegistryPrefix": REGISTRY_PREFIX}
"""Type of a setting -> pattern of its text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSettings:
    """Each field is set by the environment variable RSTAR2_<NAME IN CAPITALS>."""

    trainer_image: ImageName = "ghcr.io/rstar2/trainer:latest"
    """Image of stage, prepare and report pods whose job sets none."""
    rollout_image: ImageName = "ghcr.io/rstar2/rollout:latest"
    """Image of the engines."""
    judge_image: ImageName = "ghcr.io/rstar2/judge:latest"
    """Image of judge API, workers and executors."""
    redis_image: ImageName = "docker.io/library/redis:7"
    """Image of Redis."""
    registry_prefix: RegistryPrefix = ""
    """Prefix of these images, for jobs without spec.registryPrefix; empty: none."""
    job_pods: RuntimePatch | None = None
    """Additions to every pod of every job, as JSON. The values of a job's own runtimePatches win."""
    image_pull_policy: str = "IfNotPresent"
    """imagePullPolicy of all pods of jobs."""
    mlflow_uri: str = ""
    """Tracking URI of jobs that set none; empty: a file in the job's storage."""
    controller_name: str = CONTROLLER
    """Jobs with another spec.managedBy are ignored."""
    watch_namespaces: tuple[str, ...] = ()
    """Namespaces to watch, comma-separated; empty: all."""
    pod_user: int = 65532
    """User and group of all pods of jobs, and group of their volumes; 0: the platform chooses them (OpenShift)."""
    gpu_groups: tuple[int, ...] = (44, 109, 992)
    """Group ids of video and render on AMD GPU nodes, comma-separated; non-root pods need them."""
    fault_indicators: tuple[FaultIndicator, ...] = ()
    """Additional labels, taints and conditions of faulty nodes, as JSON."""
    kueue: bool = False
    """Whether jobs may set spec.queueName; Kueue must be installed."""
    workers: int = 4
    """Maximum jobs that are reconciled at the same time."""
    lease_namespace: str = "default"
    """Namespace of the operator's Lease."""
    lease_name: str = "rstar2-operator"
    """Name of the operator's Lease."""
    lease_seconds: int = LEASE_SECONDS
    """Time after the leader's last renewal in which no other replica leads; the leader exits after two thirds."""
    identity: str = field(default_factory=lambda: os.uname().nodename)
    """Name of this replica in the Lease."""
    probe_port: int = 8081
    """Port of /healthz, /readyz and /metrics; 0: any free port."""
    log_format: str = "json"
    """Log format: json or text."""

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> OperatorSettings:
        """Return the settings of an environment. Raises ValueError with the name of an invalid variable."""
        values: dict[str, object] = {}
        for setting in fields(cls):
            variable = PREFIX + setting.name.upper()
            if variable not in env:
                continue
            try:
                values[setting.name] = _parse(env[variable], str(setting.type))
            except ValueError as error:
                raise ValueError(f"{variable}={env[variable]!r}: {error}") from error
        return cls(**values)  # type: ignore[arg-type]


def _parse(text: str, kind: str) -> object:
    items = [item.strip() for item in text.split(",") if item.strip()]
    if kind == "bool":
        if text not in ("true", "false"):
            raise ValueError("must be true or false")
        return text == "true"
    if kind == "int":
        return int(text)
    if kind in _TEXTS:
        return _matching(text, _TEXTS[kind]) if text or kind == "ImageName" else text
    if kind == "RuntimePatch | None":
        return _site_patch(text) if text else None
    if kind == "tuple[FaultIndicator, ...]":
        return parse_indicators(json.loads(text)) if text else ()
    if kind == "tuple[int, ...]":
        return tuple(int(item) for item in items)
    return tuple(items) if kind == "tuple[str, ...]" else text


def _matching(text: str, pattern: str) -> str:
    """Return a text that matches a pattern of `rstar2_train.api.base`. Raises ValueError for others."""
    if not re.fullmatch(pattern, text):
        raise ValueError(f"allowed: {PATTERNS[pattern]}")
    return text


def _site_patch(text: str) -> RuntimePatch:
    """Return the site's patch of all roles. Raises ValueError."""
    values = json.loads(text)
    if not isinstance(values, dict):
        raise ValueError("must be a JSON object")
    patch = RuntimePatch.model_validate({**values, "manager": "site", "roles": list(get_args(Role))})
    if other := patch.model_fields_set - JOB_PODS_FIELDS - {"manager", "roles"}:
        names = [RuntimePatch.model_fields[name].alias or name for name in sorted(other)]
        raise ValueError(f"{', '.join(names)}: a site cannot set this for all jobs")
    if issues := list(pod_rules.metadata(patch, "jobPods")):
        raise ValueError("; ".join(str(issue) for issue in issues))
    return patch
