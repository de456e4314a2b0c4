"""spec.queueName with the real Kueue controller on a real API server. The test plays Job controller and kubelet."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rstar2_operator import names
from rstar2_train.api.contracts import Outcome, outcome_key
from rstar2_train.utils.supervisor import die_with_parent
from tests.kube_node import binaries, requirements
from tests.support.kube_apiserver import KubeApiserver
from tests.support.kueue import create_queue, kueue
from tests.support.simulated_cluster import manifest

LAB = "namespaces/lab"
JOBS = f"/apis/rstar2.dev/v1alpha1/{LAB}/agenticrljobs"
BATCH = f"/apis/batch/v1/{LAB}/jobs"
PODS = f"/api/v1/{LAB}/pods"
WITHIN = 60.0

Body = dict[str, Any]


class QueuedJobs:
    """The API server, with the test as controller and kubelet of batch Jobs."""

    def __init__(self, api: KubeApiserver) -> None:
        self.api = api

    def submit(self, name: str, **spec: Any) -> None:
        """Create a job of one SFT stage that needs all eight GPUs of the queue."""
        body = manifest("s", queueName="team", **spec)
        body["metadata"] = {"name": name}
        body["spec"] |= {
            "accelerator": {"vendor": "AMD", "resource": "amd.com/gpu"},
            "trainer": {"replicas": 1, "gpusPerReplica": 8},
        }
        self.api.request("POST", JOBS, body)

    def status(self, name: str) -> Body:
        """Return the status of a job."""
        status: Body = self.api.request("GET", f"{JOBS}/{name}").get("status") or {}
        return status

    def play(self) -> None:
        """Act once: complete preparations, start the pods of Jobs, delete the pods of deleted Jobs."""
        jobs = {each["metadata"]["name"]: each for each in self.api.request("GET", BATCH)["items"]}
        pods = {each["metadata"]["name"]: each for each in self.api.request("GET", PODS)["items"]}
        for name, pod in pods.items():
            if pod["metadata"]["ownerReferences"][0]["name"] not in jobs:
                self.api.request("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})
        for name, job in jobs.items():
            if job.get("status", {}).get("conditions"):
                continue
            if name.endswith(("-prepare", "-report")):
                self.complete(job)
            elif f"{name}-0" not in pods:
                self._start(job)

    def complete(self, job: Body) -> None:
        """Complete a batch Job."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        final = [
            {"type": kind, "status": "True", "lastTransitionTime": now} for kind in ("SuccessCriteriaMet", "Complete")
        ]
        status = {"startTime": now, "completionTime": now, "succeeded": 1, "conditions": final}
        self.api.request("PUT", f"{BATCH}/{job['metadata']['name']}/status", {**job, "status": status})

    def _start(self, job: Body) -> None:
        meta, template = job["metadata"], job["spec"]["template"]
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": meta["name"], "uid": meta["uid"], "controller": True}
        labels = {**template["metadata"]["labels"], names.OF_JOB_LABEL: meta["name"]}
        metadata = {"name": f"{meta['name']}-0", "labels": labels, "ownerReferences": [owner]}
        pod = self.api.request("POST", PODS, {"metadata": metadata, "spec": {**template["spec"], "nodeName": "fake"}})
        pod["status"] |= {"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True"}]}
        self.api.request("PUT", f"{PODS}/{pod['metadata']['name']}/status", pod)

    def succeed(self, name: str, stage: str) -> None:
        """Act as the orchestrator: report success and end."""
        outcome = Outcome(stage=stage, attempt=1, outcome="completed", reason="StepsReached")
        path = f"/api/v1/{LAB}/configmaps/{names.progress(name)}"
        config = self.api.request("GET", path)
        config["data"] = {outcome_key(stage): outcome.model_dump_json(exclude_none=True)}
        self.api.request("PUT", path, config)
        pod = self.api.request("GET", f"{PODS}/{name}-{stage}-1-0")
        pod["status"]["phase"] = "Succeeded"
        self.api.request("PUT", f"{PODS}/{name}-{stage}-1-0/status", pod)
        self.complete(self.api.request("GET", f"{BATCH}/{name}-{stage}-1"))

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
                f"{problem}: {json.dumps(self.api.request('GET', JOBS)['items'])[-4000:]}"
            )
            time.sleep(0.2)

    def pods(self) -> list[str]:
        """Return the names of all pods that hold GPUs."""
        pods = self.api.request("GET", PODS)["items"]
        return sorted(pod["metadata"]["name"] for pod in pods if pod["status"]["phase"] == "Running")


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[QueuedJobs]:
    """Provide the API server with Kueue, a queue with eight GPUs, and the operator."""
    try:
        requirements.check()
    except requirements.ClusterUnavailable as problem:
        pytest.skip(str(problem))
    binaries.ensure_all()
    with KubeApiserver() as api, kueue(api, tmp_path):
        api.request("POST", "/api/v1/namespaces", {"metadata": {"name": "lab"}})
        create_queue(api, "lab", "team", **{"cpu": "100", "memory": "10Ti", "amd.com/gpu": "8"})
        priority = {"metadata": {"name": "urgent"}, "value": 1000}
        api.request("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", priority)
        env = {**os.environ, "KUBECONFIG": str(api.kubeconfig), "RSTAR2_KUEUE": "true", "RSTAR2_PROBE_PORT": "0"}
        with (tmp_path / "operator.log").open("wb") as log:
            operator = subprocess.Popen(
                [sys.executable, "-m", "rstar2_operator"], env=env, stdout=log, stderr=log, preexec_fn=die_with_parent
            )
        try:
            yield QueuedJobs(api)
            assert operator.poll() is None, (tmp_path / "operator.log").read_text()[-2000:]
        finally:
            operator.kill()
            operator.wait()


def test_kueue_two_jobs_share_one_quota(queue: QueuedJobs) -> None:
    """The second job waits without a pod; an urgent one preempts the first, which resumes when the quota is free."""
    queue.submit("first")
    queue.wait(lambda: queue.pods() == ["first-s0-1-0"], "the first job does not run")
    pod = queue.api.request("GET", f"{PODS}/first-s0-1-0")
    assert pod["spec"]["nodeSelector"]["pool"] == "mi300x"
    assert {"key": "gpu", "operator": "Exists"} in pod["spec"]["tolerations"]

    queue.submit("second")
    shortage = "insufficient unused quota for amd.com/gpu"
    queue.wait(lambda: shortage in queue.status("second").get("message", ""), "the second job has no reason")
    assert queue.status("second")["phase"] == "Pending" and queue.pods() == ["first-s0-1-0"]

    queue.submit("urgent", priorityClassName="urgent")
    queue.wait(lambda: queue.pods() == ["urgent-s0-1-0"], "the urgent job does not run")
    assert queue.status("first")["phase"] in ("Pending", "Suspending")

    queue.succeed("urgent", "s0")
    queue.wait(lambda: queue.status("urgent").get("phase") == "Succeeded", "the urgent job does not succeed")
    # The first was evicted, so it queues behind the second.
    queue.wait(lambda: queue.pods() == ["second-s0-1-0"], "the second job does not run")
    queue.succeed("second", "s0")
    queue.wait(lambda: queue.pods() == ["first-s0-2-0"], "the first job does not resume")
    assert queue.status("first").get("restarts") == 0
