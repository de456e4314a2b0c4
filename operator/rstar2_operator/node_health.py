"""Health of a node, as the tools of GPU vendors and the node problem detector report it. Pure.

The tools write labels, taints and conditions; `SIGNS` lists those that mean that the node is faulty. The cache keeps
the trouble of faulty nodes only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Sign:
    """A label, taint or condition of a faulty node."""

    kind: Literal["label", "taint", "condition"]
    name: str
    """Label, taint key or type of the condition; may have wildcards."""
    values: tuple[str, ...]
    """Values of the label or of the condition; of a taint its effects."""


CLOSING = ("NoSchedule", "NoExecute")
"""Effects of taints that keep new pods away."""
SIGNS = (
    # ROCm/device-metrics-exporter, for GPUs and for network cards.
    Sign("label", "metricsexporter.amd.com.*.state", ("unhealthy",)),
    # ROCm/gpu-operator: default taint of a node in remediation, and the conditions of its node problem detector.
    Sign("taint", "amd-gpu-unhealthy", CLOSING),
    Sign("condition", "AMDGPU*", ("True",)),
    # NVIDIA/NVSentinel: state of a faulty node, and the conditions of its monitors (DCGM, kernel log).
    Sign(
        "label",
        "dgxc.nvidia.com/nvsentinel-state",
        ("quarantined", "draining", "drain-succeeded", "drain-failed", "remediating", "remediation-failed"),
    ),
    Sign("condition", "Gpu*Watch", ("True",)),
    Sign("condition", "SysLogs*", ("True",)),
    # kubernetes/node-problem-detector.
    *(
        Sign("condition", name, ("True",))
        for name in (
            *("KernelDeadlock", "ReadonlyFilesystem", "CorruptDockerOverlay2", "FrequentUnregisterNetDevice"),
            *("FrequentKubeletRestart", "FrequentContainerdRestart", "FrequentDockerRestart"),
            *("KubeletUnhealthy", "ContainerRuntimeUnhealthy"),
        )
    ),
)
"""Every sign of a faulty node."""
MESSAGE_LENGTH = 200
"""Characters of a condition's message that are kept."""


@dataclass(frozen=True, slots=True)
class NodeTrouble:
    """A faulty node."""

    causes: tuple[str, ...]
    """Labels, taints and conditions that report the fault."""
    closed: bool
    """Whether the node takes no new pods: it is cordoned, or has a taint of `SIGNS`."""


def trouble(node: Mapping[str, Any]) -> NodeTrouble | None:
    """Return the trouble of a node; None if nothing reports a fault."""
    causes, closed = list[str](), bool((node.get("spec") or {}).get("unschedulable"))
    for kind, name, value, text in _reports(node):
        if any(sign.kind == kind and fnmatchcase(name, sign.name) and value in sign.values for sign in SIGNS):
            causes.append(f"{kind} {text}")
            closed = closed or kind == "taint"
    return NodeTrouble(tuple(sorted(causes)), closed) if causes else None


def _reports(node: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """Yield (kind, name, value, text) of every label, taint and condition."""
    for name, value in (node["metadata"].get("labels") or {}).items():
        yield "label", name, value, f"{name}={value}"
    for taint in (node.get("spec") or {}).get("taints") or ():
        yield "taint", taint["key"], taint["effect"], f"{taint['key']}:{taint['effect']}"
    for each in (node.get("status") or {}).get("conditions") or ():
        message = str(each.get("message") or each.get("reason") or "")[:MESSAGE_LENGTH]
        yield "condition", each["type"], each["status"], f"{each['type']} ({message})" if message else each["type"]
