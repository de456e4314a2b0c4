"""spec.queueName with the real Kueue controller on a real API server. The test plays Job controller and kubelet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.accounts import OPERATOR, SITE, chart, create_account, grant, kubeconfig
from tests.support.job_controller import BATCH, PODS, JobController
from tests.support.kube_apiserver import KubeApiserver
from tests.support.kueue import API, LOG, PODS_READY_SECONDS, create_queue, kueue
from tests.support.operator_process import OperatorProcess
from tests.support.waiting import until

EXAMPLE = Path(__file__).parents[2] / "examples" / "cluster" / "kueue-teams.yaml"
TEAMS = ("team-a", "team-b")

GPUS = {
    "queueName": "team",
    "accelerator": {"vendor": "AMD", "resource": "amd.com/gpu"},
    "trainer": {"replicas": 1, "gpusPerReplica": 8},
}
"""A job that needs all eight GPUs of the queue."""


@pytest.fixture
def queue(api: KubeApiserver, tmp_path: Path) -> Iterator[JobController]:
    """Provide the API server with Kueue, a queue with eight GPUs, and the operator, with their own rights."""
    account = kubeconfig(api, create_account(api, SITE, OPERATOR), tmp_path / "operator")
    log = tmp_path / "operator.log"
    grant(api, chart("kueue.enabled=true"))
    with kueue(api, tmp_path):
        controller = JobController(api)
        create_queue(api, "lab", "team", **{"cpu": "100", "memory": "10Ti", "amd.com/gpu": "8"})
        priority = {"metadata": {"name": "urgent"}, "value": 1000}
        api.request("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", priority)
        with OperatorProcess(account, log=log, RSTAR2_KUEUE="true", RSTAR2_LEASE_NAMESPACE=SITE) as operator:
            yield controller
            assert operator.process.poll() is None, log.read_text()[-2000:]
    for output in (log, tmp_path / LOG):
        assert "forbidden" not in output.read_text().lower(), output.read_text()[-4000:]


def test_kueue_two_jobs_share_one_quota(queue: JobController) -> None:
    """The second job waits without a pod; an urgent one preempts the first, which resumes before the second."""
    queue.submit("first", **GPUS)
    queue.wait(lambda: queue.pods() == ["first-s0-1-0"], "the first job does not run")
    pod = queue.api.request("GET", f"{PODS}/first-s0-1-0")
    assert pod["spec"]["nodeSelector"]["pool"] == "mi300x"
    assert {"key": "gpu", "operator": "Exists"} in pod["spec"]["tolerations"]

    queue.submit("second", **GPUS)
    shortage = "insufficient unused quota for amd.com/gpu"
    queue.wait(lambda: shortage in queue.status("second").get("message", ""), "the second job has no reason")
    queue.wait(lambda: queue.status("second")["phase"] == "Pending", "the second job does not wait")
    assert queue.pods() == ["first-s0-1-0"]

    queue.submit("urgent", **GPUS, priorityClassName="urgent")
    queue.wait(lambda: queue.pods() == ["urgent-s0-1-0"], "the urgent job does not run")
    queue.wait(lambda: queue.status("first")["phase"] in ("Pending", "Suspending"), "the first job does not wait")

    queue.succeed("urgent", "s0")
    queue.wait(lambda: queue.status("urgent").get("phase") == "Succeeded", "the urgent job does not succeed")
    # The first was evicted and keeps its Workload, so it queues by its age, before the second.
    queue.wait(lambda: queue.pods() == ["first-s0-2-0"], "the first job does not resume")
    assert queue.status("first").get("restarts") == 0
    queue.succeed("first", "s0", attempt=2)
    queue.wait(lambda: queue.pods() == ["second-s0-1-0"], "the second job does not run")
    assert not any(suspended(queue).values())
    pod = {"metadata": {"labels": {}}, "spec": {"containers": [{"name": "a", "image": "a"}], "restartPolicy": "Never"}}
    queue.api.request("POST", BATCH, {"metadata": {"name": "foreign"}, "spec": {"template": pod}})
    queue.wait(lambda: suspended(queue)["foreign"], "Kueue does not manage batch Jobs")
    assert sum(suspended(queue).values()) == 1


def suspended(queue: JobController) -> dict[str, bool]:
    """Return the batch Jobs, and whether Kueue holds them back."""
    return {
        job["metadata"]["name"]: job["spec"].get("suspend", False) for job in queue.api.request("GET", BATCH)["items"]
    }


def workload(queue: JobController) -> dict[str, Any]:
    """Return the only Workload."""
    (body,) = queue.api.request("GET", f"{API}/namespaces/lab/workloads")["items"]
    return dict(body)


def conditions(body: dict[str, Any]) -> dict[str, str]:
    """Return the conditions of a Workload: type -> status."""
    return {each["type"]: each["status"] for each in body["status"]["conditions"]}


def test_kueue_wait_for_pods_ready_spares_running_jobs(queue: JobController) -> None:
    """A job whose pods do not run in time is evicted and keeps its Workload; one whose pods run is never evicted."""
    queue.has_nodes = False
    queue.submit("slow", **GPUS)
    queue.wait(lambda: bool(queue.attempts), "the job is not admitted")
    queue.wait(lambda: conditions(workload(queue)).get("PodsReady") == "False", "the pods count as ready")
    first = workload(queue)
    queue.wait(lambda: bool(workload(queue)["status"].get("requeueState")), "Kueue does not evict the job")
    queue.has_nodes = True
    queue.wait(lambda: queue.pods() == ["slow-s0-2-0"], "the job does not run")
    queue.wait(lambda: conditions(workload(queue)).get("PodsReady") == "True", "the pods are not reported")
    queue.play_for(PODS_READY_SECONDS + 10)
    second = workload(queue)
    assert second["metadata"]["uid"] == first["metadata"]["uid"], "a new Workload would be the last in the queue"
    assert conditions(second)["Admitted"] == "True"
    assert queue.attempts == ["slow-s0-1", "slow-s0-2"]
    assert queue.status("slow").get("restarts") == 0


def test_kueue_accepts_example_of_two_teams(api: KubeApiserver, tmp_path: Path) -> None:
    """The queues of docs/kueue.md become Active, and share a cohort."""
    paths = {"Namespace": "/api/v1/namespaces", "ResourceFlavor": f"{API}/resourceflavors"}
    paths |= {"ClusterQueue": f"{API}/clusterqueues", "LocalQueue": f"{API}/namespaces/{{}}/localqueues"}
    with kueue(api, tmp_path):
        for body in yaml.safe_load_all(EXAMPLE.read_text("utf-8")):
            api.request("POST", paths[body["kind"]].format(body["metadata"].get("namespace")), body)

        def active() -> list[bool]:
            urls = [*(f"{API}/namespaces/{team}/localqueues/training" for team in TEAMS)]
            queues = [api.request("GET", url) for url in (*urls, *(f"{API}/clusterqueues/{team}" for team in TEAMS))]
            states = [queue.get("status", {}).get("conditions", []) for queue in queues]
            return [any(each["type"] == "Active" and each["status"] == "True" for each in state) for state in states]

        until(lambda: active() == [True] * 4, "the queues are active")
