"""The tiny job on a real cluster, by helm and kubectl alone: every stage in pods, to `Complete`."""

from __future__ import annotations

import time

from tests.cluster import training
from tests.cluster.cluster import Cluster

SECONDS = 1500


def test_the_smoke_job_runs_to_complete(cluster: Cluster, namespace: str) -> None:
    training.install(cluster, "rstar2")
    uri = training.start_mlflow(cluster, namespace)
    manifest = training.job(
        cluster, namespace, "smoke.yaml", trainer={"replicas": 2, "gpusPerReplica": 0, "tokensPerMicroBatch": 4096},
        tracking={"mlflow": {"uri": uri}},
    )  # fmt: skip
    cluster.apply([manifest])
    deadline = time.monotonic() + SECONDS
    seen: list[str] = []
    while (phase := training.phase(cluster, namespace, "smoke")) not in ("Complete", "Failed", "Invalid"):
        if phase not in seen[-1:]:
            seen.append(phase)
        assert time.monotonic() < deadline, cluster.story(namespace)
        time.sleep(2)
    assert phase == "Complete", cluster.kubectl("describe", "arl", "-n", namespace, "smoke") + cluster.story(namespace)
    status = cluster.get("agenticrljob", "-n", namespace, "smoke")["status"]
    assert [stage["phase"] for stage in status["stages"]] == ["Done"] * len(status["stages"])
    runs = training.mlflow_runs(cluster, namespace)
    assert {name: ended for name, (ended, _) in runs.items()} == {
        name: "FINISHED" for name in ("smoke", *(f"smoke / {stage['name']}" for stage in status["stages"]))
    }
    assert all(metrics for name, (_, metrics) in runs.items() if name != "smoke")
