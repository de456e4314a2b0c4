"""The operator's policy, on a simulated cluster with a clock of its own: stages, suspension, deadlines and the end."""

from __future__ import annotations

import pytest

from rstar2_operator import names
from rstar2_operator.decide.stage_progress import EXIT_SECONDS
from rstar2_operator.observed import timestamp
from rstar2_train.api.contracts import Outcome
from tests.support.simulated_cluster import SimulatedCluster, at_first_stage, kinds, manifest


def test_decide_new_job_only_prepares_its_storage() -> None:
    """A new job runs the prepare Job, and nothing else."""
    cluster = SimulatedCluster(manifest())
    assert cluster.round().phase == "Preparing"
    assert cluster.running() == ["demo-prepare"]
    assert kinds(cluster, "Deployment") == []


def test_decide_stage_has_only_the_roles_it_needs() -> None:
    """SFT has no engines; GRPO has engines, judge and executors; a Filter stage has one pod."""
    cluster = at_first_stage("sgfe")
    assert cluster.running() == ["demo-s0-1"]
    assert kinds(cluster, "Deployment") == []
    cluster.finish_stage("s0")
    cluster.round()
    assert cluster.running() == ["demo-g1-1"]
    assert kinds(cluster, "Deployment") == ["demo-executor", "demo-judge", "demo-rollout"]
    assert cluster.children["Job", "demo-g1-1"]["spec"]["completions"] == 2
    cluster.finish_stage("g1")
    cluster.round()
    assert cluster.children["Job", "demo-f2-1"]["spec"]["completions"] == 1


def test_decide_finished_stage_keeps_its_job() -> None:
    """The Job of a finished stage, and so its log, stays while its pods exit; then the next stage starts."""
    cluster = at_first_stage("sg")
    cluster.report_success("s0")
    decision = cluster.round()
    assert (decision.phase, decision.reason, decision.stage) == ("Running", "WaitingForPodTermination", "s0")
    assert kinds(cluster, "Job") == ["demo-prepare", "demo-s0-1"] and kinds(cluster, "Deployment") == []
    cluster.finish_job("demo-s0-1", 0)
    cluster.round()
    assert ("Job", "demo-s0-1") in cluster.children and ("Job", "demo-g1-1") in cluster.children


@pytest.mark.parametrize("next_stage", ["g1", ""])
def test_pod_termination_hung_orchestrator_is_terminated(next_stage: str) -> None:
    """An orchestrator that does not exit after its success is terminated, and holds nothing back for longer."""
    cluster = at_first_stage("sg" if next_stage else "s")
    cluster.report_success("s0")
    decision = cluster.round()
    assert decision.wake_at == cluster.now + EXIT_SECONDS and ("Job", "demo-s0-1") in cluster.children
    assert decision.phase == ("Running" if next_stage else "Finalizing") and "demo-report" not in cluster.created_jobs
    cluster.now = decision.wake_at
    cluster.round()
    assert ("Job", "demo-s0-1") not in cluster.children and cluster.running() == ["demo-s0-1"]
    cluster.now += 60  # their node does not answer: the operator waits for an event
    assert cluster.round().wake_at is None
    cluster.finish_job("demo-s0-1", 137)
    cluster.round()
    assert cluster.running() == [f"demo-{next_stage}-1" if next_stage else "demo-report"]


@pytest.mark.parametrize("change", ["insert", "remove", "rename"])
def test_pod_termination_changed_stages_wait_for_old_pods(change: str) -> None:
    """No stage starts while pods of another stage use their grace period, also of one that the spec has no more."""
    cluster = at_first_stage("ge")
    cluster.progress("g0", 1, 2)
    stages = cluster.job["spec"]["stages"]
    if change == "insert":
        stages.insert(0, manifest("s")["spec"]["stages"][0])
    elif change == "remove":
        del stages[0]
    else:
        stages[0]["name"] = "other"
    decision = cluster.round()
    assert (decision.phase, decision.reason) == ("Pending", "WaitingForPodTermination")
    assert cluster.running() == ["demo-g0-1"] and ("Job", "demo-g0-1") not in cluster.children
    assert kinds(cluster, "Deployment") != []  # the checkpoint may need the engines
    cluster.finish_job("demo-g0-1", 75)
    cluster.round()
    assert cluster.running() == [{"insert": "demo-s0-1", "remove": "demo-e1-1", "rename": "demo-other-1"}[change]]


def test_pod_termination_recreated_job_waits_for_old_pods() -> None:
    """A recreated job prepares nothing while pods of the deleted job of its name run."""
    cluster = SimulatedCluster(manifest("g"))
    cluster.pods = at_first_stage("g").pods
    assert cluster.round().reason == "WaitingForPodTermination" and cluster.created_jobs == []
    cluster.pods.clear()
    cluster.round()
    assert cluster.created_jobs == ["demo-prepare"]


def test_decide_curriculum_succeeds_after_its_report() -> None:
    """After the last stage the report runs, then the job succeeds without any role."""
    cluster = at_first_stage("sge")
    for stage in ("s0", "g1", "e2"):
        cluster.finish_stage(stage)
        cluster.round()
    assert cluster.running() == ["demo-report"]
    assert cluster.job["status"]["phase"] == "Finalizing"
    cluster.finish_job("demo-report", 0)
    assert cluster.round().phase == "Succeeded"
    assert kinds(cluster, "Deployment") == []
    assert ("PersistentVolumeClaim", "demo-state") in cluster.children
    assert [row["phase"] for row in cluster.job["status"]["stages"]] == ["Succeeded"] * 3
    assert cluster.job["status"]["progressPercentage"] == 100
    assert cluster.created_jobs == ["demo-prepare", "demo-s0-1", "demo-g1-1", "demo-e2-1", "demo-report"]


def test_finalize_hanging_report_does_not_delay_the_end() -> None:
    """The job succeeds five minutes after the report was due."""
    cluster = at_first_stage("s")
    cluster.finish_stage("s0")
    cluster.round()
    cluster.now += 301
    assert cluster.round().phase == "Succeeded"


def test_decide_unchanged_job_writes_nothing() -> None:
    """A round without a change writes no object and no status."""
    cluster = at_first_stage("g")
    before = cluster.writes
    cluster.now += 3600
    for _ in range(5):
        cluster.reconcile()
    assert cluster.writes == before


def test_decide_new_attempt_waits_for_old_pods() -> None:
    """No attempt starts while a pod of the previous one may still run."""
    cluster = at_first_stage("g")
    cluster.finish_job("demo-g0-1", 1)
    cluster.pods["demo-g0-1-1"]["status"]["phase"] = "Running"  # on a node that does not answer
    decision = cluster.round()
    cluster.now += 3600
    decision = cluster.round()
    assert (decision.phase, decision.reason) == ("Pending", "WaitingForPodTermination")
    assert "demo-g0-2" not in cluster.created_jobs


def test_suspend_checkpoints_then_deletes_everything() -> None:
    """The Job is deleted first; engines and judge stay until the checkpoint is written; then the job resumes."""
    cluster = at_first_stage("g")
    cluster.progress("g0", 1, 2)
    cluster.job["spec"]["suspend"] = True
    assert cluster.round().phase == "Suspending"
    assert ("Job", "demo-g0-1") not in cluster.children
    assert kinds(cluster, "Deployment") != []  # the orchestrator may still need them
    stopped = Outcome(stage="g0", attempt=1, outcome="suspended", reason="Suspended")
    cluster.finish_job("demo-g0-1", 75, outcome=stopped)
    decision = cluster.round()
    assert decision.phase == "Suspended" and "terminationGracePeriodSeconds" not in decision.message
    assert kinds(cluster, "Deployment") == kinds(cluster, "StatefulSet") == []
    cluster.job["spec"]["suspend"] = False
    cluster.round()
    assert cluster.running() == ["demo-g0-2"]
    assert cluster.job["status"]["restarts"] == 0


def test_suspend_during_preparation_waits_for_its_pods() -> None:
    """A job is Suspended when no pod is left, also not the one that downloads."""
    cluster = SimulatedCluster(manifest("g"))
    cluster.round()
    cluster.job["spec"]["suspend"] = True
    decision = cluster.round()
    assert decision.phase == "Suspending" and "demo-prepare-0" in decision.message
    cluster.pods.clear()
    assert cluster.round().phase == "Suspended"
    cluster.job["spec"]["suspend"] = False
    cluster.round()
    assert cluster.running() == ["demo-prepare"]


def test_suspend_killed_orchestrator_is_reported() -> None:
    """A suspension without a checkpoint names spec.trainer.terminationGracePeriodSeconds."""
    cluster = at_first_stage("g")
    cluster.progress("g0", 1, 2)
    cluster.job["spec"]["suspend"] = True
    cluster.round()
    cluster.finish_job("demo-g0-1", 137)
    decision = cluster.round()
    assert decision.phase == "Suspended" and "terminationGracePeriodSeconds" in decision.message


def test_decide_failing_job_is_not_training() -> None:
    """A Job that has failed, and waits for its last pod, is not reported as training."""
    cluster = at_first_stage("g")
    cluster.progress("g0", 1, 2)
    target = {"type": "FailureTarget", "status": "True", "message": "Job has reached the specified backoff limit"}
    target["lastTransitionTime"] = timestamp(cluster.now)
    cluster.children["Job", "demo-g0-1"]["status"] = {"conditions": [target]}
    decision = cluster.round()
    training = next(each for each in cluster.job["status"]["conditions"] if each["type"] == "Training")
    assert decision.reason == "WaitingForPodTermination" and ("Job", "demo-g0-1") in cluster.children
    assert training["status"] == "False" and "It has failed; waiting for its pods" in training["message"]


def test_active_deadline_ignores_the_report() -> None:
    """The deadline does not fail a job whose stages have all succeeded in time."""
    cluster = at_first_stage("s", activeDeadlineSeconds=600)
    cluster.finish_stage("s0")
    decision = cluster.round()
    assert decision.phase == "Finalizing"
    cluster.now += 601
    cluster.round()
    cluster.finish_job("demo-report", 0)
    assert cluster.round().phase == "Succeeded"


def test_active_deadline_fails_the_job() -> None:
    """A job that is active for longer than activeDeadlineSeconds fails."""
    cluster = at_first_stage("g", activeDeadlineSeconds=600)
    decision = cluster.decision()
    assert decision.wake_at is not None
    cluster.now = decision.wake_at
    decision = cluster.round()
    assert (decision.phase, decision.reason) == ("Finalizing", "DeadlineExceeded")
    assert "Waiting for the pods of stage g0 to terminate" in decision.message
    assert kinds(cluster, "Deployment") != []  # the checkpoint may need the engines
    assert cluster.running() == ["demo-g0-1"] and "demo-report" not in cluster.created_jobs
    cluster.now += 7200  # spec.trainer.terminationGracePeriodSeconds
    assert cluster.round().phase == "Finalizing"
    cluster.finish_job("demo-g0-1", 75)
    cluster.round()
    assert cluster.running() == ["demo-report"] and kinds(cluster, "Deployment") == []
    engine = {
        "metadata": {"name": "demo-rollout-x", "labels": {**names.labels("demo", "rollout"), names.BATCH_JOB_LABEL: ""}}
    }
    cluster.pods["demo-rollout-x"] = engine | {"status": {"phase": "Running"}}
    cluster.finish_job("demo-report", 0)
    decision = cluster.round()
    assert decision.phase == "Finalizing" and "Waiting for pods to terminate: demo-rollout-x" in decision.message
    del cluster.pods["demo-rollout-x"]
    decision = cluster.round()
    assert (decision.phase, decision.reason) == ("Failed", "DeadlineExceeded")


def test_active_deadline_stops_during_suspension() -> None:
    """A suspended job has no deadline; after a resume the time starts again."""
    cluster = at_first_stage("g", activeDeadlineSeconds=600)
    cluster.job["spec"]["suspend"] = True
    cluster.pods.clear()
    assert cluster.round().phase == "Suspended"
    cluster.now += 3600
    decision = cluster.round()
    assert (decision.phase, decision.wake_at) == ("Suspended", None)
    cluster.job["spec"]["suspend"] = False
    decision = cluster.round()
    assert decision.phase == "Running" and decision.wake_at == cluster.now + 600
    cluster.now += 600
    assert cluster.round().reason == "DeadlineExceeded"


def test_ttl_after_finished_deletes_the_job() -> None:
    """A finished job is deleted after ttlSecondsAfterFinished."""
    cluster = at_first_stage("s", ttlSecondsAfterFinished=100)
    cluster.finish_stage("s0")
    cluster.round()
    cluster.finish_job("demo-report", 0)
    decision = cluster.round()
    assert decision.phase == "Succeeded" and not decision.delete and decision.wake_at is not None
    cluster.now = decision.wake_at
    assert cluster.decision().delete


def test_decide_failed_preparation_fails_the_job() -> None:
    """Faulty data fails the job with the message of the prepare Job."""
    cluster = SimulatedCluster(manifest())
    cluster.round()
    failed = Outcome(
        stage="prepare", attempt=1, outcome="failed", reason="BadData", message="/data/rl.jsonl: no such file"
    )
    cluster.patch_progress("prepare.json", failed.model_dump(mode="json", exclude_none=True))
    cluster.finish_job("demo-prepare", 78)
    decision = cluster.round()
    assert decision.phase == "Failed" and "no such file" in decision.message


def test_report_of_an_end_that_did_not_come_is_repeated() -> None:
    """A raised deadline continues the job; the report about its later end is another one."""
    cluster = at_first_stage("s", activeDeadlineSeconds=1000)
    cluster.now += 1000
    cluster.round()
    cluster.terminate()
    cluster.round()
    cluster.job["spec"]["activeDeadlineSeconds"] = 100_000
    cluster.finish_job("demo-report", 0)
    cluster.round()
    cluster.finish_stage("s0", 2)
    cluster.round()
    assert cluster.created_jobs.count("demo-report") == 2
    (container,) = cluster.children["Job", "demo-report"]["spec"]["template"]["spec"]["containers"]
    assert container["command"][-2:] == ["--ending", "completed"]
