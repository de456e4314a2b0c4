"""The example of an autoscaler for engines, with the real HorizontalPodAutoscaler controller and API server.

Deployments, ReplicaSets, StatefulSets and Jobs have their real controllers too. The test plays scheduler and kubelets,
and sets the number that prometheus-adapter would compute.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.setup import ROOT
from tests.kube_node import binaries
from tests.support.controller_manager import controller_manager
from tests.support.external_metric import ExternalMetric, external_metric
from tests.support.job_controller import JOBS
from tests.support.kube_apiserver import KubeApiserver
from tests.support.kubelets import Kubelets
from tests.support.operator_process import OperatorProcess

EXAMPLE = ROOT / "examples" / "cluster" / "rollout-scaling.yaml"
AUTOSCALERS = "/apis/autoscaling/v2/namespaces/lab/horizontalpodautoscalers"
ENGINES = "/apis/apps/v1/namespaces/lab/deployments/demo-rollout"
EVENTS = "/api/v1/namespaces/lab/events"
CONTROLLERS = (
    "horizontal-pod-autoscaler-controller",
    *("deployment-controller", "replicaset-controller", "statefulset-controller", "job-controller"),
)
ROUNDS = 3
"""Rounds of the autoscaler in which nothing may change."""


def example() -> dict[str, Any]:
    """Return the example's autoscaler for job `demo`, for at most four engines, and without its delays."""
    body: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text().replace("JOB", "demo"))
    body["spec"]["maxReplicas"] = 4
    for rules in body["spec"]["behavior"].values():
        rules["stabilizationWindowSeconds"] = 0
        for policy in rules["policies"]:
            policy["periodSeconds"] = 1
    return body


@dataclass
class Autoscaled:
    """Job `demo` in its rollout stage, and the metric of its autoscaler."""

    lab: Kubelets
    metric: ExternalMetric

    def get(self, path: str) -> dict[str, Any]:
        """Return an object."""
        body: dict[str, Any] = self.lab.api.request("GET", path)
        return body

    def autoscaler(self) -> dict[str, Any]:
        """Return the status of the autoscaler."""
        status: dict[str, Any] = self.get(f"{AUTOSCALERS}/demo-rollout").get("status") or {}
        return status

    def conditions(self) -> dict[str, str]:
        """Return the conditions of the autoscaler: type -> status."""
        return {each["type"]: each["status"] for each in self.autoscaler().get("conditions", ())}

    def counts(self) -> dict[str, int]:
        """Return the number of engines as each part has it: requested, existing, ready."""
        job, engines = self.get(f"{JOBS}/demo"), self.get(ENGINES)
        return {
            "job": job["spec"]["rollout"]["replicas"],
            "deployment": engines["spec"]["replicas"],
            "existing": engines["status"].get("replicas", 0),
            "ready": engines["status"].get("readyReplicas", 0),
            "status": job["status"]["rolloutReplicas"],
        }

    def reaches(self, count: int, *, ready: int | None = None) -> None:
        """Wait until every part has this number of engines."""
        expected = dict.fromkeys(("job", "deployment", "existing", "ready", "status"), count)
        expected["ready"] = count if ready is None else ready
        self.lab.wait(lambda: self.counts() == expected, f"the job does not get {expected}")

    def stays(self, count: int, *, ready: int | None = None) -> None:
        """Wait until every part has this number of engines, and check that no part writes another in some rounds."""
        self.reaches(count, ready=ready)
        self.lab.wait(lambda: self.autoscaler().get("currentReplicas") == count, "the autoscaler does not follow")
        before, rounds = self.generations(), len(self.metric.selectors) + ROUNDS
        self.lab.wait(lambda: len(self.metric.selectors) >= rounds, "the autoscaler does not ask for the metric")
        assert self.generations() == before
        status, conditions = self.autoscaler(), self.conditions()
        assert (status["currentReplicas"], status["desiredReplicas"]) == (count, count)
        has_value = str(self.metric.value is not None)
        assert (conditions["AbleToScale"], conditions["ScalingActive"]) == ("True", has_value), status

    def generations(self) -> list[int]:
        """Return the number of changes so far of the spec of job and Deployment."""
        return [self.get(path)["metadata"]["generation"] for path in (f"{JOBS}/demo", ENGINES)]

    def rescales(self) -> list[str]:
        """Return the new sizes that the autoscaler wrote, sorted."""
        events = [each for each in self.get(EVENTS)["items"] if each["reason"] == "SuccessfulRescale"]
        return sorted(each["message"].split(";")[0] for each in events)


@pytest.fixture
def demo(api: KubeApiserver, tmp_path: Path) -> Iterator[Autoscaled]:
    """Provide a running job that requests one engine, and no autoscaler."""
    (source,) = example()["spec"]["metrics"]
    log = tmp_path / "operator.log"
    with OperatorProcess(api.kubeconfig, log=log) as operator:
        lab = Kubelets(api)
        metric = ExternalMetric("lab", source["external"]["metric"]["name"], value=0.7)
        with external_metric(api, tmp_path, metric), controller_manager(api, tmp_path, *CONTROLLERS):
            lab.submit("demo", "g")
            lab.wait(lambda: lab.status("demo").get("phase") == "Running", "the job does not run")
            yield Autoscaled(lab, metric)
        assert operator.process.poll() is None, log.read_text()[-2000:]


def scale(api: KubeApiserver, replicas: int, home: Path) -> None:
    """Run `kubectl scale` for job `demo`."""
    command = [binaries.ensure_binary(binaries.find_binary("kubectl")), f"--kubeconfig={api.kubeconfig}", "-n", "lab"]
    subprocess.run([*command, "scale", "arl", "demo", f"--replicas={replicas}"], check=True, env={"HOME": str(home)})


def test_autoscaler_scales_engines_by_example(demo: Autoscaled, tmp_path: Path) -> None:
    """The engines follow metric and `kubectl scale`; autoscaler and operator never revert each other."""
    scale(demo.lab.api, 2, tmp_path)
    demo.reaches(2)
    demo.lab.api.request("POST", AUTOSCALERS, example())
    demo.stays(2)  # the metric is on its target

    demo.lab.starts_engines = False
    demo.metric.value = 1.0
    demo.stays(3, ready=2)  # the new engine exists and loads: no reason for a further one
    demo.lab.starts_engines = True
    demo.reaches(4)
    demo.metric.value = 0.7
    demo.stays(4)

    demo.metric.value = 0.35
    demo.reaches(2)
    demo.metric.value = 0.7
    demo.stays(2)

    scale(demo.lab.api, 3, tmp_path)
    demo.stays(3)
    demo.metric.value = None  # no recent step
    demo.lab.wait(lambda: demo.conditions()["ScalingActive"] == "False", "the autoscaler ignores the missing metric")
    demo.stays(3)

    assert set(demo.metric.selectors) == {"job=demo"}
    rescales = demo.rescales()
    assert rescales == ["New size: 2", "New size: 3", "New size: 3", "New size: 4"]
    by_kubectl = 2
    assert demo.generations()[0] == 1 + by_kubectl + len(rescales)  # no other client changed the spec
