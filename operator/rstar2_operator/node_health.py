"""Health of a node, as the tools of GPU vendors and the node problem detector report it. Pure.

The tools write labels, taints and conditions; `FAULT_INDICATORS` lists those of a faulty node. The cache keeps only
faulty nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class FaultIndicator:
    """A label, taint or condition of a faulty node."""

    kind: Literal["label", "taint", "condition"]
    name: str
    """Label, taint key or type of the condition; may have wildcards."""
    values: tuple[str, ...]
    """Values of the label or of the condition; of a taint its effects."""


CLOSING = ("NoSchedule", "NoExecute")
"""Effects of taints that keep new pods away."""
FAULT_INDICATORS = (
    # The kubelet itself reports that it runs no pods, such as without a network or a container runtime.
    FaultIndicator("condition", "Ready", ("False",)),
    # ROCm/device-metrics-exporter, for GPUs and for network cards.
    FaultIndicator("label", "metricsexporter.amd.com.*.state", ("unhealthy",)),
    # ROCm/gpu-operator: default taint of a node in remediation, and the conditions of its node problem detector.
    FaultIndicator("taint", "amd-gpu-unhealthy", CLOSING),
    FaultIndicator("condition", "AMDGPU*", ("True",)),
    # NVIDIA/NVSentinel: state of a faulty node, and the conditions of its monitors (DCGM, kernel log).
    FaultIndicator(
        "label",
        "dgxc.nvidia.com/nvsentinel-state",
        ("quarantined", "draining", "drain-succeeded", "drain-failed", "remediating", "remediation-failed"),
    ),
    FaultIndicator("condition", "Gpu*Watch", ("True",)),
    FaultIndicator("condition", "SysLogs*", ("True",)),
    # kubernetes/node-problem-detector.
    *(
        FaultIndicator("condition", name, ("True",))
        for name in (
            *("KernelDeadlock", "ReadonlyFilesystem", "CorruptDockerOverlay2", "FrequentUnregisterNetDevice"),
            *("FrequentKubeletRestart", "FrequentContainerdRestart", "FrequentDockerRestart"),
            *("KubeletUnhealthy", "ContainerRuntimeUnhealthy"),
        )
    ),
    # aws/eks-node-monitoring-agent.
    *(
        FaultIndicator("condition", name, ("False",))
        for name in (
            *("AcceleratedHardwareReady", "ContainerRuntimeReady", "KernelReady"),
            *("NetworkingReady", "StorageReady"),
        )
    ),
)
"""Indicators of a faulty node; a site adds its own (operator.faultIndicators of the chart)."""
MESSAGE_LENGTH = 200
"""Characters of a condition's message that are kept."""


@dataclass(frozen=True, slots=True)
class NodeFault:
    """A faulty node."""

    causes: tuple[str, ...]
    """Labels, taints and conditions that report the fault."""
    closed: bool
    """Whether the node takes no new pods: it is cordoned, or has a taint of `FAULT_INDICATORS`."""


def parse_indicators(values: Any) -> tuple[FaultIndicator, ...]:
    """Return the indicators of plain data: entries `{kind, name, values}`. Raises ValueError."""
    if not isinstance(values, list) or not all(isinstance(entry, dict) for entry in values):
        raise ValueError("must be a list of {kind, name, values}")
    for entry in values:
        texts = entry.get("values")
        complete = entry.keys() == {"kind", "name", "values"} and isinstance(entry["name"], str) and entry["name"]
        if not complete or entry["kind"] not in ("label", "taint", "condition") or not isinstance(texts, list):
            raise ValueError(f"{entry} must have kind (label, taint or condition), name, and values (a list)")
    return tuple(FaultIndicator(entry["kind"], entry["name"], tuple(map(str, entry["values"]))) for entry in values)


def node_fault(node: Mapping[str, Any], additional: Sequence[FaultIndicator] = ()) -> NodeFault | None:
    """Return the fault of a node; None if nothing reports a fault. `additional`: indicators of the site."""
    causes, closed = list[str](), bool((node.get("spec") or {}).get("unschedulable"))
    for kind, name, value, text in _reports(node):
        if any(
            indicator.kind == kind and fnmatchcase(name, indicator.name) and value in indicator.values
            for indicator in (*FAULT_INDICATORS, *additional)
        ):
            causes.append(f"{kind} {text}")
            closed = closed or kind == "taint"
    return NodeFault(tuple(sorted(causes)), closed) if causes else None


def unreported_since(node: Mapping[str, Any]) -> str | None:
    """Return since when a node does not report; None while its kubelet reports, also that it is not ready."""
    for condition in (node.get("status") or {}).get("conditions") or ():
        if condition["type"] == "Ready" and condition["status"] == "Unknown":
            since: str | None = condition.get("lastTransitionTime")
            return since
    return None


def _reports(node: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """Yield (kind, name, value, text) of every label, taint and condition."""
    for name, value in (node["metadata"].get("labels") or {}).items():
        yield "label", name, value, f"{name}={value}"
    for taint in (node.get("spec") or {}).get("taints") or ():
        yield "taint", taint["key"], taint["effect"], f"{taint['key']}:{taint['effect']}"
    for condition in (node.get("status") or {}).get("conditions") or ():
        message = str(condition.get("message") or condition.get("reason") or "")[:MESSAGE_LENGTH]
        yield (
            "condition",
            condition["type"],
            condition["status"],
            f"{condition['type']} ({message})" if message else condition["type"],
        )
