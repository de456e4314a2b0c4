"""The failure modes of a job: how each fault shows in a cluster, and what ends it. bench/failure_modes.py causes them.

The pods are played (cluster_player.py), so each fault is what kubelet, scheduler, controllers, node tools or the
orchestrator would write into the API server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from rstar2_operator import names
from rstar2_operator.client import KubeClient
from rstar2_operator.observed import condition, timestamp
from rstar2_train.api.contracts import PROGRESS_KEY, Outcome, Progress, outcome_key
from tests.support.cluster_player import READY, SCHEDULED, Body, ClusterPlayer, running
from tests.support.kube_apiserver import KubeApiserver

NAMESPACE = "default"
CORE = f"/api/v1/namespaces/{NAMESPACE}"
STAGE = "g0"


@dataclass
class Scene:
    """The job of one fault, and the cluster that it runs on."""

    name: str
    player: ClusterPlayer
    client: KubeClient
    api: KubeApiserver

    def owner(self, role: str) -> str:
        """Return the name of the object that owns the pods of a role."""
        jobs = {"trainer": names.attempt(self.name, STAGE, 1), "prepare": names.prepare(self.name)}
        return jobs.get(role, f"{self.name}-{role}")

    def pod(self, role: str) -> Body:
        """Return the first pod of a role."""
        return self.player.pods[self.owner(role)][0]

    async def set_pod(self, role: str, status: Body) -> None:
        """Replace the status of the pod of a role."""
        await self.player.set_status("Pod", self.pod(role), status)

    async def request(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request that the operator's client has no method for."""
        return await asyncio.to_thread(self.api.request, method, path, body)

    def status(self) -> Body:
        """Return the newest status of the job that its watch delivered."""
        rows = self.player.conditions.get(self.name)
        return rows[-1][1] if rows else {}

    async def train(self, attempt: int) -> None:
        """Act as the orchestrator of an attempt, once its pods run: report progress."""
        path = f"{CORE}/configmaps/{names.progress(self.name)}"
        config = await self.request("GET", path)
        progress = Progress(stage=STAGE, attempt=attempt, phase="Training", step=1, updated_at=time.time())
        config["data"] = {**config.get("data", {}), PROGRESS_KEY: progress.model_dump_json(exclude_none=True)}
        await self.request("PUT", path, config)

    def trains(self, attempt: int) -> bool:
        """Whether the pods of an attempt run."""
        pods = self.player.pods.get(names.attempt(self.name, STAGE, attempt))
        return bool(pods) and names.attempt(self.name, STAGE, attempt) not in self.player.starts

    def ready(self, attempt: int = 1) -> bool:
        """Whether the job runs as requested, in this attempt or a later one."""
        status = self.status()
        is_ready = condition({"status": status}, "Ready")
        attempts = [stage.get("attempts", 0) for stage in status.get("stages", ())]
        return (
            status.get("phase") == "Running"
            and is_ready is not None
            and is_ready["status"] == "True"
            and max(attempts, default=0) >= attempt
        )


Act = Callable[[Scene], Awaitable[None]]


@dataclass(frozen=True)
class FailureMode:
    """One fault of one component."""

    component: str
    fault: str
    reason: str
    """Reason that a condition of the job must name, itself or in its message."""
    cause: Act
    """Cause the fault in the running job."""
    cure: Act | None = None
    """End the fault as kubelet, scheduler or a person would; None: the operator recovers alone, by a new attempt."""
    recovery: str = ""
    """How the job recovers."""
    start: Body | None = None
    """Status in which the component's pods start: the fault exists from the start of the job."""
    spec: Body = field(default_factory=dict)
    final: bool = False
    """Whether the job must fail."""


# --- Pods that cannot start


def _pending(*, waiting: str = "", message: str = "", scheduled: bool = True) -> Body:
    conditions = [SCHEDULED if scheduled else {**SCHEDULED, "status": "False", "reason": "Unschedulable",
                                               "message": message}]  # fmt: skip
    status: Body = {"phase": "Pending", "conditions": conditions}
    if waiting:
        container = {"name": "main", "image": "image", "imageID": "", "ready": False, "restartCount": 0}
        state = {"waiting": {"reason": waiting, "message": message}}
        status["containerStatuses"] = [{**container, "state": state}]
    return status


def _starts(component: str, fault: str, reason: str, status: Body, recovery: str) -> FailureMode:
    async def nothing(scene: Scene) -> None:
        """The pods start with the fault."""

    return FailureMode(component, fault, reason, nothing, _runs(component), recovery, start=status)


def _event(component: str, fault: str, reason: str, message: str, recovery: str) -> FailureMode:
    async def cause(scene: Scene) -> None:
        await _warn(scene, "Pod", "v1", scene.pod(component), reason, message)

    return FailureMode(component, fault, reason, cause, _runs(component), recovery, start=_pending())


def _runs(component: str) -> Act:
    """Return the act of the kubelet when the fault of a component is gone."""
    return lambda scene: _run(scene, component)


async def _run(scene: Scene, component: str) -> None:
    """Let the pod of a component run, as the kubelet does when the fault is gone."""
    owner = scene.owner(component)
    scene.player.starts.pop(owner, None)
    pod = scene.pod(component)
    if not pod["spec"].get("nodeName"):
        target = {"apiVersion": "v1", "kind": "Node", "name": scene.player.node_of(owner, 0)}
        binding = {"metadata": {"name": pod["metadata"]["name"]}, "target": target}
        path = f"{CORE}/pods/{pod['metadata']['name']}/binding"
        await scene.request("POST", path, binding)
    if component == "prepare":
        await scene.set_pod(component, {"phase": "Succeeded", "conditions": [SCHEDULED]})
        await scene.player.finish(scene.player.jobs[owner], "Complete")
        return
    await scene.set_pod(component, running(pod))
    await _set_ready(scene, component, 1)


async def _set_ready(scene: Scene, component: str, count: int) -> None:
    """Set the number of ready pods in the status of a component's Deployment or StatefulSet."""
    kind = "StatefulSet" if component == "redis" else "Deployment"
    if component == "trainer":
        return
    owner = await scene.client.read(kind, NAMESPACE, scene.owner(component))
    await scene.player.set_status(kind, owner, {"replicas": 1, "readyReplicas": count})


async def _warn(scene: Scene, kind: str, version: str, about: Body, reason: str, message: str) -> None:
    now, meta = timestamp(time.time()), about["metadata"]
    body = {
        "metadata": {"generateName": "failure-mode-", "namespace": NAMESPACE},
        "involvedObject": {"apiVersion": version, "kind": kind, "name": meta["name"], "namespace": NAMESPACE,
                           "uid": meta["uid"]},
        "type": "Warning",
        "reason": reason,
        "message": message,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
        "source": {"component": "played"},
    }  # fmt: skip
    await scene.request("POST", f"{CORE}/events", body)


# --- Pods that fail while they run


def _container(pod: Body, **changes: Any) -> Body:
    return {**running(pod)["containerStatuses"][0], "ready": False, **changes}


def _crashes(component: str, fault: str, reason: str, code: int, ended: str) -> FailureMode:
    async def cause(scene: Scene) -> None:
        now = timestamp(time.time())
        last = {"terminated": {"exitCode": code, "reason": ended, "finishedAt": now}}
        state = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting failed container"}}
        container = _container(scene.pod(component), restartCount=3, state=state, lastState=last)
        status = {"phase": "Running", "conditions": [{**READY, "status": "False"}, SCHEDULED]}
        await scene.set_pod(component, {**status, "containerStatuses": [container]})
        await _set_ready(scene, component, 0)

    return FailureMode(component, fault, reason, cause, _runs(component), "the kubelet restarts the container")


def _node_silent(component: str) -> FailureMode:
    fault = "its node stops reporting"

    async def report_again(scene: Scene) -> None:
        await scene.request("DELETE", f"/api/v1/nodes/{scene.pod(component)['spec']['nodeName']}")
        await _run(scene, component)

    return FailureMode(component, fault, "NodeNotReady", _silence(component), report_again, "the node reports again")


def _silence(component: str) -> Act:
    """Return the act of the node controller when the node of a component stops reporting."""

    async def act(scene: Scene) -> None:
        status, now = running(scene.pod(component)), timestamp(time.time())
        unknown = {"type": "Ready", "status": "Unknown", "lastTransitionTime": now, "lastHeartbeatTime": now}
        node = {"metadata": {"name": scene.pod(component)["spec"]["nodeName"]}, "status": {"conditions": [unknown]}}
        await scene.request("POST", "/api/v1/nodes", node)
        silent = {**READY, "status": "False", "lastTransitionTime": now}
        await scene.set_pod(component, {**status, "conditions": [silent, SCHEDULED]})
        await _set_ready(scene, component, 0)

    return act


async def _break_node(scene: Scene) -> None:
    node = scene.pod("trainer")["spec"]["nodeName"]
    taint = {"key": "amd-gpu-unhealthy", "effect": "NoSchedule"}
    await scene.request("POST", "/api/v1/nodes", {"metadata": {"name": node}, "spec": {"taints": [taint]}})


def _attempt(
    fault: str,
    reason: str,
    code: int,
    *,
    pod: Callable[[Body], Body] | None = None,
    outcome: str = "",
    recovery: str = "new attempt after the backoff",
    final: bool = False,
) -> FailureMode:
    """The pods of an attempt end with a code; `pod`: more of the pod's status; `outcome`: the orchestrator's reason."""

    async def cause(scene: Scene) -> None:
        if outcome:
            await _report(scene, outcome, final=final)
        body = scene.pod("trainer")
        terminated = {"exitCode": code, "reason": "Error", "finishedAt": timestamp(time.time())}
        container = _container(body, state={"terminated": terminated})
        status = {"phase": "Failed", "conditions": [{**READY, "status": "False"}, SCHEDULED]}
        status["containerStatuses"] = [container]
        await scene.set_pod("trainer", {**status, **(pod(status) if pod else {})})
        await scene.player.finish(scene.player.jobs[scene.owner("trainer")], "Failed")

    return FailureMode("trainer", fault, reason, cause, None, recovery, final=final)


async def _report(scene: Scene, reason: Any, *, final: bool) -> None:
    """Write the outcome of the attempt, as its orchestrator does."""
    kind: Any = "suspended" if reason == "Suspended" else "failed"
    outcome = Outcome(stage=STAGE, attempt=1, outcome=kind, reason=reason, message="as reported", retryable=not final)
    path = f"{CORE}/configmaps/{names.progress(scene.name)}"
    config = await scene.request("GET", path)
    config["data"] = {**config.get("data", {}), outcome_key(STAGE): outcome.model_dump_json(exclude_none=True)}
    await scene.request("PUT", path, config)


# --- Objects


async def _reject_pods(scene: Scene) -> None:
    owner = await scene.client.read("Deployment", NAMESPACE, scene.owner("rollout"))
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "exceeded quota: gpus"}
    await scene.player.set_status("Deployment", owner, {"replicas": 0, "readyReplicas": 0, "conditions": [failure]})


async def _delete_secret(scene: Scene) -> None:
    secret = names.secrets(scene.name)
    await scene.request("DELETE", f"{CORE}/secrets/{secret}")
    await scene.set_pod(
        "rollout", _pending(waiting="CreateContainerConfigError", message=f'secret "{secret}" not found')
    )


async def _garble_progress(scene: Scene) -> None:
    path = f"{CORE}/configmaps/{names.progress(scene.name)}"
    config = await scene.request("GET", path)
    config["data"] = {**config.get("data", {}), PROGRESS_KEY: "{"}
    await scene.request("PUT", path, config)


# --- The table

_UNPULLED = _pending(waiting="ImagePullBackOff", message="Back-off pulling image")
_ROLES = ("rollout", "judge", "executor", "redis")
_DISRUPTED = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}

MODES: tuple[FailureMode, ...] = (
    *(
        _starts(role, "its image cannot be pulled", "ImagePullBackOff", _UNPULLED, "the image is pulled")
        for role in ("prepare", "trainer", *_ROLES)
    ),
    *(
        _starts(
            role,
            "no node has capacity",
            "Unschedulable",
            _pending(scheduled=False, message="0/8 nodes are available: 8 Insufficient amd.com/gpu."),
            "a node has capacity",
        )
        for role in ("trainer", *_ROLES)
    ),
    _starts("trainer", "its image has a wrong name", "InvalidImageName", _pending(waiting="InvalidImageName"), "the "
            "name is corrected"),
    _starts("judge", "its image is not on the node", "ErrImageNeverPull", _pending(waiting="ErrImageNeverPull"), "the "
            "image is loaded"),
    _starts("rollout", "a ConfigMap is missing", "CreateContainerConfigError",
            _pending(waiting="CreateContainerConfigError"), "the ConfigMap exists"),
    _event("executor", "its node has no gVisor", "FailedCreatePodSandBox", "no runtime for \"runsc\" is configured",
           "gVisor is installed"),
    _event("trainer", "its volume cannot be mounted", "FailedMount", "MountVolume.SetUp failed", "the volume mounts"),
    _event("redis", "its volume cannot be attached", "FailedAttachVolume", "Multi-Attach error", "the volume attaches"),
    *(_crashes(role, "crashes again and again", "CrashLoopBackOff", 1, "Error") for role in _ROLES),
    *(_crashes(role, "reaches its memory limit", "OOMKilled", 137, "OOMKilled") for role in _ROLES),
    *(_node_silent(role) for role in ("trainer", *_ROLES)),
    FailureMode("trainer", "its node stops reporting, with nodeLoss.afterSeconds: 30", "NodeLost", _silence("trainer"),
                recovery="new attempt on another node", spec={"nodeLoss": {"afterSeconds": 30}}),
    FailureMode("trainer", "its node is tainted amd-gpu-unhealthy, with nodeLoss.afterSeconds: 30", "NodeUnhealthy",
                _break_node, recovery="new attempt on another node", spec={"nodeLoss": {"afterSeconds": 30}}),
    _attempt("crashes", "Crashed", 1),
    _attempt("reaches its memory limit", "OOMKilled", 137, pod=lambda status: {"containerStatuses": [
        {**each, "state": {"terminated": {**each["state"]["terminated"], "reason": "OOMKilled"}}}
        for each in status["containerStatuses"]]}),
    _attempt("is evicted by a drain", "Disrupted", 143, pod=lambda status: {"conditions": [*status["conditions"],
             _DISRUPTED]}),
    _attempt("is evicted, because its node lacks memory", "Evicted", 137, pod=lambda _: {"reason": "Evicted",
             "message": "The node was low on resource: memory."}),
    _attempt("loses a pod", "PodLost", 75, outcome="Suspended"),
    _attempt("finds the storage full", "StorageFull", 78, outcome="StorageFull", recovery="none: the job fails",
             final=True),
    _attempt("finds no engine", "EngineUnavailable", 76, outcome="EngineUnavailable"),
    _attempt("finds no judge", "JudgeUnavailable", 76, outcome="JudgeUnavailable"),
    _attempt("has a bug", "Defect", 70, outcome="Defect"),
    _attempt("finds bad data", "BadData", 78, outcome="BadData", recovery="none: the job fails", final=True),
    FailureMode("rollout", "a quota rejects its pods", "ReplicaFailure", _reject_pods, _runs("rollout"),
                "the quota has capacity"),
    FailureMode("Secret", "is deleted, and a pod is recreated", "SharedSecretMissing", _delete_secret,
                recovery="new Secret, new attempt"),
    FailureMode("ConfigMap", "the progress is changed by hand", "InvalidProgressReport", _garble_progress,
                lambda scene: scene.train(1), "the orchestrator writes it again"),
)  # fmt: skip
"""Every failure mode."""
