"""Scheduler, kubelets and nodes with GPUs, in fake time, on a real API server; for bench/week_cluster.py."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from kubernetes.aio.client.exceptions import ApiException

from bench.week_clock import WeekClient
from rstar2_operator import names
from rstar2_operator.observed import labels, timestamp

Body = dict[str, Any]
Key = tuple[str, str]
GPU = "amd.com/gpu"
GPUS = 8
"""GPUs of a node."""
INDEX = "batch.kubernetes.io/job-completion-index"
GONE = (403, 404, 409)
"""Statuses of requests about deleted objects."""
GRACE_SECONDS = 20.0
MANAGER = "kubelet"
VERSIONS = {"Pod": "v1", "Node": "v1", "Job": "batch/v1", "ConfigMap": "v1"}


@dataclass(eq=False)
class Node:
    """A node with its free GPUs. One that does not answer ends no pod."""

    name: str
    free: int = GPUS
    answers: bool = True


@dataclass(eq=False)
class Pod:
    """A pod of the cluster."""

    body: Body
    gpus: int
    node: Node | None = None
    terminating: bool = False
    gone: bool = False

    @property
    def key(self) -> Key:
        """Namespace and name of its AgenticRLJob."""
        return self.body["metadata"]["namespace"], labels(self.body)[names.JOB_LABEL]


class PlayedPods:
    """The pods and nodes."""

    def __init__(self, client: WeekClient, nodes: int) -> None:
        self._client = client
        self.nodes = [Node(f"node-{number}") for number in range(nodes)]
        self.pods: dict[str, Pod] = {}
        """UID -> pod."""
        self.errors: list[str] = []
        """Errors of the player itself: with any, the result is worthless."""
        self._of_owner: dict[str, list[Pod]] = {}
        self._freed = asyncio.Event()
        self._background: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task in the background. Objects of deleted jobs and namespaces are gone, so their requests fail."""

        async def run() -> None:
            try:
                await work
            except ApiException as error:
                if error.status not in GONE:
                    self.errors.append(f"{error.status} {error.body}")

        task = asyncio.create_task(run())
        self._background.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.errors.append("".join(traceback.format_exception(error)))

    def record_pod(self, uid: str, body: Body, *, gone: bool) -> None:
        """Record an event of a pod."""
        pod = self.pods.get(uid)
        if pod is None:
            return
        pod.body = body
        if gone:
            pod.gone = True
            del self.pods[uid]
            self._free(pod)
        elif body["metadata"].get("deletionTimestamp") and not pod.terminating:
            self.spawn(self.terminate(pod))

    def _free(self, pod: Pod) -> None:
        if pod.node is not None:
            pod.node.free += pod.gpus
            pod.node = None
            self.wake_scheduler()

    def wake_scheduler(self) -> None:
        """Let pending pods try again."""
        self._freed.set()
        self._freed = asyncio.Event()

    async def create_pod(self, owner: Body, number: int) -> Pod:
        """Create a pod of an owner, as its controller does."""
        template, meta = owner["spec"]["template"], owner["metadata"]
        reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": meta["name"], "uid": meta["uid"],
                     "controller": True}  # fmt: skip
        own = dict(template["metadata"]["labels"])
        if owner["kind"] == "Job":
            own |= {names.BATCH_JOB_LABEL: meta["name"], INDEX: str(number)}
        claims = [
            {"name": each["metadata"]["name"], "emptyDir": {}} for each in owner["spec"].get("volumeClaimTemplates", ())
        ]
        annotations = template["metadata"].get("annotations", {})
        metadata = {"generateName": f"{meta['name']}-", "namespace": meta["namespace"], "labels": own,
                    "ownerReferences": [reference], "annotations": annotations}  # fmt: skip
        spec = {**template["spec"], "volumes": [*template["spec"]["volumes"], *claims]}
        spec.pop("priorityClassName", None)
        body = await self._client.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        requests = spec["containers"][0].get("resources", {}).get("requests", {})
        pod = self.pods[body["metadata"]["uid"]] = Pod(body, int(requests.get(GPU, 0)))
        self._of_owner.setdefault(meta["uid"], []).append(pod)
        return pod

    async def schedule(self, pod: Pod) -> None:
        """Wait for a node with enough GPUs, and bind the pod to it."""
        reported = False
        while (node := self._find_node(pod)) is None:
            if not reported:
                reported = True
                message = f"0/{len(self.nodes)} nodes are available: insufficient {GPU}"
                await self.set_status("Pod", pod.body, {"phase": "Pending", "conditions": [
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message,
                     "lastTransitionTime": timestamp(time.time())}]})  # fmt: skip
            await self._freed.wait()
        pod.node = node
        node.free -= pod.gpus
        meta = pod.body["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/binding"
        target = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": meta["name"]}}
        try:
            await self._client._call("POST", path, {**target, "target": {"kind": "Node", "name": node.name}}, [])
        except BaseException:
            self._free(pod)
            raise
        await self.set_status("Pod", pod.body, {"phase": "Pending", "conditions": [scheduled()]})

    def _find_node(self, pod: Pod) -> Node | None:
        nodes = [node for node in self.nodes if node.answers and node.free >= pod.gpus]
        return min(nodes, key=lambda node: node.free) if nodes else None

    async def run_pod(self, pod: Pod, *, extra: tuple[Body, ...] = (), gated: bool = False) -> None:
        """Set a pod running. `extra`: statuses of injected containers; `gated`: a readiness gate stays closed."""
        own = [running(each["name"]) for each in pod.body["spec"]["containers"]]
        state = {**ready(False), "reason": "ReadinessGatesNotReady"} if gated else ready(True)
        await self.set_status("Pod", pod.body, {"phase": "Running", "conditions": [scheduled(), state],
                                                "containerStatuses": [*extra, *own]})  # fmt: skip

    async def exit_pod(self, pod: Pod, code: int, *, extra: tuple[Body, ...] = ()) -> None:
        """End the own containers of a pod; with an injected container the pod continues."""
        now = timestamp(time.time())
        ended = {"terminated": {"exitCode": code, "finishedAt": now, "reason": "Error" if code else "Completed"}}
        own = [{**running(each["name"]), "ready": False, "state": ended} for each in pod.body["spec"]["containers"]]
        phase = "Running" if extra else ("Failed" if code else "Succeeded")
        await self.set_status("Pod", pod.body, {"phase": phase, "containerStatuses": [*extra, *own],
                                                "conditions": [scheduled(), ready(False)]})  # fmt: skip
        if not extra:
            self._free(pod)

    async def terminate(self, pod: Pod) -> None:
        """Delete a pod: its node ends it after the grace period, as soon as the node answers."""
        if pod.terminating or pod.gone:
            return
        pod.terminating = True
        meta = pod.body["metadata"]
        where = "Pod", meta["namespace"], meta["name"]
        if not meta.get("deletionTimestamp"):
            await self._client.delete(*where, uid=meta["uid"])
        await asyncio.sleep(GRACE_SECONDS if pod.node is not None else 1)
        while pod.node is not None and not pod.node.answers:
            await self._freed.wait()
        if not pod.gone:
            await self._client.delete(*where, uid=meta["uid"], force=True)

    async def set_status(self, kind: str, body: Body, status: Body) -> None:
        """Replace the played fields of a status."""
        meta = {"name": body["metadata"]["name"], "namespace": body["metadata"].get("namespace", "")}
        wanted = {"apiVersion": VERSIONS.get(kind, "apps/v1"), "kind": kind, "metadata": meta, "status": status}
        await self._client.apply(wanted, subresource="status", manager=MANAGER)

    async def create_nodes(self) -> None:
        """Create the nodes."""
        for node in self.nodes:
            path = "/api/v1/nodes"
            await self._client._call(
                "POST", path, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node.name}}, []
            )
            await self.write_node(node, "True")

    async def write_node(self, node: Node, value: str) -> None:
        """Write the condition Ready of a node."""
        own = {"type": "Ready", "status": value, "reason": "Played", "lastTransitionTime": timestamp(time.time())}
        await self.set_status("Node", {"metadata": {"name": node.name}}, {"conditions": [own]})


def scheduled() -> Body:
    """Return the condition of a pod on a node."""
    return {"type": "PodScheduled", "status": "True", "lastTransitionTime": timestamp(time.time())}


def ready(value: bool) -> Body:
    """Return the condition Ready."""
    return {"type": "Ready", "status": str(value), "lastTransitionTime": timestamp(time.time())}


def running(name: str) -> Body:
    """Return the status of a running container."""
    return {"name": name, "image": "image", "imageID": "image", "ready": True, "restartCount": 0,
            "state": {"running": {"startedAt": timestamp(time.time())}}}  # fmt: skip
