"""A job whose state is in a bucket: two trainer pods and an engine without a common disk, and the loss of all of them.

Marked `slow`: `make slow` runs it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rstar2_train.api.state_dir import ENGINE_WEIGHTS, JobState
from rstar2_train.storage.folder import LocalFolder
from rstar2_train.storage.job_state import fetch_newest
from tests.cluster import jobs
from tests.kube_node.cluster import Cluster
from tests.support.s3_server import CREDENTIALS, s3_server
from tests.support.state_assertions import assert_complete
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]


def test_bucket_job_survives_the_loss_of_its_disks(operated: Cluster, namespace: str, tmp_path: Path) -> None:
    """Trainer pods and engine are deleted in a GRPO stage, with their disks; the job resumes, and makes no claim."""
    with s3_server(tmp_path, host=operated.node_layout().host_address) as server:
        url = f"s3://{server.bucket('team-runs')}/curricula"
        keys = [f"--from-literal={name}={value}" for name, value in CREDENTIALS.items()]
        operated.kubectl("create", "secret", "generic", "bucket-keys", "-n", namespace, *keys)
        job = jobs.example_job(
            operated,
            namespace,
            "smoke.yaml",
            storage={"url": url, "endpointUrl": server.url, "size": "2Gi"},
            secretRefs={"storage": {"name": "bucket-keys"}},
        )
        job["spec"]["trainer"]["replicas"] = 2
        job["spec"]["stages"] = [stage for stage in job["spec"]["stages"] if stage["name"] in ("sft", "rl-1")]
        job["spec"]["stages"][1]["grpo"]["steps"] = 4
        operated.apply([job])

        def reached(step: int) -> bool:
            status = operated.get("arl", "smoke", "-n", namespace).get("status") or {}
            assert status.get("phase") not in jobs.FINAL, operated.describe(namespace)
            return status.get("stage") == "rl-1" and (status.get("checkpoint") or {}).get("step", 0) >= step

        until(lambda: reached(1), "a checkpoint of rl-1", every=0.5)
        for role in ("trainer", "rollout"):
            selection = ("-n", namespace, "-l", f"rstar2.dev/role={role}")
            operated.kubectl("delete", "pod", *selection, "--force", "--grace-period=0", "--wait=false")
        until(lambda: jobs.phase(operated, namespace, "smoke") in jobs.FINAL, "the end", every=1)
        status = operated.get("arl", "smoke", "-n", namespace)["status"]
        assert status["phase"] == "Succeeded", operated.describe(namespace)
        assert {stage["name"]: stage["attempts"] for stage in status["stages"]} == {"sft": 1, "rl-1": 2}
        claims = operated.get("pvc", "-n", namespace)["items"]
        assert "smoke-state" not in {claim["metadata"]["name"] for claim in claims}
        objects = server.data / "team-runs" / "curricula" / "smoke"
        state = JobState(tmp_path / "copy")
        state.root.mkdir()
        fetch_newest(LocalFolder(objects), state)
        assert_complete(state)
        assert [path.name for path in (objects / ENGINE_WEIGHTS).rglob("*") if path.is_file()] == ["index.json"]
