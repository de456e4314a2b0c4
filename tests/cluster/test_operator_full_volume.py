"""A volume of the node that becomes full under a running job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rstar2_train.api.state_dir import JobState
from tests.cluster import jobs
from tests.kube_node import volumes
from tests.kube_node.cluster import Cluster, Object
from tests.support.waiting import until

CLAIM = "small"
FOLDER = Path("/var/lib/rstar2-small")
FILLER = FOLDER / "filler"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


@pytest.fixture
def small_volume(operated: Cluster, namespace: str) -> Iterator[None]:
    """Provide a claim for a volume of 320 MiB."""
    operated.run_on_node("mkdir", "-p", str(FOLDER))
    operated.run_on_node("mount", "-t", "tmpfs", "-o", "size=320m,mode=0777", "tmpfs", str(FOLDER))
    operated.apply(volumes.host_folder(namespace, CLAIM, FOLDER, writable=True))
    yield
    operated.run_on_node("umount", "--lazy", str(FOLDER))


def sft_job(cluster: Cluster, namespace: str) -> Object:
    """Return a job with one SFT stage, which needs no engine, and the small volume."""
    job = jobs.example_job(cluster, namespace, "smoke.yaml", storage={"claimName": CLAIM})
    job["spec"]["stages"] = job["spec"]["stages"][:1]
    job["spec"]["stages"][0]["sft"] |= {"epochs": 40, "checkpointEverySteps": 20}
    return job


def newest_checkpoint(cluster: Cluster) -> int:
    """Return the step of the newest complete checkpoint; 0 without one."""
    folder = JobState(FOLDER / "smoke").stage("sft").checkpoints
    names = cluster.run_on_node("ls", str(folder), check=False).stdout.split()
    return max((int(name.rpartition("-")[2]) for name in names if name.startswith("step-")), default=0)


def trainer_log(cluster: Cluster, namespace: str) -> str:
    """Return the log of the trainer's pod; empty without one."""
    command = ("kubectl", "logs", "-n", namespace, "-l", "rstar2.dev/role=trainer", "--tail=-1")
    return cluster.run(*command, check=False).stdout


def test_full_volume_fails_the_job_and_keeps_its_checkpoint(
    operated: Cluster, namespace: str, small_volume: None
) -> None:
    """The first attempt fails the job, with the reason. After space is freed, the same job resumes its checkpoint."""
    operated.apply([sft_job(operated, namespace)])
    until(lambda: newest_checkpoint(operated) >= 20, "a checkpoint", every=0.5)

    def fails() -> bool:  # a removed checkpoint frees space
        operated.run_on_node("sh", "-c", f"cat /dev/zero >> {FILLER}", check=False)
        return jobs.phase(operated, namespace, "smoke") == "Failed"

    until(fails, "the job fails", every=0.5)
    status = operated.get("arl", "smoke", "-n", namespace)["status"]
    assert "Stage sft failed. StorageFull: " in status["message"]
    assert status.get("restarts", 0) == 0
    saved = newest_checkpoint(operated)
    assert saved >= 20
    operated.kubectl("delete", "arl", "smoke", "-n", namespace)
    operated.run_on_node("rm", str(FILLER))
    operated.apply([sft_job(operated, namespace)])
    until(lambda: f"resumes after step {saved}" in trainer_log(operated, namespace), "the stage continues", every=1)
    until(lambda: newest_checkpoint(operated) > saved, "a later checkpoint", every=0.5)
