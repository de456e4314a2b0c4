"""Signs of faulty nodes, and their way through the cache to the jobs with pods on the node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rstar2_operator import informer, names
from rstar2_operator.cache import NODE, WatchCache
from rstar2_operator.decide.diagnostics import diagnoses
from rstar2_operator.node_health import node_fault, unreported_since
from rstar2_operator.observed import lost_since, timestamp
from rstar2_operator.settings import OperatorSettings
from rstar2_operator.workqueue import WorkQueue
from tests.support.fake_kube_api import api_error

AMD = "metricsexporter.amd.com.gpu.3.state"
NVIDIA = "dgxc.nvidia.com/nvsentinel-state"


def node(
    name: str = "gpu-7",
    *,
    labels: dict[str, str] | None = None,
    taints: tuple[tuple[str, str], ...] = (),
    conditions: tuple[tuple[str, str], ...] = (),
    cordoned: bool = False,
) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": labels or {}},
        "spec": {"unschedulable": cordoned, "taints": [{"key": key, "effect": effect} for key, effect in taints]},
        "status": {"conditions": [{"type": kind, "status": status} for kind, status in conditions]},
    }


@pytest.mark.parametrize(
    ("signs", "cause"),
    [
        ({"labels": {AMD: "unhealthy"}}, f"label {AMD}=unhealthy"),
        ({"labels": {NVIDIA: "quarantined"}}, f"label {NVIDIA}=quarantined"),
        ({"taints": (("amd-gpu-unhealthy", "NoSchedule"),)}, "taint amd-gpu-unhealthy:NoSchedule"),
        ({"conditions": (("AMDGPUHardwareAssertionHwa", "True"),)}, "condition AMDGPUHardwareAssertionHwa"),
        ({"conditions": (("GpuNvlinkWatch", "True"),)}, "condition GpuNvlinkWatch"),
        ({"conditions": (("ReadonlyFilesystem", "True"),)}, "condition ReadonlyFilesystem"),
    ],
)
def test_trouble_sign_of_a_fault_is_the_cause(signs: dict[str, Any], cause: str) -> None:
    """Each tool's sign is found, and named in the cause."""
    open_node = node_fault(node(**signs))
    assert open_node is not None and open_node.causes == (cause,) and open_node.closed is ("taints" in signs)
    cordoned = node_fault(node(**signs, cordoned=True))
    assert cordoned is not None and cordoned.closed


@pytest.mark.parametrize(
    "signs",
    [
        {"cordoned": True},
        {"labels": {AMD: "healthy", NVIDIA: "remediation-succeeded", "nvidia.com/gpu.count": "8"}},
        {"taints": (("nvidia.com/gpu", "NoSchedule"), ("amd.com/gpu", "NoSchedule"))},
        {"conditions": (("Ready", "True"), ("KernelDeadlock", "False"), ("GpuMemWatch", "Unknown"))},
    ],
)
def test_trouble_healthy_node_has_none(signs: dict[str, Any]) -> None:
    """A cordon alone, the usual taints of GPU nodes, and signs with healthy values are no fault."""
    assert node_fault(node(**signs)) is None


def test_cache_node_fault_reaches_the_jobs_of_its_pods() -> None:
    """A change of a node's health queues the jobs with a pod on the node, and only those see it."""
    cache = WatchCache()
    for job, where in (("a", "gpu-7"), ("b", "gpu-77")):
        meta = {"namespace": "team", "name": job, "uid": job, "resourceVersion": "1"}
        cache.record_job({"kind": "AgenticRLJob", "metadata": meta}, gone=False)
        own = {"name": f"{job}-0", "uid": f"{job}-0", "labels": names.labels(job, "trainer")}
        cache.record_child("Pod", {"metadata": meta | own, "spec": {"nodeName": where}}, gone=False)
    faulty = node(labels={AMD: "unhealthy"})
    assert cache.record_node(faulty, gone=False) == [("team", "a")]
    assert cache.record_node(faulty, gone=False) == []  # a heartbeat
    first, second = cache.observed(("team", "a")), cache.observed(("team", "b"))
    assert first is not None and list(first.node_faults) == ["gpu-7"]
    assert second is not None and second.node_faults == {}
    assert cache.uids(NODE, "") == {"uid-gpu-7"}
    assert cache.record_node(node(), gone=False) == [("team", "a")]
    cache.record_node(faulty, gone=False)
    assert cache.drop(NODE, "uid-gpu-7") is None and cache.uids(NODE, "") == set()


@pytest.mark.parametrize("reason", ["ReadinessGatesNotReady", "ContainersNotReady"])
def test_cache_lost_node_is_that_of_its_condition(reason: str) -> None:
    """With rights on nodes, a pod that is not ready yet is lost with its node, and a readiness gate is no loss."""
    cache = WatchCache()
    meta = {"namespace": "team", "name": "a", "uid": "a", "resourceVersion": "1"}
    cache.record_job({"kind": "AgenticRLJob", "metadata": meta}, gone=False)
    own = {"name": "a-0", "uid": "a-0", "labels": names.labels("a", "trainer")}
    gate = {"type": "Ready", "status": "False", "reason": reason, "lastTransitionTime": timestamp(5)}
    containers = [{"name": "trainer", "ready": True}]
    status = {"phase": "Running", "conditions": [gate], "containerStatuses": containers}
    cache.record_child("Pod", {"metadata": meta | own, "spec": {"nodeName": "gpu-7"}, "status": status}, gone=False)
    observed = cache.observed(("team", "a"))
    assert observed is not None and lost_since(observed.pods[0], observed) is None
    unknown = {"type": "Ready", "status": "Unknown", "lastTransitionTime": timestamp(9)}
    lost = {"metadata": {"name": "gpu-7", "uid": "n"}, "status": {"conditions": [unknown]}}
    assert cache.record_node(lost, gone=False) == [("team", "a")]
    observed = cache.observed(("team", "a"))
    assert observed is not None and lost_since(observed.pods[0], observed) == 9
    assert diagnoses(observed, now=10.0)[0].reason == "NodeNotReady"
    ready = {"metadata": lost["metadata"], "status": {"conditions": [unknown | {"status": "True"}]}}
    assert cache.record_node(ready, gone=False) == [("team", "a")]
    observed = cache.observed(("team", "a"))
    assert observed is not None and lost_since(observed.pods[0], observed) is None


def test_cache_node_whose_kubelet_reports_is_not_lost() -> None:
    """After a restart of the network or the runtime a kubelet reports Ready=False, and still stops pods in order."""
    message = "container runtime network not ready: cni plugin not initialized"
    ready = {"type": "Ready", "status": "False", "message": message, "lastTransitionTime": timestamp(9)}
    body = {"metadata": {"name": "gpu-7"}, "status": {"conditions": [ready]}}
    fault = node_fault(body)
    assert unreported_since(body) is None
    assert fault is not None and fault.causes == (f"condition Ready ({message})",) and not fault.closed


def test_node_health_indicators_of_a_site() -> None:
    """A site adds indicators as JSON; a wrong entry is refused with its value."""
    settings = OperatorSettings.from_env(
        {"RSTAR2_FAULT_INDICATORS": '[{"kind": "label", "name": "site/gpu", "values": ["bad"]}]'}
    )
    body = {"metadata": {"name": "n", "labels": {"site/gpu": "bad"}}}
    assert node_fault(body) is None
    fault = node_fault(body, settings.fault_indicators)
    assert fault is not None and fault.causes == ("label site/gpu=bad",)
    with pytest.raises(ValueError, match=r"RSTAR2_FAULT_INDICATORS.*must have kind"):
        OperatorSettings.from_env({"RSTAR2_FAULT_INDICATORS": '[{"kind": "lable", "name": "a", "values": []}]'})


@pytest.mark.parametrize("kind", ["AcceleratedHardwareReady", "KernelReady"])
def test_node_health_eks_agent(kind: str) -> None:
    """The agent of EKS reports a fault by a condition that is False."""
    conditions = [{"type": kind, "status": "False", "message": "XID 79"}]
    assert node_fault({"metadata": {"name": "n"}, "status": {"conditions": conditions}}) is not None
    conditions[0]["status"] = "True"
    assert node_fault({"metadata": {"name": "n"}, "status": {"conditions": conditions}}) is None


async def test_lost_right_on_nodes_reads_the_pods_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes that are not watched any more seem to report; pods on a lost one would wait for it indefinitely."""
    monkeypatch.setattr(informer, "LONGEST_WAIT", 0.01)
    cache, queue = WatchCache(), WorkQueue[tuple[str, str]]()
    meta = {"namespace": "team", "name": "a", "uid": "a", "resourceVersion": "1"}
    cache.record_job({"kind": "AgenticRLJob", "metadata": meta}, gone=False)
    placed = {"metadata": {**meta, "name": "p", "uid": "p", "labels": names.labels("a", "trainer")}}
    cache.record_child("Pod", {**placed, "spec": {"nodeName": "gpu-7"}}, gone=False)
    cache.record_node(node(), gone=False)

    class Forbidding:
        """An API server without the right to list nodes."""

        async def pages(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
            raise api_error(403, "Forbidden", "nodes is forbidden")
            yield

    client: Any = Forbidding()
    task = asyncio.create_task(informer.Informer(NODE, "", client=client, cache=cache, queue=queue).run())
    async with asyncio.timeout(30):
        assert await queue.take() == ("team", "a")
    task.cancel()
    observed = cache.observed(("team", "a"))
    assert observed is not None and observed.lost_nodes is None
