"""Plays the Job controller, scheduler and kubelet on a real API server without them, when the test calls `play`."""

from __future__ import annotations

import json
import time
import urllib.error
from collections.abc import Callable
from typing import Any

from rstar2_operator import names
from rstar2_train.api.contracts import Outcome, outcome_key
from tests.support.kube_apiserver import KubeApiserver
from tests.support.simulated_cluster import manifest

LAB = "namespaces/lab"
JOBS = f"/apis/rstar2.dev/v1alpha1/{LAB}/agenticrljobs"
BATCH = f"/apis/batch/v1/{LAB}/jobs"
PODS = f"/api/v1/{LAB}/pods"
WITHIN = 240.0

Body = dict[str, Any]


class JobController:
    """The batch Jobs of a namespace. Jobs for preparation and report complete immediately; the others run."""

    def __init__(self, api: KubeApiserver, namespace: str = "lab") -> None:
        self.api = api
        self._jobs, self._batch, self._pods = (
            path.replace(LAB, f"namespaces/{namespace}") for path in (JOBS, BATCH, PODS)
        )
        self._configs = f"/api/v1/namespaces/{namespace}/configmaps"
        self.has_nodes = True
        """Whether new pods receive a node; without one they stay pending."""
        self.ends_pods = True
        """Whether the pods of deleted Jobs terminate; otherwise they ignore SIGTERM."""
        self.attempts: list[str] = []
        """Names of all stage attempts whose pods were created, in order."""
        api.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})

    def submit(self, name: str, stages: str = "s", **spec: Any) -> None:
        """Create a job of one SFT stage, s0, or of other `stages`, with one trainer pod."""
        body = manifest(stages, **spec)
        body["metadata"] = {"name": name}
        body["spec"]["trainer"]["replicas"] = 1
        self.api.request("POST", self._jobs, body)

    def status(self, name: str) -> Body:
        """Return the status of a job."""
        status: Body = self.api.request("GET", f"{self._jobs}/{name}").get("status") or {}
        return status

    def degraded(self, name: str) -> str:
        """Return the message of the condition Degraded of a job; empty if it has no problem."""
        conditions = self.status(name).get("conditions", ())
        return next((str(item["message"]) for item in conditions if item["type"] == "Degraded"), "")

    def play(self) -> None:
        """Act once: complete preparations, start the pods of Jobs, delete the pods of deleted Jobs."""
        jobs = {each["metadata"]["uid"]: each for each in self.api.request("GET", self._batch)["items"]}
        pods = {each["metadata"]["name"]: each for each in self.api.request("GET", self._pods)["items"]}
        for name, pod in pods.items():
            job = jobs.get(pod["metadata"]["ownerReferences"][0]["uid"])
            deleted = "deletionTimestamp" in pod["metadata"]
            if self.ends_pods and (job is None or deleted):
                self.api.request("DELETE", f"{self._pods}/{name}", {"gracePeriodSeconds": 0})
            if deleted and job is not None and not job["status"].get("conditions"):
                self.complete(job, failed=True)
        for job in jobs.values():
            name = job["metadata"]["name"]
            if job.get("status", {}).get("conditions"):
                continue
            if name.endswith(("-prepare", "-report")):
                self.complete(job)
            elif f"{name}-0" not in pods:
                self._start(job)

    def complete(self, job: Body, *, failed: bool = False) -> None:
        """Complete a batch Job, or let it fail."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        kinds = ("FailureTarget", "Failed") if failed else ("SuccessCriteriaMet", "Complete")
        final = [{"type": kind, "status": "True", "lastTransitionTime": now} for kind in kinds]
        ended: Body = {"failed": 1} if failed else {"completionTime": now, "succeeded": 1}
        status = {"startTime": now, "conditions": final, **ended}
        self.api.request("PUT", f"{self._batch}/{job['metadata']['name']}/status", {**job, "status": status})

    def _start(self, job: Body) -> None:
        meta, template = job["metadata"], job["spec"]["template"]
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": meta["name"], "uid": meta["uid"], "controller": True}
        labels = {**template["metadata"]["labels"], names.BATCH_JOB_LABEL: meta["name"]}
        metadata = {"name": f"{meta['name']}-0", "labels": labels, "ownerReferences": [owner]}
        node = {"nodeName": "fake"} if self.has_nodes else {}
        pod = self.api.request("POST", self._pods, {"metadata": metadata, "spec": {**template["spec"], **node}})
        self.attempts.append(meta["name"])
        scheduled = {"type": "PodScheduled", "status": "True"}
        if not self.has_nodes:
            scheduled |= {"status": "False", "reason": "Unschedulable", "message": "0/0 nodes are available"}
        pod["status"] |= {"phase": "Running" if self.has_nodes else "Pending", "conditions": [scheduled]}
        self.api.request("PUT", f"{self._pods}/{pod['metadata']['name']}/status", pod)

    def report_success(self, name: str, stage: str, attempt: int) -> None:
        """Act as the orchestrator of an attempt: report success."""
        outcome = Outcome(stage=stage, attempt=attempt, outcome="completed", reason="StepsReached")
        path = f"{self._configs}/{names.progress(name)}"
        config = self.api.request("GET", path)
        config["data"] = {outcome_key(stage): outcome.model_dump_json(exclude_none=True)}
        self.api.request("PUT", path, config)

    def succeed(self, name: str, stage: str, attempt: int = 1) -> None:
        """Act as the orchestrator of an attempt: report success and end."""
        self.report_success(name, stage, attempt)
        pod = self.api.request("GET", f"{self._pods}/{name}-{stage}-{attempt}-0")
        pod["status"]["phase"] = "Succeeded"
        self.api.request("PUT", f"{self._pods}/{name}-{stage}-{attempt}-0/status", pod)
        self.complete(self.api.request("GET", f"{self._batch}/{name}-{stage}-{attempt}"))

    def wait(self, check: Callable[[], bool], problem: str) -> None:
        """Play until `check` holds."""
        deadline = time.monotonic() + WITHIN
        while True:
            try:
                self.play()
                if check():
                    return
            except urllib.error.HTTPError as error:
                if error.code not in (404, 409):
                    raise
            assert time.monotonic() < deadline, (
                f"{problem}: {json.dumps(self.api.request('GET', self._jobs)['items'])[-4000:]}"
            )
            time.sleep(0.2)

    def play_for(self, seconds: float) -> None:
        """Play for a time."""
        end = time.monotonic() + seconds
        self.wait(lambda: time.monotonic() > end, "the clock does not advance")

    def pods(self) -> list[str]:
        """Return the names of all running pods."""
        pods = self.api.request("GET", self._pods)["items"]
        return sorted(pod["metadata"]["name"] for pod in pods if pod["status"]["phase"] == "Running")
