"""Controllers, garbage collector and orchestrators of a cluster with GPUs, in fake time, on a real API server.

A batch Job is played by one task, which is cancelled when the Job is deleted; its pods then terminate as a kubelet ends
them (bench/week_pods.py). `Faults` (bench/week_faults.py) decides what goes wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from typing import Any

from kubernetes.aio.client.exceptions import ApiException

from bench.week_clock import Delivery, WeekClient
from bench.week_faults import Faults
from bench.week_pods import GRACE_SECONDS, Body, Key, Node, PlayedPods, Pod, ready, running, scheduled
from rstar2_operator import names
from rstar2_operator.client import UNREACHABLE
from rstar2_operator.informer import CHILDREN
from rstar2_operator.observed import is_true, labels, timestamp
from rstar2_train.api.contracts import PROGRESS_KEY, CheckpointRef, ExitCode, Outcome, Progress, outcome_key

OWNERS = frozenset({"Job", "Deployment", "StatefulSet"})
KINDS = OWNERS | {"AgenticRLJob", "Pod"}
"""Kinds that the player watches."""
EVICTION_SECONDS = 300.0
"""Time after which pods of a node that does not answer are marked for deletion."""


@dataclass(eq=False)
class Work:
    """The work that a job has done: the truth that its status is compared with."""

    reports: dict[str, str] = field(default_factory=dict)
    """Data of its progress ConfigMap."""
    steps: dict[str, int] = field(default_factory=dict)
    """Stage -> steps of the last checkpoint."""
    last: float = 0.0
    """Last sign of work: a report, or the creation of an attempt's pods."""


class WeekCluster(PlayedPods):
    """The cluster. `jobs`: the AgenticRLJobs as the watch delivers them."""

    def __init__(self, client: WeekClient, delivery: Delivery, faults: Faults, *, nodes: int) -> None:
        super().__init__(client, nodes)
        self._delivery = delivery
        self._faults = faults
        self.jobs: dict[Key, Body] = {}
        self.work: dict[str, Work] = {}
        """UID of an AgenticRLJob -> its work."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._owners: dict[str, Body] = {}
        self._started: dict[str, str] = {}
        """UID of a batch Job -> its start time."""

    async def watch(self, kind: str) -> None:
        """Deliver the events of a kind until cancelled."""
        version = ""
        while True:
            with contextlib.suppress(ApiException, *UNREACHABLE):
                if not version:
                    async for page in self._client.pages(kind, "", selectors={}):
                        version = page["metadata"]["resourceVersion"]
                    self._delivery.listed("player", kind, version)
                async for change, body in self._client.watch(kind, "", selectors={}, version=version):
                    version = body["metadata"]["resourceVersion"]
                    if change != "BOOKMARK":
                        self._record(kind, body, gone=change == "DELETED")
                        self._delivery.event("player", kind, body, gone=change == "DELETED")
            await asyncio.sleep(0.1)

    def _record(self, kind: str, body: Body, *, gone: bool) -> None:
        meta = body["metadata"]
        uid, key = meta["uid"], (meta["namespace"], meta["name"])
        if kind == "AgenticRLJob":
            if gone:
                self.jobs.pop(key, None)
                self.spawn(self._collect_garbage(key))
            else:
                self.jobs[key] = body
        elif kind == "Pod":
            self.record_pod(uid, body, gone=gone)
        elif gone or meta.get("deletionTimestamp"):
            self._owners.pop(uid, None)
            if (task := self._tasks.pop(uid, None)) is not None:
                task.cancel()
            for pod in self._of_owner.pop(uid, []):
                self.spawn(self.terminate(pod))
        else:
            self._owners[uid] = body
            if kind == "Job" and uid not in self._tasks and not (body.get("status") or {}).get("conditions"):
                self._tasks[uid] = self.spawn(self._play_job(body))
            elif kind != "Job" and (uid not in self._tasks or self._tasks[uid].done()):
                self._tasks[uid] = self.spawn(self._play_replicas(kind, uid))

    # -- controllers -----------------------------------------------------------------------------------------------

    async def _play_replicas(self, kind: str, uid: str) -> None:
        """Keep the pods of a Deployment or StatefulSet as it wants them."""
        while (owner := self._owners.get(uid)) is not None:
            pods = [pod for pod in self._of_owner.get(uid, []) if not pod.terminating and not pod.gone]
            wanted = int(owner["spec"]["replicas"])
            for pod in pods[wanted:]:
                self.spawn(self.terminate(pod))
            for number in range(len(pods), wanted):
                self.spawn(self._start_replica(kind, await self.create_pod(owner, number)))
            await self._write_replicas(kind, owner)
            if len(pods) >= wanted:
                return

    async def _start_replica(self, kind: str, pod: Pod) -> None:
        await self.schedule(pod)
        await asyncio.sleep(self._faults.start_seconds())
        await self.run_pod(pod)
        owner = self._owners.get(pod.body["metadata"]["ownerReferences"][0]["uid"])
        if owner is not None:
            await self._write_replicas(kind, owner)

    async def _write_replicas(self, kind: str, owner: Body) -> None:
        pods = [pod for pod in self._of_owner.get(owner["metadata"]["uid"], []) if not pod.gone]
        count = sum(is_true(pod.body, "Ready") for pod in pods)
        status: Body = {
            "replicas": len(pods),
            "readyReplicas": count,
            "observedGeneration": owner["metadata"]["generation"],
        }
        await self.set_status(kind, owner, status)

    async def _play_job(self, job: Body) -> None:
        """Play a batch Job: its pods, and the orchestrator of an attempt."""
        count = int(job["spec"].get("completions", 1))
        pods = [await self.create_pod(job, number) for number in range(count)]
        self._started[job["metadata"]["uid"]] = timestamp(time.time())
        await self._write_job(job, active=count, ready=0)
        is_attempt = names.STAGE_LABEL in labels(job)
        work = self._work_of(job)
        if work is None:
            return
        if is_attempt:
            work.last = time.time()
        code, ended = await self._run_job(job, pods, work if is_attempt else None)
        await self._finish(job, [pod for pod in pods if pod is not ended], failed=code != 0)

    def _work_of(self, job: Body) -> Work | None:
        owner = self.jobs.get((job["metadata"]["namespace"], labels(job)[names.JOB_LABEL]))
        return None if owner is None else self.work.setdefault(owner["metadata"]["uid"], Work(last=time.time()))

    async def _run_job(self, job: Body, pods: list[Pod], work: Work | None) -> tuple[int, Pod]:
        """Run the pods of a Job until one has ended; return its exit code, and the pod."""
        await asyncio.gather(*(self.schedule(pod) for pod in pods))
        await asyncio.sleep(self._faults.start_seconds())
        stage = labels(job).get(names.STAGE_LABEL, "")
        fault = self._faults.draw_start(pods[0].key, is_attempt=work is not None)
        extra = (running("aaa-proxy"),) if fault == "sidecar" else ()
        if fault == "rejection":
            cause = {"reason": "UnexpectedAdmissionError", "message": "Allocate failed: no healthy devices"}
            await self.set_status("Pod", pods[-1].body, {"phase": "Failed", **cause, "conditions": [scheduled()]})
            self._free(pods[-1])
            return 1, pods[-1]
        if fault in ("init", "silent"):
            await self._stay_pending(pods, fault)
        for pod in pods:
            await self.run_pod(pod, extra=extra, gated=fault == "gate")
        await self._write_job(job, active=len(pods), ready=len(pods))
        if fault == "unreported":
            await asyncio.Event().wait()
        code = 0
        if work is None:
            await asyncio.sleep(self._faults.start_seconds())
        else:
            code = await self._orchestrate(job, pods, work, stage)
        await self.exit_pod(pods[0], code, extra=extra)
        if extra:
            await asyncio.Event().wait()  # until the operator deletes the Job
        return code, pods[0]

    async def _stay_pending(self, pods: list[Pod], fault: str) -> None:
        """Keep one pod from starting, with or without a reason, until its Job is deleted."""
        waiting = {"reason": "PodInitializing" if fault == "init" else "ContainerCreating"}
        own = [
            {**running(each["name"]), "ready": False, "state": {"waiting": waiting}}
            for each in pods[-1].body["spec"]["containers"]
        ]
        status: Body = {"phase": "Pending", "conditions": [scheduled()], "containerStatuses": own}
        if fault == "init":
            crash = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off restarting failed container"}}
            status["initContainerStatuses"] = [{**running("vault-agent-init"), "ready": False, "state": crash}]
        for pod in pods[:-1]:
            await self.run_pod(pod)
        await self.set_status("Pod", pods[-1].body, status)
        await asyncio.Event().wait()

    async def _orchestrate(self, job: Body, pods: list[Pod], work: Work, stage: str) -> int:
        """Train the steps of a stage; return the exit code."""
        attempt = int(labels(job)[names.ATTEMPT_LABEL])
        total, seconds = self._faults.steps(pods[0].key, stage)
        fault, at = self._faults.draw_run(pods[0].key, total - work.steps.get(stage, 0))
        for step in range(work.steps.get(stage, 0), total + 1):
            work.steps[stage] = step
            await self._report(job, work, {PROGRESS_KEY: Progress(
                stage=stage, attempt=attempt, phase="Training", step=step, total_steps=total, updated_at=time.time(),
                checkpoint=CheckpointRef(path=f"checkpoints/{step}", step=step))})  # fmt: skip
            if step == total:
                break
            await asyncio.sleep(seconds)
            lost = any(pod.node is not None and not pod.node.answers for pod in pods)
            if lost or (at == 0 and fault == "hang"):
                await asyncio.Event().wait()  # the collective waits for a lost peer
            if at == 0 and fault is not None:
                return await self._disturb(job, pods, work, fault, stage, attempt)
            at -= 1
        outcome = Outcome(stage=stage, attempt=attempt, outcome="completed", reason="StepsReached")
        await self._report(job, work, {outcome_key(stage): outcome})
        return 0

    async def _disturb(self, job: Body, pods: list[Pod], work: Work, fault: str, stage: str, attempt: int) -> int:
        """Carry out a fault of a running attempt; return the exit code of its first pod."""
        if fault == "crash":
            return 1
        if fault == "configuration":
            outcome = Outcome(stage=stage, attempt=attempt, outcome="failed", reason="BadData", message="row 7")
            await self._report(job, work, {outcome_key(stage): outcome})
            return int(ExitCode.CONFIGURATION)
        if fault == "preemption":
            target = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "",
                      "lastTransitionTime": timestamp(time.time())}  # fmt: skip
            status = {"phase": "Running", "conditions": [scheduled(), ready(True), target]}
            await self.set_status("Pod", pods[-1].body, {**status, "containerStatuses": [
                running(each["name"]) for each in pods[-1].body["spec"]["containers"]]})  # fmt: skip
        outcome = Outcome(stage=stage, attempt=attempt, outcome="suspended", reason="Suspended",
                          checkpoint=CheckpointRef(path="checkpoints", step=work.steps[stage]))  # fmt: skip
        self.spawn(self.terminate(pods[-1]))  # preempted, or deleted by an autoscaler without a word
        await self._report(job, work, {outcome_key(stage): outcome})
        return int(ExitCode.SUSPENDED)

    async def _report(self, job: Body, work: Work, messages: dict[str, Any]) -> None:
        meta = job["metadata"]
        work.last = time.time()
        work.reports |= {
            key: message.model_dump_json(exclude_none=True, by_alias=True) for key, message in messages.items()
        }
        target = {"name": names.progress(labels(job)[names.JOB_LABEL]), "namespace": meta["namespace"]}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": target, "data": work.reports}
        await self._client.apply(body, manager="orchestrator")

    async def _finish(self, job: Body, others: list[Pod], *, failed: bool) -> None:
        """Write the end of a batch Job, after its other pods have terminated."""
        now = timestamp(time.time())
        before, final = ("FailureTarget", "Failed") if failed else ("SuccessCriteriaMet", "Complete")
        condition = {"status": "True", "lastTransitionTime": now, "lastProbeTime": now, "reason": "Played"}
        await self._write_job(job, conditions=[{"type": before, **condition}])
        for pod in others:
            self.spawn(self.terminate(pod))  # not in this task, which ends with the Job
        while not all(pod.gone for pod in others):  # noqa: ASYNC110 - as a controller, which sees them gone later
            await asyncio.sleep(GRACE_SECONDS)
        now = timestamp(time.time())
        conditions = [{"type": before, **condition}, {"type": final, **condition, "lastTransitionTime": now}]
        ended: Body = {"failed": 1 + len(others), "active": 0} if failed else {"succeeded": 1, "completionTime": now}
        await self._write_job(job, conditions=conditions, **ended)

    async def _write_job(self, job: Body, **status: Any) -> None:
        started = self._started[job["metadata"]["uid"]]
        await self.set_status("Job", job, {"startTime": started, "uncountedTerminatedPods": {}, **status})

    async def _collect_garbage(self, key: Key) -> None:
        """Delete the objects of a job that is gone."""
        namespace, name = key
        for kind in CHILDREN:
            if kind == "Pod":
                continue
            for meta in await self._client.list_metadata(kind, namespace, selector=f"{names.JOB_LABEL}={name}"):
                with contextlib.suppress(ApiException):
                    await self._client.delete(kind, namespace, meta["name"], uid=meta["uid"])

    # -- nodes -----------------------------------------------------------------------------------------------------

    async def lose_node(self, node: Node, seconds: float) -> None:
        """Let a node not answer for some time. Its pods are marked for deletion, and end when it returns."""
        node.answers = False
        await self.write_node(node, "Unknown")
        pods = [pod for pod in self.pods.values() if pod.node is node]
        for pod in pods:
            with contextlib.suppress(ApiException):
                conditions = [each for each in pod.body["status"].get("conditions", ()) if each["type"] != "Ready"]
                await self.set_status(
                    "Pod", pod.body, {**pod.body["status"], "conditions": [*conditions, ready(False)]}
                )
        await asyncio.sleep(EVICTION_SECONDS)
        for pod in pods:
            if pod.node is node:
                self.spawn(self.terminate(pod))
                owner = pod.body["metadata"]["ownerReferences"][0]
                if owner["kind"] != "Job" and owner["uid"] in self._owners:
                    self._tasks[owner["uid"]] = self.spawn(self._play_replicas(owner["kind"], owner["uid"]))
        await asyncio.sleep(seconds)
        node.answers = True
        await self.write_node(node, "True")
        self.wake_scheduler()
