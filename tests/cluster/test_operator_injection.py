"""Jobs in a namespace whose webhook adds a container to each pod that never ends: attempts end by their own outcome."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rstar2_train.api.loader import read_manifest
from scripts.setup import ROOT
from tests.cluster import jobs
from tests.kube_node import images
from tests.kube_node.cluster import Cluster
from tests.support.injecting_webhook import CONTAINER, injected

SECONDS = 900.0


@pytest.mark.parametrize(("model", "phase"), [("generated://tiny-smoke/base", "Succeeded"), ("/none", "Failed")])
def test_injected_container_does_not_keep_a_job(
    operated: Cluster, namespace: str, tmp_path: Path, model: str, phase: str
) -> None:
    """Preparation, attempt and report end with their own containers, successfully or not, and no pod stays."""
    job = jobs.cluster_job(operated, namespace, read_manifest(ROOT / "examples" / "smoke.yaml"))
    sft = job["spec"]["stages"][0]
    sft["sft"] |= {"epochs": 0.5, "shortestFirstSteps": 0}
    job["spec"] |= {"stages": [sft], "model": {"source": model}, "failurePolicy": {"maxRestarts": 0}}
    del job["spec"]["validation"]
    job["spec"]["trainer"]["terminationGracePeriodSeconds"] = 10  # the added container ignores SIGTERM until its end
    with injected(operated, namespace, tmp_path, image=images.BASE):
        operated.apply([job])
        deadline, names = time.monotonic() + SECONDS, set[str]()
        while (reached := jobs.phase(operated, namespace, "smoke")) not in jobs.FINAL:
            for pod in operated.get("pods", "-n", namespace, "-l", "rstar2.dev/job=smoke")["items"]:
                statuses = [each["name"] for each in pod["status"].get("containerStatuses", ())]
                assert not statuses or statuses[0] == CONTAINER, statuses
                names |= {pod["metadata"]["labels"]["rstar2.dev/role"] for _ in statuses}
            assert time.monotonic() < deadline, operated.describe(namespace)
            time.sleep(0.5)
        assert reached == phase, operated.kubectl("describe", "arl", "smoke", "-n", namespace)
        assert names == ({"prepare", "trainer", "report"} if phase == "Succeeded" else {"prepare"})
        status = operated.get("arl", "smoke", "-n", namespace)["status"]
        assert status["restarts"] == 0
        if phase == "Failed":
            assert "/none" in status["message"], status["message"]
        jobs.wait_until_alone(operated)
