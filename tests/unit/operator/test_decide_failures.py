"""Failed and disrupted attempts, on a simulated cluster: restarts, rules, backoff, and what counts."""

from __future__ import annotations

import copy

import pytest

from rstar2_operator.observed import timestamp
from rstar2_train.api.contracts import Outcome
from tests.support.simulated_cluster import SimulatedCluster, at_first_stage, kinds, role_pod


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


def test_failure_policy_drained_node_is_not_counted() -> None:
    """An eviction restarts the stage and does not count towards maxRestarts."""
    cluster = at_first_stage("g")
    stopped = Outcome(stage="g0", attempt=1, outcome="suspended", reason="Suspended")
    evicted = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "evicting"}
    for pod in cluster.pods.values():
        pod["status"]["conditions"] = [*pod["status"].get("conditions", []), evicted]
    cluster.finish_job("demo-g0-1", 75, outcome=stopped)
    cluster.now += 10
    message = cluster.reconcile().message
    assert message.endswith("evicted, preempted or drained: Pod/demo-g0-1-0: EvictionByEvictionAPI: evicting")
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
