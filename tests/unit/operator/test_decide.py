"""The operator's policy, on a simulated cluster with a clock of its own."""

from __future__ import annotations

import copy

import pytest

from rstar2_operator import names
from rstar2_operator.decide.diagnostics import SILENT_SECONDS, STUCK_SECONDS, next_overdue_at
from rstar2_operator.decide.stage_progress import EXIT_SECONDS
from rstar2_operator.node_health import NodeFault
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


def test_failure_policy_exit_code_is_of_the_own_pod() -> None:
    """The exit code of a pod of a deleted job with the same name does not count."""
    cluster = at_first_stage("g")
    old = copy.deepcopy(cluster.pods["demo-g0-1-0"])
    cluster.finish_job("demo-g0-1", 137)
    old["metadata"] |= {"name": "old", "ownerReferences": [{"controller": True, "uid": "another"}]}
    ended = {"name": "trainer", "state": {"terminated": {"exitCode": 78}}}
    old["status"] = {"phase": "Failed", "containerStatuses": [ended]}
    cluster.pods = {"old": old, **cluster.pods}
    decision = cluster.round()
    assert decision.reason == "BackOff" and "137" in decision.message


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


def test_failure_policy_crash_restarts_after_backoff() -> None:
    """A crash restarts the stage after a backoff, keeps the engines, and counts."""
    cluster = at_first_stage("g")
    cluster.finish_job("demo-g0-1", 137)
    decision = cluster.round()
    assert (decision.phase, decision.reason) == ("Pending", "BackOff")
    assert decision.wake_at is not None and "137" in decision.message
    assert kinds(cluster, "Deployment") != []  # engines stay: only the orchestrator starts again
    cluster.now = decision.wake_at
    cluster.round()
    assert cluster.running() == ["demo-g0-2"]
    assert cluster.job["status"]["restarts"] == 1
    assert cluster.job["status"]["restartsCountedTowardsMax"] == 1


def test_failure_policy_configuration_error_fails_the_job() -> None:
    """A configuration error fails the job without a restart, with the orchestrator's message."""
    cluster = at_first_stage("s")
    failed = Outcome(stage="s0", attempt=1, outcome="failed", reason="BadData", message="row 3 has no messages")
    cluster.finish_job("demo-s0-1", 78, outcome=failed)
    assert cluster.round().phase == "Finalizing"
    cluster.finish_job("demo-report", 0)
    decision = cluster.round()
    assert decision.phase == "Failed" and "row 3 has no messages" in decision.message
    assert cluster.job["status"]["stages"][0]["phase"] == "Failed"
    assert cluster.round().phase == "Failed"


def test_failure_policy_restarts_stop_at_the_maximum() -> None:
    """After maxRestarts the next failure fails the job."""
    cluster = at_first_stage("g", failurePolicy={"maxRestarts": 2})
    for attempt in (1, 2, 3):
        assert cluster.running() == [f"demo-g0-{attempt}"]
        cluster.finish_job(f"demo-g0-{attempt}", 1)
        decision = cluster.round()
        cluster.now = decision.wake_at or cluster.now
        cluster.round()
    assert cluster.running() == ["demo-report"]
    assert "maxRestarts" in cluster.job["status"]["message"]


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


def test_failure_policy_drained_node_is_not_counted() -> None:
    """An eviction restarts the stage and does not count towards maxRestarts."""
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
def test_failure_policy_drained_node_without_pod_or_checkpoint(gone: bool, code: int) -> None:
    """A disruption is not counted even if its pod is deleted, or had no time for a checkpoint."""
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


def evict(cluster: SimulatedCluster, attempt: int) -> None:
    """End an attempt by an eviction; the pod is deleted, and the operator restarts."""
    cluster.pods[f"demo-g0-{attempt}-1"]["status"]["conditions"] = [{"type": "DisruptionTarget", "status": "True"}]
    cluster.reconcile()
    cluster.finish_job(f"demo-g0-{attempt}", 137)
    del cluster.pods[f"demo-g0-{attempt}-1"]
    cluster.disrupted.clear()
    cluster.now += 600
    cluster.round()


def test_disruption_without_progress_is_limited() -> None:
    """After ten disruptions in a row without a checkpoint, more of them count, also if the operator restarts."""
    cluster = at_first_stage("g", failurePolicy={"maxRestarts": 2})
    for attempt in range(1, 13):
        assert cluster.running() == [f"demo-g0-{attempt}"]
        evict(cluster, attempt)
        assert cluster.job["status"]["restartsCountedTowardsMax"] == max(0, attempt - 10)
    evict(cluster, 13)
    assert cluster.running() == ["demo-report"]
    assert "13 times in a row without a new checkpoint" in cluster.job["status"]["message"]


def test_disruption_with_progress_never_counts() -> None:
    """Disruptions of attempts that each wrote a checkpoint do not count, however many there are."""
    cluster = at_first_stage("g", failurePolicy={"maxRestarts": 0})
    for attempt in range(1, 15):
        checkpoint = {"path": f"stages/g0/checkpoints/{attempt}", "step": attempt}
        cluster.patch_progress("progress.json", {"stage": "g0", "attempt": attempt, "checkpoint": checkpoint})
        cluster.reconcile()
        evict(cluster, attempt)
    assert cluster.running() == ["demo-g0-15"] and cluster.job["status"]["restartsCountedTowardsMax"] == 0
    assert cluster.children["Job", "demo-g0-15"]["metadata"]["annotations"]["rstar2.dev/start-step"] == "14"


def test_disruption_by_pressure_counts() -> None:
    """An eviction by pressure on the node counts, and the reason is the kubelet's message."""
    cluster = at_first_stage("g", failurePolicy={"maxRestarts": 0})
    message = "The node was low on resource: ephemeral-storage."
    cluster.pods["demo-g0-1-0"]["status"] |= {"reason": "Evicted", "message": message}
    evict(cluster, 1)
    assert cluster.running() == ["demo-report"] and message in cluster.job["status"]["message"]


def test_failure_policy_rule_applies_to_disruptions() -> None:
    """A rule that matches a disrupted attempt decides, also whether it counts."""
    rule = {"onExitCodes": [137], "action": "RestartStage", "countsTowardsMax": True}
    cluster = at_first_stage("g", failurePolicy={"rules": [rule]})
    evict(cluster, 1)
    assert cluster.job["status"]["restartsCountedTowardsMax"] == 1


def test_failure_policy_out_of_memory_names_the_limit() -> None:
    """A pod that was killed at its memory limit names the field to raise."""
    cluster = at_first_stage("g")
    cluster.finish_job("demo-g0-1", 137)
    status = cluster.pods["demo-g0-1-1"]["status"]
    ended = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    status["containerStatuses"] = [{"name": "trainer", "state": ended}]
    limits = {"limits": {"memory": "64Gi"}}
    cluster.pods["demo-g0-1-1"]["spec"]["containers"] = [{"name": "trainer", "resources": limits}]
    decision = cluster.reconcile()
    assert "OOMKilled: Pod/demo-g0-1-1: container trainer reached its memory limit of 64Gi" in decision.message
    assert "trainer.resources.limits.memory" in decision.message


def test_diagnostics_engine_out_of_memory_names_its_field() -> None:
    """A crashing engine that was killed at its memory limit names its own field."""
    cluster = at_first_stage("g")
    last = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}
    container = {"name": "engine", "state": waiting, "lastState": last}
    cluster.pods["demo-rollout-x"] = role_pod(cluster, "rollout", {"containerStatuses": [container]})
    cluster.reconcile()
    problem = degraded(cluster)
    assert problem is not None and problem["reason"] == "OOMKilled"
    assert "increase spec.rollout.resources.limits.memory" in problem["message"]


def role_pod(cluster: SimulatedCluster, role: str, status: dict[str, object]) -> dict[str, object]:
    """A running pod of a role."""
    labels = {**names.labels("demo", role), names.BATCH_JOB_LABEL: ""}
    meta = {"name": f"demo-{role}-x", "labels": labels, "creationTimestamp": timestamp(cluster.now)}
    return {"metadata": meta, "spec": {"nodeName": "node-1"}, "status": {"phase": "Running", **status}}


@pytest.mark.parametrize("action", ["FailJob", "RestartStage"])
@pytest.mark.parametrize("rule", [{"onExitCodes": [137]}, {"onReasons": ["OOMKilled"]}])
def test_failure_policy_rule_of_a_role_ends_the_attempt(rule: dict[str, object], action: str) -> None:
    """A rule with roles ends the attempt when a pod of the role fails; failures before the attempt do not match."""
    rules = [{"roles": ["rollout"], "action": action, **rule}]
    cluster = at_first_stage("g", failurePolicy={"maxRestarts": 3, "rules": rules})
    ended = {"exitCode": 137, "reason": "OOMKilled", "finishedAt": timestamp(cluster.now - 60)}
    container = {"name": "engine", "lastState": {"terminated": ended}}
    cluster.pods["demo-rollout-x"] = role_pod(cluster, "rollout", {"containerStatuses": [container]})
    assert cluster.reconcile().reason == "Running"
    ended["finishedAt"] = timestamp(cluster.now)
    decision = cluster.reconcile()
    assert decision.reason == "RoleFailed" and "Pod/demo-rollout-x of role rollout failed" in decision.message
    del cluster.pods["demo-rollout-x"]  # the record survives the loss of the cause
    cluster.reconcile()
    assert ("Job", "demo-g0-1") not in cluster.children
    cluster.finish_job("demo-g0-1", 75)
    cluster.round()
    cluster.now += 6
    cluster.round()
    assert cluster.running() == ["demo-report" if action == "FailJob" else "demo-g0-2"]
    assert cluster.job["status"]["restartsCountedTowardsMax"] == (action == "RestartStage")
    cluster.now += 60
    assert cluster.round().reason != "RoleFailed"  # counted one time


def test_failure_policy_rule_on_a_pod_condition_decides() -> None:
    """A rule on DisruptionTarget applies also if the orchestrator wrote a checkpoint, and the pod is gone."""
    rule = {"onPodConditions": ["DisruptionTarget"], "action": "FailJob"}
    cluster = at_first_stage("g", failurePolicy={"rules": [rule]})
    cluster.pods["demo-g0-1-1"]["status"]["conditions"] = [{"type": "DisruptionTarget", "status": "True"}]
    cluster.round()
    del cluster.pods["demo-g0-1-1"]
    stopped = Outcome(stage="g0", attempt=1, outcome="suspended", reason="Suspended")
    cluster.finish_job("demo-g0-1", 75, outcome=stopped)
    cluster.round()
    assert cluster.running() == ["demo-report"] and "Disrupted" in cluster.job["status"]["message"]


@pytest.mark.parametrize("pause", [600, 4000])
def test_failure_policy_window_limits_what_counts(pause: int) -> None:
    """Counted restarts of an earlier window do not count, also if status or Job is lost."""
    cluster = at_first_stage("g", failurePolicy={"maxRestarts": 1, "windowSeconds": 3600})
    for attempt in (1, 2):
        cluster.finish_job(f"demo-g0-{attempt}", 1)
        cluster.round()
        cluster.now += pause
        cluster.round()
    assert cluster.running() == (["demo-g0-3"] if pause > 3600 else ["demo-report"])


def test_failure_policy_backoff_resets_after_progress() -> None:
    """The backoff doubles with each failure, and starts again after a new checkpoint."""
    cluster = at_first_stage("g", failurePolicy={"maxRestarts": 100})
    backoffs = []
    for attempt in range(1, 6):
        if attempt == 4:
            checkpoint = {"path": "stages/g0/checkpoints/3", "step": 3}
            cluster.patch_progress("progress.json", {"stage": "g0", "attempt": attempt, "checkpoint": checkpoint})
            cluster.reconcile()
        cluster.finish_job(f"demo-g0-{attempt}", 1)
        decision = cluster.reconcile()
        backoffs.append((decision.wake_at or 0) - cluster.now)
        cluster.now = decision.wake_at or 0.0
        cluster.round()
    assert backoffs == [5, 10, 20, 5, 10]


def test_failure_policy_drained_node_hides_no_wrong_config() -> None:
    """A configuration error fails the job also after a disruption."""
    cluster = at_first_stage("g")
    cluster.pods["demo-g0-1-1"]["status"]["conditions"] = [{"type": "DisruptionTarget", "status": "True"}]
    cluster.finish_job("demo-g0-1", 78)
    cluster.round()
    assert cluster.running() == ["demo-report"]


def test_failure_policy_lost_workers_fail_the_job() -> None:
    """A worker pod that crashes in every attempt exhausts maxRestarts, even if each attempt wrote a checkpoint."""
    cluster = at_first_stage("g", failurePolicy={"maxRestarts": 2})
    for attempt in (1, 2, 3):
        assert cluster.running() == [f"demo-g0-{attempt}"]
        stopped = Outcome(stage="g0", attempt=attempt, outcome="suspended", reason="Suspended")
        cluster.finish_job(f"demo-g0-{attempt}", 75, outcome=stopped)
        cluster.now += 600
        decision = cluster.round()
    assert cluster.running() == ["demo-report"]
    assert "PodLost" in decision.message and cluster.job["status"]["restartsCountedTowardsMax"] == 2


def test_pending_deadline_releases_all_pods_and_retries() -> None:
    """After pendingDeadlineSeconds all pods are deleted, and a new attempt starts at status.nextRetryTime."""
    cluster = at_first_stage("g", pendingDeadlineSeconds=60)
    cluster.pods["demo-g0-1-1"]["status"] = {
        "phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                        "message": "0/3 nodes are available: 3 Insufficient amd.com/gpu."}],
    }  # fmt: skip
    decision = cluster.round()
    assert decision.phase == "Running" and decision.wake_at is not None
    degraded = next(each for each in cluster.job["status"]["conditions"] if each["type"] == "Degraded")
    assert degraded["status"] == "True" and "Insufficient amd.com/gpu" in degraded["message"]
    training = next(each for each in cluster.job["status"]["conditions"] if each["type"] == "Training")
    assert training["reason"] == "Unschedulable" and "Free or add nodes" in training["message"]
    cluster.now = decision.wake_at
    decision = cluster.round()
    assert (decision.phase, decision.reason) == ("Pending", "SchedulingTimeout")
    assert "3 Insufficient amd.com/gpu" in decision.message and "Free or add nodes" in decision.message
    assert kinds(cluster, "Deployment") == [] and ("Job", "demo-g0-1") not in cluster.children
    assert timestamp(cluster.decision().wake_at or 0.0) in decision.message
    cluster.pods.clear()
    assert cluster.round().phase == "Pending"
    assert decision.wake_at is None or decision.wake_at > cluster.now
    cluster.now = cluster.decision().wake_at or 0.0
    cluster.round()
    assert cluster.running() == ["demo-g0-2"]


@pytest.mark.parametrize("reason", ["ImagePullBackOff", "CreateContainerConfigError", "CrashLoopBackOff"])
def test_pending_deadline_applies_to_pods_that_cannot_start(reason: str) -> None:
    """A pod that has a node, and cannot start, releases all pods: it would hold its accelerators indefinitely."""
    cluster = at_first_stage("g")
    scheduled = {"type": "PodScheduled", "status": "True"}
    container = {"name": "trainer", "state": {"waiting": {"reason": reason, "message": "back-off"}}}
    cluster.pods["demo-g0-1-1"]["status"] = {
        "phase": "Pending", "conditions": [scheduled], "containerStatuses": [container],
    }  # fmt: skip
    decision = cluster.round()
    assert decision.phase == "Running" and decision.wake_at == cluster.now + 3600  # the default
    cluster.now = decision.wake_at
    decision = cluster.round()
    assert (decision.phase, decision.reason) == ("Pending", "SchedulingTimeout")
    assert "(pending: demo-g0-1-1)" in decision.message and reason in decision.message


def test_degraded_many_equal_problems_hide_no_other() -> None:
    """Degraded has one line for the same problem of many pods, with their number."""
    cluster = at_first_stage("g")
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node"}
    image = {"waiting": {"reason": "ErrImagePull", "message": "no image"}}
    for number in range(40):
        name, labels = f"demo-executor-{number}", {"rstar2.dev/job": "demo", "rstar2.dev/role": "executor"}
        pending = {"phase": "Pending", "conditions": [unscheduled]}
        cluster.pods[name] = {"kind": "Pod", "metadata": {"name": name, "labels": labels}, "status": pending}
    cluster.pods["demo-g0-1-1"]["status"] = {"phase": "Pending", "containerStatuses": [{"name": "x", "state": image}]}
    cluster.round()
    condition = next(each for each in cluster.job["status"]["conditions"] if each["type"] == "Degraded")
    assert condition["reason"] == "Unschedulable"
    lines = condition["message"].splitlines()
    assert len(lines) == 2 and "executor-0" in lines[0] and "no image" in lines[1]
    assert lines[0].endswith("The same problem: 39 more (demo-executor-1, demo-executor-10, demo-executor-11, ...).")


@pytest.mark.parametrize("orchestrator", ["none", "waits"])
def test_pending_deadline_applies_to_rejected_executors(orchestrator: str) -> None:
    """Executors that an admission rejects release the whole job, also if the orchestrator already waits."""
    cluster = at_first_stage("g", pendingDeadlineSeconds=60)
    if orchestrator == "waits":
        cluster.progress("g0", 1, 0, phase="Starting")
    error = 'pods "demo-executor-" is forbidden: pod rejected: RuntimeClass "gvisor" not found'
    refused = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": error}
    cluster.children["Deployment", "demo-executor"]["status"] = {"conditions": [refused]}
    decision = cluster.reconcile()
    judge = next(each for each in cluster.job["status"]["conditions"] if each["type"] == "JudgeReady")
    assert 'RuntimeClass "gvisor" not found' in judge["message"] and decision.wake_at is not None
    cluster.now = decision.wake_at
    decision = cluster.reconcile()
    assert (decision.phase, decision.reason) == ("Pending", "SchedulingTimeout")
    assert "demo-executor" in decision.message and kinds(cluster, "Deployment") == []


@pytest.mark.parametrize("made", [0, 1])
def test_pending_deadline_applies_to_rejected_trainers(made: int) -> None:
    """Trainer pods that a quota rejects release the engines."""
    cluster = at_first_stage("g", pendingDeadlineSeconds=60)
    cluster.children["Job", "demo-g0-1"]["status"] = {"active": made}
    cluster.pods = {name: pod for name, pod in cluster.pods.items() if name == "demo-g0-1-0" and made}
    decision = cluster.reconcile()
    assert decision.phase == "Running" and decision.wake_at is not None
    cluster.now = decision.wake_at
    decision = cluster.reconcile()
    assert (decision.phase, decision.reason) == ("Pending", "SchedulingTimeout") and "demo-g0-1" in decision.message
    assert kinds(cluster, "Deployment") == []


def test_diagnostics_stuck_pod_names_its_node() -> None:
    """A pod that outlives its grace period is reported with its node, once."""
    cluster = at_first_stage("g")
    pod = cluster.pods["demo-g0-1-1"]
    pod["metadata"]["deletionTimestamp"] = timestamp(cluster.now)
    cluster.round()
    assert degraded(cluster) is None
    when = next_overdue_at(cluster.observed(), now=cluster.now)
    assert when == cluster.now + STUCK_SECONDS
    cluster.now = when
    cluster.round()
    problem = degraded(cluster)
    assert problem is not None and problem["reason"] == "PodStuckTerminating"
    assert "taint nodes node-1 " in problem["message"]
    before = cluster.writes
    cluster.now += 3600
    cluster.round()
    assert cluster.writes == before and next_overdue_at(cluster.observed(), now=cluster.now) is None


def lose_node(cluster: SimulatedCluster, pod: str) -> None:
    """Act as the node controller after a kubelet has stopped to report."""
    ready = {"type": "Ready", "status": "False", "lastTransitionTime": timestamp(cluster.now)}
    status = cluster.pods[pod]["status"]
    status["conditions"] = [*status["conditions"], ready]
    status["containerStatuses"] = [
        {"name": "trainer", "ready": True, "state": {"running": {"startedAt": timestamp(cluster.now)}}}
    ]


def test_node_loss_is_reported_immediately() -> None:
    """A node that does not report is a problem as soon as its pod is not ready; the job waits for it by default."""
    cluster = at_first_stage("g")
    lose_node(cluster, "demo-g0-1-1")
    cluster.round()
    problem = degraded(cluster)
    assert problem is not None and problem["reason"] == "NodeNotReady"
    assert "Pod/demo-g0-1-1: NodeNotReady: node node-1 has not reported since" in problem["message"]
    assert "spec.nodeLoss.afterSeconds" in problem["message"] and "taint nodes node-1 " in problem["message"]
    cluster.now += 3600
    assert cluster.round().phase == "Running" and ("Job", "demo-g0-1") in cluster.children


def test_node_loss_after_seconds_starts_a_new_attempt() -> None:
    """After nodeLoss.afterSeconds the attempt ends, the lost pod is removed, and a new attempt starts, not counted."""
    cluster = at_first_stage("g", nodeLoss={"afterSeconds": 60})
    lose_node(cluster, "demo-g0-1-1")
    decision = cluster.round()
    assert decision.phase == "Running" and decision.wake_at == cluster.now + 60
    cluster.now = decision.wake_at
    decision = cluster.reconcile()
    assert (decision.phase, decision.reason) == (
        "Pending",
        "NodeLost",
    ) and "Node node-1 of Pod/demo-g0-1-1" in decision.message
    assert ("Job", "demo-g0-1") in cluster.children  # first the status records the end
    assert cluster.job["status"]["stages"][0]["ended"]["attempt"] == 1
    cluster.reconcile()
    assert ("Job", "demo-g0-1") not in cluster.children and "demo-g0-1-1" in cluster.pods
    decision = cluster.round()
    assert decision.reason == "NodeLost" and "demo-g0-1-1" not in cluster.pods
    assert cluster.running() == ["demo-g0-1"]  # the other pod writes a checkpoint
    cluster.finish_job("demo-g0-1", 75)
    cluster.round()
    cluster.now += 6
    cluster.round()
    assert cluster.running() == ["demo-g0-2"] and cluster.job["status"]["restartsCountedTowardsMax"] == 0


def test_node_loss_faulty_node_is_reported_only() -> None:
    """A faulty node is named with its cause; while it is open for new pods, the attempt stays."""
    cluster = at_first_stage("g", nodeLoss={"afterSeconds": 60})
    cluster.node_faults = {"node-1": NodeFault(("condition KernelDeadlock (task hung)",), closed=False)}
    cluster.round()
    problem = degraded(cluster)
    assert problem is not None and problem["reason"] == "NodeUnhealthy"
    assert (
        "Node/node-1: NodeUnhealthy: condition KernelDeadlock (task hung); pods on it: demo-g0-1-0"
        in problem["message"]
    )
    cluster.now += 3600
    assert cluster.round().phase == "Running" and "faultyNodes" not in cluster.job["status"]


def test_node_loss_faulty_closed_node_is_left() -> None:
    """A faulty node that takes no new pods is left after nodeLoss.afterSeconds, with a checkpoint, not counted."""
    cluster = at_first_stage("g", nodeLoss={"afterSeconds": 60})
    cluster.node_faults = {"node-1": NodeFault(("taint amd-gpu-unhealthy:NoSchedule",), closed=True)}
    decision = cluster.round()
    assert decision.phase == "Running" and decision.wake_at == cluster.now + 60
    cluster.now += 60
    decision = cluster.round(1)
    assert decision.reason == "NodeLost" and "Node node-1 of Pod/demo-g0-1-0 is faulty: taint amd" in decision.message
    assert cluster.running() == ["demo-g0-1"]  # the pods write a checkpoint
    cluster.finish_job("demo-g0-1", 75)
    cluster.round()
    cluster.now += 6
    cluster.round()
    assert cluster.running() == ["demo-g0-2"] and cluster.job["status"]["restartsCountedTowardsMax"] == 0
    assert cluster.pods["demo-g0-2-0"]["spec"]["nodeName"] == "node-2" and degraded(cluster) is None
    assert "faultyNodes" not in cluster.job["status"]


def test_node_loss_ignores_containers_that_are_not_ready() -> None:
    """A pod whose container is not ready has a node that reports."""
    cluster = at_first_stage("g", nodeLoss={"afterSeconds": 60})
    lose_node(cluster, "demo-g0-1-1")
    cluster.pods["demo-g0-1-1"]["status"]["containerStatuses"][0]["ready"] = False
    cluster.now += 3600
    assert cluster.round().phase == "Running" and degraded(cluster) is None


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


def test_diagnostics_silent_orchestrator_is_reported() -> None:
    """An orchestrator without a report is a problem ten minutes after all its pods run."""
    cluster = at_first_stage("g")
    for name in ("demo-g0-1-0", "demo-g0-1-1"):
        running = {"running": {"startedAt": timestamp(cluster.now)}}
        cluster.pods[name]["status"]["containerStatuses"] = [{"name": "trainer", "state": running}]
    cluster.round()
    when = next_overdue_at(cluster.observed(), now=cluster.now)
    assert when == cluster.now + SILENT_SECONDS and degraded(cluster) is None
    cluster.now = when
    cluster.round()
    problem = degraded(cluster)
    assert problem is not None and problem["reason"] == "OrchestratorNotReporting"
    assert "kubectl logs -l batch.kubernetes.io/job-name=demo-g0-1 " in problem["message"]
    cluster.progress("g0", 1, 0, phase="Starting")
    cluster.round()
    assert degraded(cluster) is None and next_overdue_at(cluster.observed(), now=cluster.now) is None


def degraded(cluster: SimulatedCluster) -> dict[str, str] | None:
    """The condition, when it is true."""
    condition = next(each for each in cluster.job["status"]["conditions"] if each["type"] == "Degraded")
    return condition if condition["status"] == "True" else None


def test_pending_deadline_ignores_replaced_pods() -> None:
    """A pod that is replaced during training does not release the job."""
    cluster = at_first_stage("g", pendingDeadlineSeconds=60)
    cluster.progress("g0", 1, 2)
    cluster.pods["demo-g0-1-1"]["status"] = {"phase": "Pending"}
    cluster.now += 3600
    assert cluster.round().phase == "Running"


def test_pending_deadline_ignores_a_started_attempt() -> None:
    """A starting orchestrator with a ready pod of each role is not released."""
    cluster = at_first_stage("g", pendingDeadlineSeconds=60)
    cluster.progress("g0", 1, 0, phase="Starting")
    cluster.pods["demo-g0-1-1"]["status"] = {"phase": "Pending"}
    cluster.now += 3600
    assert cluster.round().phase == "Running"


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


@pytest.mark.parametrize(("code", "phase"), [(78, "Finalizing"), (1, "Pending")])
def test_failure_policy_deleted_job_keeps_the_failure(code: int, phase: str) -> None:
    """A TTL or a person may delete the Job of a failed attempt: the failure counts, with its backoff."""
    cluster = at_first_stage("s")
    cluster.finish_job("demo-s0-1", code)
    before = cluster.round(1)
    del cluster.children["Job", "demo-s0-1"]
    cluster.pods.clear()
    after = cluster.round(1)
    assert (after.phase, after.reason, after.restarts) == (phase, before.reason, before.restarts)
    assert "demo-s0-2" not in cluster.created_jobs
    cluster.now += 10
    assert ("demo-s0-2" in cluster.created_jobs or cluster.round().restarts.counted.number == 1) == (code == 1)


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
