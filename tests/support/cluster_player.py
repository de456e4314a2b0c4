"""Controllers, scheduler and kubelets of a cluster, played on a real API server; for bench/ and tests.

`ClusterPlayer` watches batch Jobs, Deployments and StatefulSets, creates their pods as Running and Ready, keeps the
status of the owners, and deletes the pods of deleted Jobs. Preparations complete immediately. No container runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

from kubernetes.aio.client.exceptions import ApiException

from rstar2_operator import names
from rstar2_operator.client import UNREACHABLE, KubeClient
from rstar2_operator.observed import condition, is_true, timestamp

Body = dict[str, Any]
OWNERS = ("Job", "Deployment", "StatefulSet")
WRITERS = 8
"""Requests of the player at the same time."""
READY = {"type": "Ready", "status": "True"}
SCHEDULED = {"type": "PodScheduled", "status": "True"}


class ClusterPlayer:
    """Controllers and kubelets of all jobs in one namespace."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self._owners: asyncio.Queue[tuple[str, Body]] = asyncio.Queue()
        self._played: set[tuple[str, int]] = set()
        self.pods: dict[str, list[Body]] = {}
        """Name of the owner -> its pods."""
        self.starts: dict[str, Body] = {}
        """Name of an owner -> status in which its pods start, instead of running."""
        self.jobs: dict[str, Body] = {}
        """Batch Jobs by name."""
        self.failed: dict[str, float] = {}
        """Name of a failed batch Job -> monotonic time at which its watch delivered the failure."""
        self.conditions: dict[str, list[tuple[float, Body]]] = {}
        """Name of an AgenticRLJob -> (monotonic time, status) of every change that its watch delivered."""

    async def run(self) -> None:
        """Play until cancelled."""
        watches = [self._watch(kind) for kind in (*OWNERS, "AgenticRLJob")]
        await asyncio.gather(*watches, *(self._work() for _ in range(WRITERS)))

    async def _watch(self, kind: str) -> None:
        while True:
            with contextlib.suppress(ApiException, *UNREACHABLE):
                version = ""
                async for page in self._client.pages(kind, self._namespace, selectors={}):
                    version = page["metadata"]["resourceVersion"]
                    for body in page["items"]:
                        self._record(kind, body)
                async for change, body in self._client.watch(kind, self._namespace, selectors={}, version=version):
                    if change in ("ADDED", "MODIFIED"):
                        self._record(kind, body)
                    elif change == "DELETED" and kind in OWNERS:
                        await self._delete_pods(body["metadata"]["name"])
            await asyncio.sleep(0.1)

    def _record(self, kind: str, body: Body) -> None:
        if kind == "AgenticRLJob":
            row = time.monotonic(), body.get("status") or {}
            self.conditions.setdefault(body["metadata"]["name"], []).append(row)
            return
        if kind == "Job" and is_true(body, "Failed"):
            self.failed.setdefault(body["metadata"]["name"], time.monotonic())
        self._owners.put_nowait((kind, body))

    async def _work(self) -> None:
        while True:
            kind, owner = await self._owners.get()
            played = owner["metadata"]["uid"], owner["metadata"].get("generation", 0)
            if played in self._played:
                continue
            self._played.add(played)
            if kind == "Job":
                self.jobs[owner["metadata"]["name"]] = owner
            prepares = kind == "Job" and names.STAGE_LABEL not in owner["metadata"]["labels"]
            if prepares and owner["metadata"]["name"] not in self.starts:
                await self.finish(owner, "Complete")
            else:
                await self._create_pods(kind, owner)

    async def _create_pods(self, kind: str, owner: Body) -> None:
        meta, spec = owner["metadata"], owner["spec"]
        count = spec["completions"] if kind == "Job" else spec["replicas"]
        if count == 0:
            await self._delete_pods(meta["name"])
        pods = self.pods.setdefault(meta["name"], [])
        for number in range(len(pods), count):
            template = spec["template"]
            metadata = {
                "name": f"{meta['name']}-{number}",
                "namespace": self._namespace,
                "labels": template["metadata"]["labels"],
                "ownerReferences": [
                    {
                        "apiVersion": "batch/v1" if kind == "Job" else "apps/v1",
                        "kind": kind,
                        "name": meta["name"],
                        "uid": meta["uid"],
                        "controller": True,
                    }
                ],
            }
            if kind == "Job":
                metadata["labels"] = {**metadata["labels"], names.BATCH_JOB_LABEL: meta["name"]}
            body: Body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
            start = self.starts.get(meta["name"], {})
            claims = [
                {"name": each["metadata"]["name"], "emptyDir": {}} for each in spec.get("volumeClaimTemplates", ())
            ]
            volumes = [*template["spec"]["volumes"], *claims]
            node = {} if "Unschedulable" in str(start) else {"nodeName": self.node_of(meta["name"], number)}
            body["spec"] = {**template["spec"], **node, "volumes": volumes}
            created = await self._client.create(body)
            pods.append(await self.set_status("Pod", created, start or running(created)))
        ready = 0 if meta["name"] in self.starts else count
        status = {"active": count, "ready": count} if kind == "Job" else {"replicas": count, "readyReplicas": ready}
        await self.set_status(kind, owner, status)

    async def _delete_pods(self, owner: str) -> None:
        for pod in self.pods.pop(owner, []):
            meta = pod["metadata"]
            with contextlib.suppress(ApiException):
                await self._client.delete("Pod", self._namespace, meta["name"], uid=meta["uid"], force=True)

    def node_of(self, owner: str, number: int) -> str:
        """Return the node of a pod."""
        return f"node-{number}"

    async def set_status(self, kind: str, body: Body, status: Body) -> Body:
        """Replace fields of the status of an object."""
        meta = {"name": body["metadata"]["name"], "namespace": self._namespace}
        return await self._client.apply(
            {"apiVersion": _version(kind), "kind": kind, "metadata": meta, "status": status}, subresource="status"
        )

    async def finish(self, job: Body, kind: str) -> None:
        """Finish a batch Job: `kind` is Complete or Failed."""
        now = timestamp(time.time())
        before = "SuccessCriteriaMet" if kind == "Complete" else "FailureTarget"
        conditions = [
            {"type": each, "status": "True", "lastTransitionTime": now, "lastProbeTime": now, "reason": "Played"}
            for each in (before, kind)
        ]
        count = job["spec"].get("completions", 1)
        status: Body = {"startTime": now, "conditions": conditions, "uncountedTerminatedPods": {}}
        if kind == "Complete":
            status |= {"completionTime": now, "succeeded": count}
        else:
            status |= {"failed": count, "active": 0}
        await self.set_status("Job", job, status)

    async def fail_attempt(self, job: Body) -> None:
        """Let all pods of an attempt's Job fail, and then the Job."""
        now = timestamp(time.time())
        for pod in self.pods[job["metadata"]["name"]]:
            ended = {"exitCode": 1, "reason": "Error", "finishedAt": now}
            container = {**pod["status"]["containerStatuses"][0], "ready": False, "state": {"terminated": ended}}
            conditions = [{**READY, "status": "False"}, SCHEDULED]
            status = {"phase": "Failed", "conditions": conditions, "containerStatuses": [container]}
            await self.set_status("Pod", pod, status)
        await self.finish(job, "Failed")

    def trains(self, name: str) -> bool:
        """Whether an AgenticRLJob runs its stage."""
        statuses = self.conditions.get(name)
        return statuses is not None and statuses[-1][1].get("phase") == "Running"

    def failed_at(self, name: str, since: float) -> float | None:
        """Return when the failure of an attempt was in the conditions of its job; None if it is not yet."""
        for when, status in self.conditions.get(name, ()):
            training = condition({"status": status}, "Training")
            backs_off = training is not None and training["reason"] == "BackOff"
            if when >= since and (backs_off or status.get("restarts")):
                return when
        return None


def running(pod: Body) -> Body:
    """Return the status of a running pod."""
    container = {
        "name": pod["spec"]["containers"][0]["name"],
        "image": "image",
        "imageID": "image",
        "ready": True,
        "restartCount": 0,
        "state": {"running": {"startedAt": timestamp(time.time())}},
    }
    return {"phase": "Running", "conditions": [READY, SCHEDULED], "containerStatuses": [container]}


def _version(kind: str) -> str:
    return {"Pod": "v1", "Node": "v1", "Job": "batch/v1"}.get(kind, "apps/v1")
