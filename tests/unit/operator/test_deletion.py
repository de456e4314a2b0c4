"""The deletion of a job: its stages, in every situation, and the finalizer that holds it."""

from __future__ import annotations

import time

import pytest

from rstar2_operator import status_writer
from rstar2_operator.names import FINALIZER
from rstar2_operator.observed import is_alive, timestamp
from rstar2_operator.uninstall import delete_all
from tests.support.fake_kube_api import Operator, api_error
from tests.support.simulated_cluster import SimulatedCluster, at_first_stage, in_situation, kinds, manifest


def finish(cluster: SimulatedCluster) -> list[str]:
    """Act until the deleted job is gone. Return the Jobs that were created in this time."""
    before = len(cluster.created_jobs)
    for _ in range(6):
        cluster.round(1)
        cluster.terminate()
        if "demo-report" in cluster.running():
            cluster.finish_job("demo-report", 0)
    assert cluster.gone and cluster.pods_at_release == []
    return cluster.created_jobs[before:]


def test_deletion_ends_the_attempt_first_and_policies_last() -> None:
    """Trainer pods with their grace, then engines and judge, then the report, then everything else."""
    cluster = at_first_stage("g")
    policies = kinds(cluster, "NetworkPolicy")
    cluster.delete_job()
    decision = cluster.round()
    assert (decision.phase, decision.reason) == (
        "Deleting",
        "Deleting",
    ) and "writes a checkpoint first" in decision.message
    assert kinds(cluster, "Job") == ["demo-prepare"] and "demo-rollout" in kinds(cluster, "Deployment")
    assert cluster.job["status"]["stages"][0]["phase"] == "Suspending"
    cluster.terminate()
    decision = cluster.round()
    assert kinds(cluster, "Deployment") == kinds(cluster, "StatefulSet") == []
    assert kinds(cluster, "Job") == ["demo-prepare", "demo-report"] and not cluster.gone
    arguments = cluster.children["Job", "demo-report"]["spec"]["template"]["spec"]["containers"][0]["command"]
    assert arguments[arguments.index("--ending") + 1] == "deleted"
    cluster.finish_job("demo-report", 0)
    assert kinds(cluster, "NetworkPolicy") == policies != []
    cluster.reconcile()
    assert cluster.gone and cluster.pods_at_release == [] and cluster.children == {}


@pytest.mark.parametrize(
    ("situation", "jobs"),
    [
        ("preparing", []),
        ("running", ["demo-report"]),
        ("backing off", ["demo-report"]),
        ("released", ["demo-report"]),
        ("resuming", ["demo-report"]),
        ("finalizing", []),  # its report is completed
        ("succeeded", []),
    ],
)
@pytest.mark.parametrize("suspended", [False, True])
def test_deletion_in_every_situation(situation: str, jobs: list[str], suspended: bool) -> None:
    """No new attempt starts, the MLflow run of a started job is closed, and no pod outlives the job."""
    cluster = in_situation(situation)
    if suspended:
        cluster.job["spec"]["suspend"] = True
        cluster.round()
        cluster.terminate()
        cluster.round()
        jobs = [] if situation in ("preparing", "succeeded") else ["demo-report"]
    cluster.delete_job()
    assert finish(cluster) == jobs
    cluster.terminate()
    assert [name for name, pod in cluster.pods.items() if is_alive(pod)] == []


def test_deletion_of_a_finished_job_needs_no_operator() -> None:
    """A job in a final phase has no finalizer."""
    cluster = in_situation("running")
    assert cluster.job["metadata"]["finalizers"] == [FINALIZER]
    cluster = in_situation("succeeded")
    cluster.delete_job()
    assert cluster.gone


@pytest.mark.parametrize("fault", ["rejected", "hanging"])
def test_deletion_waits_for_its_report_only_for_a_limit(fault: str) -> None:
    """A namespace that is being deleted rejects the report Job; its pod may hang too."""
    cluster = in_situation("running")
    cluster.reject(*(("Job",) if fault == "rejected" else ()))
    cluster.delete_job()
    cluster.round()
    cluster.terminate()
    decision = cluster.round()
    limit = 30 if fault == "rejected" else 300
    assert decision.phase == "Deleting" and decision.wake_at == cluster.now + limit
    cluster.now += limit
    cluster.round()
    cluster.terminate()
    cluster.round()
    assert cluster.gone and cluster.pods_at_release == []


def test_deletion_in_the_foreground_creates_nothing() -> None:
    """The garbage collector deletes the objects of the job at the same time, also a new one."""
    cluster = in_situation("running")
    cluster.job["metadata"]["finalizers"].append("foregroundDeletion")
    cluster.delete_job()
    cluster.round()
    cluster.terminate()
    before = set(cluster.children)
    cluster.reconcile()
    assert set(cluster.children) < before and "demo-report" not in cluster.created_jobs
    cluster.reconcile()
    assert cluster.gone and cluster.pods_at_release == []


@pytest.fixture
def write_immediately(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write statuses without a delay."""
    for name in ("SETTLE_SECONDS", "HOLD_SECONDS", "COUNTS_SECONDS"):
        monkeypatch.setattr(status_writer, name, 0.0)


async def test_deletion_with_orphan_keeps_all_objects() -> None:
    """With --cascade=orphan the pods are left to the user."""
    operator = Operator(manifest("g"))
    await operator.start_stage("g0")
    operator.delete("orphan")
    before = operator.names("Job")
    await operator.run()
    assert operator.api.objects["AgenticRLJob", "demo"]["metadata"]["finalizers"] == ["orphan"]
    assert operator.names("Job") == before and operator.names("Deployment") != []


def orphaned(operator: Operator, *, age: float) -> None:
    """Act as the garbage collector: the objects of the deleted job lose their owner. `age`: theirs, in seconds."""
    created = {"creationTimestamp": timestamp(time.time() - age)}
    for (kind, name), body in list(operator.api.objects.items()):
        if kind not in ("AgenticRLJob", "Pod"):
            operator.api.edit(kind, name, metadata={**body["metadata"], **created, "ownerReferences": []})


@pytest.mark.usefixtures("write_immediately")
async def test_orphans_of_an_earlier_job_are_refused_with_a_reason() -> None:
    """Their outcomes and prepared storage are not those of the new job; it holds nothing before they are deleted."""
    operator = Operator(manifest("g"))
    await operator.start_stage("g0")
    operator.run_orchestrator("g0")
    done = '{"stage": "g0", "attempt": 1, "outcome": "completed", "reason": "StepsReached"}'
    operator.api.edit("ConfigMap", "demo-progress", data={"outcome-g0.json": done})
    operator.delete("orphan")
    await operator.run()
    operator.api.drop("AgenticRLJob", "demo")
    orphaned(operator, age=60)
    again = manifest("g")
    again["metadata"]["uid"] = "uid-again"
    operator.api.put(again)
    before = operator.names("Job")
    await operator.run()
    message = operator.condition("Degraded")["message"]
    assert "NameConflict: belongs to an earlier job of this name, which was deleted without its objects" in message
    assert "kubectl delete jobs,deploy,sts" in message and "-l rstar2.dev/job=demo" in message
    assert (operator.status["phase"], operator.names("Job")) == ("Pending", before)
    assert "Waiting for the pods of attempt 1 of stage g0" in operator.status["message"]
    for kind, name in list(operator.api.objects):
        if kind not in ("AgenticRLJob", "PersistentVolumeClaim"):
            operator.api.drop(kind, name)
    await operator.until(lambda: operator.names("Job") == ["demo-prepare"])


async def test_objects_that_lost_their_owner_stay_with_the_job() -> None:
    """A webhook or another client removes owner references: the attempt continues, and its pods are not left alone."""
    operator = Operator(manifest("g"))
    await operator.start_stage("g0")
    orphaned(operator, age=-1)
    before = operator.names("Job")
    await operator.run()
    assert (operator.status["phase"], operator.names("Job")) == ("Running", before)
    operator.delete()
    await operator.until(lambda: operator.names("Deployment") == [] and operator.names("StatefulSet") == [])
    assert "demo-g0-1" not in operator.names("Job")


async def test_uninstall_removes_finalizers_after_its_limit() -> None:
    """The hook of helm uninstall ends without an operator too."""
    operator = Operator(manifest("g"))
    await operator.start_stage("g0")
    await delete_all(operator.api, ("lab",), limit=0.0)  # type: ignore[arg-type]
    assert ("AgenticRLJob", "demo") not in operator.api.objects


async def test_deletion_of_an_invalid_job_ends_its_pods() -> None:
    """A spec that the operator cannot use does not block the deletion."""
    operator = Operator(manifest("g"))
    await operator.start_stage("g0")
    operator.run_orchestrator("g0")
    operator.change(validation={"data": "report.jsonl", "everySteps": 1})
    operator.delete()
    await operator.run()
    assert operator.status["phase"] == "Deleting" and "is being deleted" in operator.status["message"]
    assert operator.names("Job") == ["demo-prepare"]
    operator.api.drop("Pod", "orchestrator")
    await operator.run()
    assert ("AgenticRLJob", "demo") not in operator.api.objects


@pytest.mark.usefixtures("write_immediately")
async def test_deletion_rejected_finalizer_is_reported() -> None:
    """Without the right to patch jobs, a job runs, and the problem is shown."""
    operator = Operator(manifest("g"))
    operator.api.rejected_kinds["AgenticRLJob"] = api_error(403, "Forbidden", "cannot patch resource agenticrljobs")
    await operator.run()
    assert operator.names("Job") == ["demo-prepare"]
    assert "cannot patch resource agenticrljobs" in operator.condition("Degraded")["message"]


def test_deletion_ends_if_a_policy_protects_the_claim() -> None:
    """A claim that the operator may not change stays; the deletion of its job does not wait for it."""
    cluster = at_first_stage("g")
    cluster.children["PersistentVolumeClaim", "demo-state"]["status"] = {"phase": "Pending"}
    cluster.delete_job()
    cluster.reconcile()
    cluster.terminate()
    cluster.round(1)
    cluster.finish_job("demo-report", 0)
    cluster.reject("PersistentVolumeClaim")
    for _ in range(3):
        cluster.reconcile()
    assert cluster.gone


def test_ttl_rejected_deletion_is_reported() -> None:
    """A policy that forbids the deletion of the job is named in its status, in the words of the API server."""
    cluster = at_first_stage("s", ttlSecondsAfterFinished=1)
    cluster.finish_stage("s0")
    cluster.round()
    cluster.finish_job("demo-report", 0)
    cluster.round()
    cluster.rejected_kinds = {"AgenticRLJob/delete": api_error(403, "Forbidden", "the policy keeps jobs")}
    cluster.now += 10
    cluster.round(1)
    degraded = next(each for each in cluster.job["status"]["conditions"] if each["type"] == "Degraded")
    assert "AgenticRLJob/demo: ApplyRejected: Forbidden: the policy keeps jobs" in degraded["message"]
    cluster.rejected_kinds = {}
    cluster.reconcile()
    assert "demo" not in cluster.jobs
