"""What a site sets for its operator, from environment variables; the chart writes them.

Nothing here is read again later: a changed setting is a new pod of the operator.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

PREFIX = "RSTAR2_"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSettings:
    """Each field is the environment variable RSTAR2_<NAME IN CAPITALS>."""

    trainer_image: str = "ghcr.io/rstar2/trainer:latest"
    """Image of stage, prepare and report pods when the job names none."""
    rollout_image: str = "ghcr.io/rstar2/rollout:latest"
    """Image of the engines."""
    judge_image: str = "ghcr.io/rstar2/judge:latest"
    """Image of judge API, workers and executors."""
    redis_image: str = "docker.io/library/redis:7"
    """Image of Redis."""
    image_pull_policy: str = "IfNotPresent"
    """Of all pods of jobs."""
    mlflow_uri: str = ""
    """Tracking URI of jobs that name none; empty: a file in the job's storage."""
    watch_namespaces: tuple[str, ...] = ()
    """Comma-separated; empty: the whole cluster."""
    gpu_groups: tuple[int, ...] = (44, 109, 992)
    """Comma-separated group ids of video and render on the GPU nodes, for pods that are not root (amd)."""
    workers: int = 4
    """Jobs that are reconciled at the same time."""
    lease_namespace: str = "default"
    """Namespace of the operator's Lease."""
    lease_name: str = "rstar2-operator"
    """Name of the Lease that one replica holds."""
    identity: str = field(default_factory=lambda: os.uname().nodename)
    """This replica's name on it."""
    probe_port: int = 8081
    """Port of /healthz, /readyz and /metrics; 0 takes a free one."""
    log_format: str = "json"
    """json or text."""

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> OperatorSettings:
        """Settings of an environment. Raises ValueError naming the variable that cannot be read."""
        values: dict[str, object] = {}
        for one in fields(cls):
            variable = PREFIX + one.name.upper()
            if variable not in env:
                continue
            try:
                values[one.name] = _read(env[variable], str(one.type))
            except ValueError as error:
                raise ValueError(f"{variable}={env[variable]!r}: {error}") from error
        return cls(**values)  # type: ignore[arg-type]


def _read(text: str, kind: str) -> object:
    items = [item.strip() for item in text.split(",") if item.strip()]
    if kind == "int":
        return int(text)
    if kind == "tuple[int, ...]":
        return tuple(int(item) for item in items)
    return tuple(items) if kind == "tuple[str, ...]" else text
