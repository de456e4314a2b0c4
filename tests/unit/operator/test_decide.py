"""The operator's policy, on a simulated cluster with a clock of its own."""

from __future__ import annotations

import pytest

from rstar2_operator.decide.diagnostics import SILENT_SECONDS, STUCK_SECONDS, next_overdue_at
from rstar2_operator.observed import timestamp
from rstar2_train.api.contracts import Outcome
from tests.support.simulated_cluster import SimulatedCluster, at_first_stage, kinds, manifest


def test_a_job_begins_with_its_storage_and_nothing_else_runs() -> None:
    cluster = SimulatedCluster(manifest())
    assert cluster.round().phase == "Preparing"
    assert cluster.running() == ["demo-prepare"]
    assert kinds(cluster, "Deployment") == []


def test_each_stage_has_only_the_roles_that_it_needs() -> None:
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


def test_a_stage_whose_driver_is_done_keeps_its_job_and_its_log() -> None:
    cluster = at_first_stage("sg")
    done = Outcome(stage="s0", attempt=1, outcome="completed", reason="StepsReached")
    cluster.patch_progress("outcome-s0.json", done.model_dump(mode="json"))  # its pods are still ending
    cluster.round()
    assert ("Job", "demo-s0-1") in cluster.children and ("Job", "demo-g1-1") in cluster.children


def test_the_whole_curriculum_ends_complete_with_a_report() -> None:
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


def test_a_report_that_hangs_does_not_hold_the_end_up() -> None:
    cluster = at_first_stage("s")
    cluster.finish_stage("s0")
    cluster.round()
    cluster.now += 301
    assert cluster.round().phase == "Succeeded"


def test_nothing_is_written_when_nothing_changes() -> None:
    cluster = at_first_stage("g")
    before = cluster.writes
    cluster.now += 3600
    for _ in range(5):
        cluster.reconcile()
    assert cluster.writes == before


def test_a_crash_is_restarted_after_a_pause_and_counted() -> None:
    cluster = at_first_stage("g")
    cluster.finish_job("demo-g0-1", 137)
    plan = cluster.round()
    assert (plan.phase, plan.reason) == ("Pending", "BackOff")
    assert plan.wake_at is not None and "137" in plan.message
    assert kinds(cluster, "Deployment") != []  # engines stay: only the driver starts again
    cluster.now = plan.wake_at
    cluster.round()
    assert cluster.running() == ["demo-g0-2"]
    assert cluster.job["status"]["restarts"] == 1
    assert cluster.job["status"]["restartsCountedTowardsMax"] == 1


def test_configuration_errors_fail_at_once_with_the_drivers_words() -> None:
    cluster = at_first_stage("s")
    failed = Outcome(stage="s0", attempt=1, outcome="failed", reason="BadData", message="row 3 has no messages")
    cluster.finish_job("demo-s0-1", 78, outcome=failed)
    assert cluster.round().phase == "Finalizing"
    cluster.finish_job("demo-report", 0)
    plan = cluster.round()
    assert plan.phase == "Failed" and "row 3 has no messages" in plan.message
    assert cluster.job["status"]["stages"][0]["phase"] == "Failed"
    assert cluster.round().phase == "Failed"


def test_restarts_end_at_the_maximum() -> None:
    cluster = at_first_stage("g", failurePolicy={"maxRestarts": 2})
    for attempt in (1, 2, 3):
        assert cluster.running() == [f"demo-g0-{attempt}"]
        cluster.finish_job(f"demo-g0-{attempt}", 1)
        plan = cluster.round()
        cluster.now = plan.wake_at or cluster.now
        cluster.round()
    assert cluster.running() == ["demo-report"]
    assert "maxRestarts" in cluster.job["status"]["message"]


def test_a_new_attempt_waits_for_the_last_pod_of_the_old_one() -> None:
    cluster = at_first_stage("g")
    cluster.finish_job("demo-g0-1", 1)
    cluster.pods["demo-g0-1-1"]["status"]["phase"] = "Running"  # on a node that does not answer
    plan = cluster.round()
    cluster.now += 3600
    plan = cluster.round()
    assert (plan.phase, plan.reason) == ("Pending", "WaitingForPodTermination")
    assert "demo-g0-2" not in cluster.created_jobs


def test_suspending_checkpoints_first_and_then_holds_nothing() -> None:
    cluster = at_first_stage("g")
    cluster.progress("g0", 1, 2)
    cluster.job["spec"]["suspend"] = True
    assert cluster.round().phase == "Suspending"
    assert ("Job", "demo-g0-1") not in cluster.children
    assert kinds(cluster, "Deployment") != []  # the driver may still need them
    stopped = Outcome(stage="g0", attempt=1, outcome="suspended", reason="Suspended")
    cluster.finish_job("demo-g0-1", 75, outcome=stopped)
    plan = cluster.round()
    assert plan.phase == "Suspended" and "terminationGracePeriodSeconds" not in plan.message
    assert kinds(cluster, "Deployment") == kinds(cluster, "StatefulSet") == []
    cluster.job["spec"]["suspend"] = False
    cluster.round()
    assert cluster.running() == ["demo-g0-2"]
    assert cluster.job["status"]["restarts"] == 0


def test_a_suspension_that_left_no_time_for_a_checkpoint_says_so() -> None:
    cluster = at_first_stage("g")
    cluster.progress("g0", 1, 2)
    cluster.job["spec"]["suspend"] = True
    cluster.round()
    cluster.finish_job("demo-g0-1", 137)
    plan = cluster.round()
    assert plan.phase == "Suspended" and "terminationGracePeriodSeconds" in plan.message


def test_a_driver_that_was_stopped_by_a_drained_node_starts_again_uncounted() -> None:
    cluster = at_first_stage("g")
    stopped = Outcome(stage="g0", attempt=1, outcome="suspended", reason="Suspended")
    evicted = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    for pod in cluster.pods.values():
        pod["status"]["conditions"] = [*pod["status"].get("conditions", []), evicted]
    cluster.finish_job("demo-g0-1", 75, outcome=stopped)
    cluster.now += 10
    cluster.round()
    assert cluster.running() == ["demo-g0-2"]
    assert (cluster.job["status"]["restarts"], cluster.job["status"]["restartsCountedTowardsMax"]) == (1, 0)


@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize("code", [75, 137])
def test_a_drained_node_counts_nothing_though_its_pod_is_gone_or_had_no_time(gone: bool, code: int) -> None:
    cluster = at_first_stage("g", failurePolicy={"maxRestarts": 0})
    cluster.pods["demo-g0-1-1"]["status"]["conditions"] = [{"type": "DisruptionTarget", "status": "True"}]
    cluster.round()
    if gone:
        del cluster.pods["demo-g0-1-1"]
    stopped = Outcome(stage="g0", attempt=1, outcome="suspended", reason="Suspended")
    cluster.finish_job("demo-g0-1", code, outcome=stopped if code == 75 else None)
    cluster.now += 10
    cluster.round()
    assert cluster.running() == ["demo-g0-2"]
    assert (cluster.job["status"]["restarts"], cluster.job["status"]["restartsCountedTowardsMax"]) == (1, 0)


def test_a_drained_node_excuses_no_mistake_in_the_manifest() -> None:
    cluster = at_first_stage("g")
    cluster.pods["demo-g0-1-1"]["status"]["conditions"] = [{"type": "DisruptionTarget", "status": "True"}]
    cluster.finish_job("demo-g0-1", 78)
    cluster.round()
    assert cluster.running() == ["demo-report"]


def test_a_worker_pod_that_dies_again_and_again_ends_the_job_though_its_driver_always_checkpoints() -> None:
    cluster = at_first_stage("g", failurePolicy={"maxRestarts": 2})
    for attempt in (1, 2, 3):
        assert cluster.running() == [f"demo-g0-{attempt}"]
        stopped = Outcome(stage="g0", attempt=attempt, outcome="suspended", reason="Suspended")
        cluster.finish_job(f"demo-g0-{attempt}", 75, outcome=stopped)
        cluster.now += 600
        plan = cluster.round()
    assert cluster.running() == ["demo-report"]
    assert "PodLost" in plan.message and cluster.job["status"]["restartsCountedTowardsMax"] == 2


def test_a_job_that_cannot_be_scheduled_lets_go_of_everything_and_comes_back() -> None:
    cluster = at_first_stage("g", pendingDeadlineSeconds=60)
    cluster.pods["demo-g0-1-1"]["status"] = {
        "phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                        "message": "0/3 nodes are available: 3 Insufficient amd.com/gpu."}],
    }  # fmt: skip
    plan = cluster.round()
    assert plan.phase == "Running" and plan.wake_at is not None
    degraded = next(one for one in cluster.job["status"]["conditions"] if one["type"] == "Degraded")
    assert degraded["status"] == "True" and "Insufficient amd.com/gpu" in degraded["message"]
    training = next(one for one in cluster.job["status"]["conditions"] if one["type"] == "Training")
    assert training["reason"] == "Unschedulable" and "Free or add nodes" in training["message"]
    cluster.now = plan.wake_at
    plan = cluster.round()
    assert (plan.phase, plan.reason) == ("Pending", "SchedulingTimeout")
    assert "3 Insufficient amd.com/gpu" in plan.message and "Free or add nodes" in plan.message
    assert kinds(cluster, "Deployment") == [] and ("Job", "demo-g0-1") not in cluster.children
    assert timestamp(cluster.plan().wake_at or 0.0) in plan.message
    cluster.pods.clear()
    assert cluster.round().phase == "Pending"
    assert plan.wake_at is None or plan.wake_at > cluster.now
    cluster.now = cluster.plan().wake_at or 0.0
    cluster.round()
    assert cluster.running() == ["demo-g0-2"]


def test_many_pods_with_one_cause_do_not_hide_another() -> None:
    cluster = at_first_stage("g")
    words = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node"}
    image = {"waiting": {"reason": "ErrImagePull", "message": "no image"}}
    for number in range(40):
        name, labels = f"demo-executor-{number}", {"rstar2.dev/job": "demo", "rstar2.dev/role": "executor"}
        pending = {"phase": "Pending", "conditions": [words]}
        cluster.pods[name] = {"kind": "Pod", "metadata": {"name": name, "labels": labels}, "status": pending}
    cluster.pods["demo-g0-1-1"]["status"] = {"phase": "Pending", "containerStatuses": [{"name": "x", "state": image}]}
    cluster.round()
    one = next(one for one in cluster.job["status"]["conditions"] if one["type"] == "Degraded")
    assert one["reason"] == "Unschedulable"
    lines = one["message"].splitlines()
    assert len(lines) == 7 and "executor-0" in lines[0] and "no image" in lines[1] and lines[6] == "and 35 more"


@pytest.mark.parametrize("driver", ["none", "waits"])
def test_a_job_whose_sandboxes_cannot_be_made_holds_no_accelerators_for_ever(driver: str) -> None:
    cluster = at_first_stage("g", pendingDeadlineSeconds=60)
    if driver == "waits":
        cluster.progress("g0", 1, 0, phase="Starting")
    words = 'pods "demo-executor-" is forbidden: pod rejected: RuntimeClass "gvisor" not found'
    refused = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": words}
    cluster.children["Deployment", "demo-executor"]["status"] = {"conditions": [refused]}
    plan = cluster.reconcile()
    judge = next(one for one in cluster.job["status"]["conditions"] if one["type"] == "JudgeReady")
    assert 'RuntimeClass "gvisor" not found' in judge["message"] and plan.wake_at is not None
    cluster.now = plan.wake_at
    plan = cluster.reconcile()
    assert (plan.phase, plan.reason) == ("Pending", "SchedulingTimeout")
    assert "demo-executor" in plan.message and kinds(cluster, "Deployment") == []


@pytest.mark.parametrize("made", [0, 1])
def test_a_job_whose_trainer_pods_a_quota_refuses_lets_go_of_its_engines(made: int) -> None:
    cluster = at_first_stage("g", pendingDeadlineSeconds=60)
    cluster.children["Job", "demo-g0-1"]["status"] = {"active": made}
    cluster.pods = {name: pod for name, pod in cluster.pods.items() if name == "demo-g0-1-0" and made}
    plan = cluster.reconcile()
    assert plan.phase == "Running" and plan.wake_at is not None
    cluster.now = plan.wake_at
    plan = cluster.reconcile()
    assert (plan.phase, plan.reason) == ("Pending", "SchedulingTimeout") and "demo-g0-1" in plan.message
    assert kinds(cluster, "Deployment") == []


def test_a_pod_that_cannot_end_is_told_with_its_node() -> None:
    cluster = at_first_stage("g")
    pod = cluster.pods["demo-g0-1-1"]
    pod["metadata"]["deletionTimestamp"] = timestamp(cluster.now)
    cluster.round()
    assert degraded(cluster) is None
    when = next_overdue_at(cluster.observed(), now=cluster.now)
    assert when == cluster.now + STUCK_SECONDS
    cluster.now = when
    cluster.round()
    told = degraded(cluster)
    assert told is not None and told["reason"] == "PodStuckTerminating" and "taint nodes node-1 " in told["message"]
    before = cluster.writes
    cluster.now += 3600
    cluster.round()
    assert cluster.writes == before and next_overdue_at(cluster.observed(), now=cluster.now) is None


def test_a_driver_that_does_not_report_while_all_its_pods_run_is_told() -> None:
    cluster = at_first_stage("g")
    for name in ("demo-g0-1-0", "demo-g0-1-1"):
        begun = {"running": {"startedAt": timestamp(cluster.now)}}
        cluster.pods[name]["status"]["containerStatuses"] = [{"name": "x", "state": begun}]
    cluster.round()
    when = next_overdue_at(cluster.observed(), now=cluster.now)
    assert when == cluster.now + SILENT_SECONDS and degraded(cluster) is None
    cluster.now = when
    cluster.round()
    told = degraded(cluster)
    assert told is not None and told["reason"] == "DriverNotReporting"
    assert "kubectl logs -l batch.kubernetes.io/job-name=demo-g0-1 " in told["message"]
    cluster.progress("g0", 1, 0, phase="Starting")
    cluster.round()
    assert degraded(cluster) is None and next_overdue_at(cluster.observed(), now=cluster.now) is None


def degraded(cluster: SimulatedCluster) -> dict[str, str] | None:
    """The condition, when it is true."""
    one = next(one for one in cluster.job["status"]["conditions"] if one["type"] == "Degraded")
    return one if one["status"] == "True" else None


def test_pods_replaced_while_training_release_nothing() -> None:
    cluster = at_first_stage("g", pendingDeadlineSeconds=60)
    cluster.progress("g0", 1, 2)
    cluster.pods["demo-g0-1-1"]["status"] = {"phase": "Pending"}
    cluster.now += 3600
    assert cluster.round().phase == "Running"


def test_a_driver_that_starts_where_something_of_each_role_serves_is_let_go_on() -> None:
    cluster = at_first_stage("g", pendingDeadlineSeconds=60)
    cluster.progress("g0", 1, 0, phase="Starting")
    cluster.pods["demo-g0-1-1"]["status"] = {"phase": "Pending"}
    cluster.now += 3600
    assert cluster.round().phase == "Running"


def test_a_job_whose_stages_are_done_in_time_does_not_fail_while_it_is_reported() -> None:
    cluster = at_first_stage("s", activeDeadlineSeconds=600)
    cluster.finish_stage("s0")
    plan = cluster.round()
    assert plan.phase == "Finalizing"
    cluster.now += 601
    cluster.round()
    cluster.finish_job("demo-report", 0)
    assert cluster.round().phase == "Succeeded"


def test_the_active_deadline_fails_the_job() -> None:
    cluster = at_first_stage("g", activeDeadlineSeconds=600)
    plan = cluster.plan()
    assert plan.wake_at is not None
    cluster.now = plan.wake_at
    cluster.round()
    cluster.finish_job("demo-report", 0)
    plan = cluster.round()
    assert (plan.phase, plan.reason) == ("Failed", "DeadlineExceeded")


def test_the_active_deadline_stands_still_while_the_job_is_suspended() -> None:
    cluster = at_first_stage("g", activeDeadlineSeconds=600)
    cluster.job["spec"]["suspend"] = True
    cluster.pods.clear()
    assert cluster.round().phase == "Suspended"
    cluster.now += 3600
    plan = cluster.round()
    assert (plan.phase, plan.wake_at) == ("Suspended", None)
    cluster.job["spec"]["suspend"] = False
    plan = cluster.round()
    assert plan.phase == "Running" and plan.wake_at == cluster.now + 600
    cluster.now += 600
    assert cluster.round().reason == "DeadlineExceeded"


def test_a_finished_job_goes_when_its_time_to_live_is_over() -> None:
    cluster = at_first_stage("s", ttlSecondsAfterFinished=100)
    cluster.finish_stage("s0")
    cluster.round()
    cluster.finish_job("demo-report", 0)
    plan = cluster.round()
    assert plan.phase == "Succeeded" and not plan.delete and plan.wake_at is not None
    cluster.now = plan.wake_at
    assert cluster.plan().delete


def test_wrong_data_is_told_by_the_preparation() -> None:
    cluster = SimulatedCluster(manifest())
    cluster.round()
    failed = Outcome(
        stage="prepare", attempt=1, outcome="failed", reason="BadData", message="/data/rl.jsonl: no such file"
    )
    cluster.patch_progress("prepare.json", failed.model_dump(mode="json", exclude_none=True))
    cluster.finish_job("demo-prepare", 78)
    plan = cluster.round()
    assert plan.phase == "Failed" and "no such file" in plan.message
