"""`helm test` on a real cluster: its pod runs a job to the end. The job is short and uses this machine's Python."""

from __future__ import annotations

import json

import yaml

from rstar2_train.api.loader import read_manifest
from scripts.setup import ROOT
from tests.cluster import jobs, operator_release
from tests.kube_node.cluster import Cluster

JOB = "rstar2-test"
CHART = ROOT / "helm" / "rstar2"


def test_helm_test_runs_a_job_and_deletes_it(operated: Cluster, namespace: str) -> None:
    """The test passes after the job has succeeded, and leaves neither job nor pod behind."""
    spec = yaml.safe_load((CHART / "files" / "test-job.yaml").read_text())
    sft = {**spec["stages"][0], "sft": {**spec["stages"][0]["sft"], "epochs": 0.5, "shortestFirstSteps": 0}}
    smoke = read_manifest(ROOT / "examples" / "smoke.yaml")
    job = jobs.cluster_job(operated, namespace, smoke)
    change = {"stages": [sft], "runtimePatches": job["spec"]["runtimePatches"], "storage": job["spec"]["storage"]}
    change["storage"]["reclaimPolicy"] = "Delete"
    test = {"namespace": namespace, "seconds": 600, "spec": change}
    values = ["--reuse-values", "--set-json", f"test={json.dumps(test)}"]
    release = [operator_release.RELEASE, "--namespace", operator_release.NAMESPACE]
    operated.run("helm", "upgrade", *release[:1], str(CHART), *release[1:], *values)
    done = operated.run("helm", "test", *release, "--timeout", "15m", "--logs", seconds=960, check=False)
    assert done.returncode == 0, done.stdout + done.stderr + operated.describe(namespace)
    assert f"{namespace}/{JOB}: Succeeded" in done.stdout, "the log of the test's pod is printed"
    assert operated.get("arl", "-n", namespace)["items"] == []
    assert "kubectl get runtimeclass" not in done.stdout, "the notes ask for a RuntimeClass that exists"
