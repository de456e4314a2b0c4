"""Plays scheduler and kubelets on a real API server whose controllers are real, when the test calls `play`."""

from __future__ import annotations

from rstar2_operator import names
from tests.support.cluster_player import running
from tests.support.job_controller import PODS, JobController
from tests.support.kube_apiserver import KubeApiserver

INDEX = "batch.kubernetes.io/job-completion-index"


class Kubelets(JobController):
    """The pods of namespace `lab`. Those for preparation succeed immediately; the others run. No container runs."""

    def __init__(self, api: KubeApiserver) -> None:
        super().__init__(api)
        self.starts_engines = True
        """Whether new engines become ready; otherwise they stay pending on their node, as while an image is pulled."""
        self.binds = True
        """Whether pods receive a node here; otherwise a scheduler does it."""

    def play(self) -> None:
        """Act once: bind pods to a node, start them, remove deleted ones."""
        for pod in self.api.request("GET", PODS)["items"]:
            meta = pod["metadata"]
            path, role = f"{PODS}/{meta['name']}", meta["labels"][names.ROLE_LABEL]
            if meta.get("deletionTimestamp"):
                self.api.request("DELETE", path, {"gracePeriodSeconds": 0})
            elif not pod["spec"].get("nodeName"):
                if not self.binds:
                    continue
                target = {"kind": "Node", "name": "fake"}
                self.api.request("POST", f"{path}/binding", {"metadata": {"name": meta["name"]}, "target": target})
            elif pod["status"]["phase"] == "Pending" and (role != "rollout" or self.starts_engines):
                status = {"phase": "Succeeded"} if role in ("prepare", "report") else running(pod)
                self.api.request("PUT", f"{path}/status", {**pod, "status": {**pod["status"], **status}})

    def succeed_stage(self, name: str, stage: str, attempt: int = 1) -> None:
        """Act as orchestrator and kubelet of an attempt: report success, and end its first pod."""
        self.report_success(name, stage, attempt)
        selector = f"{names.BATCH_JOB_LABEL}={names.attempt(name, stage, attempt)}"
        pods = self.api.request("GET", f"{PODS}?labelSelector={selector}")["items"]
        (first,) = (pod for pod in pods if pod["metadata"]["labels"][INDEX] == "0")
        status = {**first["status"], "phase": "Succeeded"}
        self.api.request("PUT", f"{PODS}/{first['metadata']['name']}/status", {**first, "status": status})
