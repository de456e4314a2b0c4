"""The policy if objects are lost, invalid or rejected, and if the operator is killed after any write."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rstar2_operator import names
from rstar2_train.api.contracts import Outcome
from tests.support.simulated_cluster import SECRET, SimulatedCluster, at_first_stage, kinds, manifest, role_pod


@pytest.mark.parametrize("lost", ["status", "progress"])
def test_decide_lost_status_or_progress_changes_nothing(lost: str) -> None:
    """Status and progress ConfigMap replace each other: the loss of one starts no attempt again."""
    cluster = at_first_stage("sg")
    cluster.finish_stage("s0")
    cluster.round()
    assert cluster.running() == ["demo-g1-1"]
    if lost == "status":
        del cluster.job["status"]
    else:
        cluster.children["ConfigMap", "demo-progress"].pop("data")
    cluster.round()
    assert cluster.running() == ["demo-g1-1"]


def test_decide_lost_status_repeats_no_attempt_number() -> None:
    """An attempt whose Job and status are gone is known by its report: the pods of a lost node may still write."""
    cluster = at_first_stage("g")
    cluster.progress("g0", 1, step=0, phase="Starting")
    del cluster.job["status"], cluster.children["Job", "demo-g0-1"]
    cluster.pods.clear()
    cluster.round()
    assert cluster.running() == ["demo-g0-2"]


@pytest.mark.parametrize("known_by", ["status", "attempt"])
def test_decide_deleted_prepare_job_changes_nothing(known_by: str) -> None:
    """The deletion of the finished prepare Job does not prepare again."""
    cluster = at_first_stage("g")
    del cluster.children["Job", "demo-prepare"]
    if known_by == "attempt":
        del cluster.job["status"]
    cluster.round()
    assert cluster.running() == ["demo-g0-1"] and kinds(cluster, "Job") == ["demo-g0-1"]
    assert kinds(cluster, "Deployment") != []
    storage = next(each for each in cluster.job["status"]["conditions"] if each["type"] == "StorageReady")
    assert (storage["status"], storage["reason"]) == ("True", "Prepared")
    cluster.finish_stage("g0")
    cluster.round()
    assert cluster.running() == ["demo-report"]


def with_invalid_spec(cluster: SimulatedCluster) -> None:
    """Edit the job such that only the operator finds the error."""
    cluster.round()
    variable = {"name": "HOME", "value": "x"}
    cluster.job["spec"]["runtimePatches"] = [{"manager": "a", "roles": ["trainer"], "env": [variable]}]
    cluster.run_operator()
    assert cluster.job["status"]["reason"] == "InvalidSpec"


def test_invalid_spec_does_not_hold_evicted_quota() -> None:
    """An eviction by Kueue stops all pods, also while the spec is invalid: the orchestrator first, then the engines."""
    cluster = SimulatedCluster(manifest("g", queueName="team"))
    cluster.finish_preparation()
    cluster.round()
    (name,) = kinds(cluster, "Workload")
    admitted = [{"type": kind, "status": "True"} for kind in ("QuotaReserved", "Admitted")]
    cluster.children["Workload", name]["status"] = {"conditions": admitted}
    with_invalid_spec(cluster)
    cluster.run_operator()
    assert cluster.running() == ["demo-g0-1"] and kinds(cluster, "Deployment") != []
    cluster.children["Workload", name]["status"]["conditions"] = [*admitted, {"type": "Evicted", "status": "True"}]
    cluster.run_operator()
    assert cluster.job["status"]["phase"] == "Suspending" and kinds(cluster, "Deployment") != []
    cluster.terminate()
    cluster.run_operator()
    assert cluster.running() == kinds(cluster, "Deployment") == kinds(cluster, "Workload") == []
    assert (cluster.job["status"]["phase"], cluster.job["status"]["reason"]) == ("Pending", "InvalidSpec")


def test_invalid_spec_holds_no_engines_without_attempt() -> None:
    """After the last pod of its attempt, a job with an invalid spec holds no engine: no new attempt can start."""
    cluster = at_first_stage("g")
    with_invalid_spec(cluster)
    assert kinds(cluster, "Deployment") != [] and cluster.job["status"]["phase"] == "Running"
    cluster.finish_job("demo-g0-1", 1)
    cluster.run_operator()
    cluster.run_operator()
    assert kinds(cluster, "Deployment") == [] and cluster.job["status"]["phase"] == "Pending"


def test_invalid_spec_is_suspended_after_the_last_engine() -> None:
    """A terminating engine holds its accelerators: the job is not Suspended yet."""
    cluster = at_first_stage("g")
    cluster.pods["demo-rollout-x"] = role_pod(cluster, "rollout", {})
    with_invalid_spec(cluster)
    cluster.job["spec"]["suspend"] = True
    cluster.run_operator()
    cluster.terminate()
    for _ in range(3):
        cluster.run_operator()
    assert kinds(cluster, "Deployment") == [] and cluster.job["status"]["phase"] == "Suspending"
    del cluster.pods["demo-rollout-x"]
    cluster.run_operator()
    assert cluster.job["status"]["phase"] == "Suspended"


def degraded(cluster: SimulatedCluster) -> str:
    condition = next(each for each in cluster.job["status"]["conditions"] if each["type"] == "Degraded")
    return str(condition["message"]) if condition["status"] == "True" else ""


def test_progress_unknown_fields_are_ignored() -> None:
    """The operator ignores fields that a newer orchestrator adds."""
    cluster = at_first_stage("s")
    checkpoint = {"path": "stages/s0/checkpoints/2", "step": 2, "bytes": 7}
    report = {"stage": "s0", "attempt": 1, "phase": "Training", "step": 2, "totalSteps": 4, "new": 1}
    cluster.patch_progress("progress.json", {**report, "checkpoint": checkpoint})
    cluster.round()
    assert cluster.job["status"]["step"] == 2 and degraded(cluster) == ""


def test_progress_without_metrics_keeps_the_last_ones() -> None:
    """An attempt without metrics keeps those of the last one, and never writes an empty map."""
    cluster = at_first_stage("s")
    report = {"stage": "s0", "attempt": 1, "phase": "Training", "step": 2, "totalSteps": 4}
    cluster.patch_progress("progress.json", {**report, "metrics": {"loss": 0.5}})
    cluster.round()
    cluster.patch_progress(
        "progress.json", report
    )  # server-side apply would make null of an empty map, which the schema refuses
    cluster.round()
    assert cluster.job["status"]["stages"][0]["metrics"] == {"loss": "0.5"}
    fresh = at_first_stage("s")
    fresh.patch_progress("progress.json", report)
    fresh.round()
    assert "metrics" not in fresh.job["status"]["stages"][0]


def test_diagnostics_start_error_is_reported_during_retries() -> None:
    """An image without the entrypoint is a problem while its Job retries, and none afterwards."""
    cluster = SimulatedCluster(manifest("s"))
    cluster.round()
    labels = {**names.labels("demo", "prepare"), "batch.kubernetes.io/job-name": "demo-prepare"}
    ended = {"terminated": {"reason": "StartError", "exitCode": 128, "message": 'exec: "python": not found'}}
    status = {"phase": "Failed", "containerStatuses": [{"name": "trainer", "state": ended}]}
    cluster.pods["one"] = {"kind": "Pod", "metadata": {"name": "one", "labels": labels}, "status": status}
    cluster.round()
    assert degraded(cluster).startswith('Pod/one: StartError: exec: "python": not found. Wrong image for this role?')
    cluster.finish_preparation()
    cluster.round()
    assert degraded(cluster) == ""


def test_diagnostics_image_pull_retries_are_one_problem() -> None:
    """The two alternating reasons of the kubelet are one problem."""
    cluster = SimulatedCluster(manifest("s"))
    cluster.round()
    pod = {"kind": "Pod", "metadata": {"name": "one", "labels": names.labels("demo", "prepare")}}
    for reason in ("ErrImagePull", "ImagePullBackOff"):
        waiting = {"state": {"waiting": {"reason": reason, "message": "no such image"}}}
        cluster.pods["one"] = {**pod, "status": {"phase": "Pending", "containerStatuses": [waiting]}}
        cluster.round()
        assert degraded(cluster).startswith("Pod/one: ImagePullBackOff: no such image. Check the image name")


def test_progress_invalid_report_is_reported() -> None:
    """An invalid report is a problem with its key and advice; the job continues."""
    cluster = at_first_stage("s")
    data = cluster.children["ConfigMap", "demo-progress"].setdefault("data", {})
    data |= {"progress.json": '{"stage": "s0', "prepare.json": "[]", "outcome-s0.json": '{"reason": "Later"}'}
    assert cluster.round().phase == "Running"
    assert all(key in degraded(cluster) for key in data) and "spec.trainer.image" in degraded(cluster)
    cluster.finish_stage("s0")
    cluster.round()
    cluster.finish_job("demo-report", 0)
    assert cluster.round().phase == "Succeeded"


def test_progress_of_a_newer_contract_names_both_versions() -> None:
    """A report of a newer contract is a problem that names both versions; the job continues."""
    cluster = at_first_stage("s")
    cluster.patch_progress("progress.json", {"contractVersion": 2, "stage": "s0", "attempt": 1})
    assert cluster.round().phase == "Running"
    assert "progress.json cannot be read: contractVersion is 2, but this process reads versions up to 1" in degraded(
        cluster
    )


def test_failure_policy_rejected_attempt_is_not_counted() -> None:
    """A rejected attempt is reported and does not count; the operator retries."""
    cluster = at_first_stage("g")
    cluster.finish_job("demo-g0-1", 137)
    cluster.reject("Job")
    cluster.now += 600
    for _ in range(3):
        decision = cluster.round()
        assert (decision.phase, decision.reason) == ("Pending", "ApplyRejected")
    assert "Job/demo-g0-2: ApplyRejected: Forbidden: exceeded quota: q. Correct the field" in degraded(cluster)
    assert (cluster.job["status"]["restarts"], cluster.job["status"]["stages"][0]["attempts"]) == (0, 1)
    before = cluster.writes
    cluster.round()
    assert cluster.writes == before
    cluster.reject()
    assert cluster.round().phase == "Running"
    assert cluster.running() == ["demo-g0-2"] and cluster.job["status"]["restarts"] == 1


def test_decide_rejected_policy_blocks_pods() -> None:
    """No pod is created while a NetworkPolicy is rejected."""
    cluster = SimulatedCluster(manifest("g"))
    cluster.reject("NetworkPolicy")
    cluster.round()
    assert kinds(cluster, "Job") == [] and kinds(cluster, "ConfigMap") != []
    assert "NetworkPolicy/demo-deny: ApplyRejected" in degraded(cluster)


def test_finalize_rejected_report_does_not_delay_the_end() -> None:
    """A rejected report Job delays the end by five minutes at most."""
    cluster = at_first_stage("s")
    cluster.finish_stage("s0")
    cluster.reject("Job")
    cluster.round()
    cluster.now += 301
    assert cluster.round().phase == "Succeeded"


def assert_same_passwords(cluster: SimulatedCluster) -> None:
    """Every object with pods was created with the current Secret."""
    if SECRET not in cluster.children:
        return
    current = cluster.children[SECRET]["metadata"]["uid"]
    for (kind, name), child in cluster.children.items():
        if kind in ("Deployment", "StatefulSet") or (kind == "Job" and name[5] in "sge" and not child.get("status")):
            assert cluster.secret_uids[kind, name] == current, name


def test_shared_secret_lost_is_recreated_after_its_consumers() -> None:
    """A lost Secret is created again when no pod uses the old passwords; the restart is a disruption."""
    cluster = at_first_stage("g")
    del cluster.children[SECRET]
    decision = cluster.reconcile()
    assert (decision.phase, decision.reason) == ("Pending", "SharedSecretMissing")
    cluster.reconcile()
    assert SECRET not in cluster.children and kinds(cluster, "Deployment") != []  # the orchestrator may still need them
    stopped = Outcome(stage="g0", attempt=1, outcome="suspended", reason="Suspended")
    cluster.finish_job("demo-g0-1", 75, outcome=stopped)
    cluster.reconcile()
    assert SECRET not in cluster.children and kinds(cluster, "Deployment") == []
    cluster.now += 10
    assert cluster.round().phase == "Running"
    assert SECRET in cluster.children and cluster.running() == ["demo-g0-2"]
    assert (cluster.job["status"]["restarts"], cluster.job["status"]["restartsCountedTowardsMax"]) == (1, 0)
    assert_same_passwords(cluster)


def test_shared_secret_lost_in_each_attempt_fails_the_job() -> None:
    """A client that deletes every Secret holds no accelerator indefinitely: losses have the limits of disruptions."""
    cluster = at_first_stage("g", failurePolicy={"maxRestarts": 2})
    for attempt in range(1, 14):
        assert cluster.running() == [f"demo-g0-{attempt}"]
        del cluster.children[SECRET]
        cluster.round()
        cluster.terminate()
        before = len(cluster.created_jobs)
        cluster.round()
        assert cluster.job["status"]["restartsCountedTowardsMax"] == min(2, max(0, attempt - 10))
        assert attempt > 12 or len(cluster.created_jobs) == before, "it waits for the backoff"
        cluster.now += 301
        cluster.round()
    cluster.finish_job("demo-report", 0)
    status = cluster.round().phase, cluster.job["status"]["message"]
    assert status[0] == "Failed" and "Secret demo-secrets was deleted" in status[1] and "(after 2 restarts" in status[1]


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "finish",
                "crash",
                "evict",
                "suspend",
                "resume",
                "wait",
                "settle",
                "progress",
                "tidy",
                "refuse",
                "allow",
                "lose",
            ]
        ),
        st.one_of(st.none(), st.integers(0, 6)),
    ),
    max_size=24,
)


@given(ACTIONS)
@settings(max_examples=20)
def test_decide_any_events_and_crashes_end_in_success(actions: list[tuple[str, int | None]]) -> None:
    """With any order of events, and the operator killed after any write, no attempt starts twice and the job
    succeeds.
    """
    cluster = SimulatedCluster(manifest("sge", failurePolicy={"maxRestarts": 1000}))
    for action, dies_after in actions:
        stage_jobs = [name for name in cluster.running() if name[5] in "sge"]
        assert len(stage_jobs) <= 1
        stage, attempt = (stage_jobs[0][5:].rsplit("-", 1)) if stage_jobs else ("", "0")
        if action == "finish":
            if "demo-prepare" in cluster.running():
                cluster.finish_job("demo-prepare", 0)
            elif stage:
                cluster.finish_stage(stage, int(attempt))
        elif action == "crash" and stage:
            cluster.finish_job(stage_jobs[0], 137)
        elif action == "evict" and stage:
            stopped = Outcome(stage=stage, attempt=int(attempt), outcome="suspended", reason="Suspended")
            cluster.finish_job(stage_jobs[0], 75, outcome=stopped)
        elif action == "progress" and stage:
            cluster.progress(stage, int(attempt), 1)
        elif action in ("suspend", "resume"):
            cluster.job["spec"]["suspend"] = action == "suspend"
        elif action in ("refuse", "allow"):
            cluster.reject(*(("Job", "StatefulSet") if action == "refuse" else ()))
        elif action == "lose":
            cluster.children.pop(SECRET, None)
        elif action == "wait":
            cluster.now += 400
        elif action == "settle":
            cluster.settle()
        elif action == "tidy" and stage and "demo-prepare" not in cluster.running():
            cluster.children.pop(("Job", "demo-prepare"), None)
        cluster.run_operator(dies_after=dies_after)
        assert_same_passwords(cluster)
    cluster.job["spec"]["suspend"] = False
    cluster.reject()
    for _ in range(14):
        cluster.now += 400
        cluster.round(1)
        for name in cluster.running():
            if name[5] in "sge" and "report" not in name:
                stage, attempt = name[5:].rsplit("-", 1)
                cluster.finish_stage(stage, int(attempt))
            else:
                cluster.finish_job(name, 0)
    assert cluster.job["status"]["phase"] == "Succeeded"
    assert cluster.created_jobs.count("demo-prepare") <= 1 + sum(action == "suspend" for action, _ in actions)
    for row in cluster.job["status"]["stages"]:
        assert f"demo-{row['name']}-{row['attempts']}" in cluster.created_jobs
    attempts = [name for name in cluster.started_jobs if name[5] in "sge"]
    assert len(attempts) == len(set(attempts))
