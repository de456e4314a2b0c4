"""What the policy does when something is lost, unreadable or refused, and wherever the operator dies."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rstar2_operator import names
from rstar2_train.api.contracts import Outcome
from tests.support.simulated_cluster import SECRET, SimulatedCluster, at_first_stage, kinds, manifest


@pytest.mark.parametrize("lost", ["status", "progress"])
def test_what_is_lost_of_status_or_progress_is_known_from_the_rest(lost: str) -> None:
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


@pytest.mark.parametrize("known_by", ["status", "attempt"])
def test_deleting_the_finished_preparation_stops_nothing(known_by: str) -> None:
    cluster = at_first_stage("g")
    del cluster.children["Job", "demo-prepare"]
    if known_by == "attempt":
        del cluster.job["status"]
    cluster.round()
    assert cluster.running() == ["demo-g0-1"] and kinds(cluster, "Job") == ["demo-g0-1"]
    assert kinds(cluster, "Deployment") != []
    storage = next(one for one in cluster.job["status"]["conditions"] if one["type"] == "StorageReady")
    assert (storage["status"], storage["reason"]) == ("True", "Prepared")
    cluster.finish_stage("g0")
    cluster.round()
    assert cluster.running() == ["demo-report"]


def degraded(cluster: SimulatedCluster) -> str:
    one = next(one for one in cluster.job["status"]["conditions"] if one["type"] == "Degraded")
    return str(one["message"]) if one["status"] == "True" else ""


def test_what_a_newer_trainer_tells_besides_is_left_aside() -> None:
    cluster = at_first_stage("s")
    checkpoint = {"path": "stages/s0/checkpoints/2", "step": 2, "bytes": 7}
    told = {"stage": "s0", "attempt": 1, "phase": "Training", "step": 2, "totalSteps": 4, "new": 1}
    cluster.patch_progress("progress.json", {**told, "checkpoint": checkpoint})
    cluster.round()
    assert cluster.job["status"]["step"] == 2 and degraded(cluster) == ""


def test_an_attempt_without_metrics_yet_keeps_those_of_the_last_one() -> None:
    cluster = at_first_stage("s")
    told = {"stage": "s0", "attempt": 1, "phase": "Training", "step": 2, "totalSteps": 4}
    cluster.patch_progress("progress.json", {**told, "metrics": {"loss": 0.5}})
    cluster.round()
    cluster.patch_progress(
        "progress.json", told
    )  # server-side apply would make null of an empty map, which the schema refuses
    cluster.round()
    assert cluster.job["status"]["stages"][0]["metrics"] == {"loss": "0.5"}
    fresh = at_first_stage("s")
    fresh.patch_progress("progress.json", told)
    fresh.round()
    assert "metrics" not in fresh.job["status"]["stages"][0]


def test_an_image_that_cannot_be_started_is_told_while_its_job_tries_on() -> None:
    cluster = SimulatedCluster(manifest("s"))
    cluster.round()
    labels = {**names.labels("demo", "prepare"), "batch.kubernetes.io/job-name": "demo-prepare"}
    ended = {"terminated": {"reason": "StartError", "exitCode": 128, "message": 'exec: "python": not found'}}
    status = {"phase": "Failed", "containerStatuses": [{"state": ended}]}
    cluster.pods["one"] = {"kind": "Pod", "metadata": {"name": "one", "labels": labels}, "status": status}
    cluster.round()
    assert degraded(cluster).startswith('Pod/one: StartError: exec: "python": not found. Wrong image for this role?')
    cluster.finish_preparation()
    cluster.round()
    assert degraded(cluster) == ""


def test_an_image_that_is_tried_again_and_again_is_one_trouble() -> None:
    cluster = SimulatedCluster(manifest("s"))
    cluster.round()
    pod = {"kind": "Pod", "metadata": {"name": "one", "labels": names.labels("demo", "prepare")}}
    for reason in ("ErrImagePull", "ImagePullBackOff"):
        waiting = {"state": {"waiting": {"reason": reason, "message": "no such image"}}}
        cluster.pods["one"] = {**pod, "status": {"phase": "Pending", "containerStatuses": [waiting]}}
        cluster.round()
        assert degraded(cluster).startswith("Pod/one: ImagePullBackOff: no such image. Check the image name")


def test_a_progress_that_cannot_be_read_is_told_and_blinds_nobody() -> None:
    cluster = at_first_stage("s")
    data = cluster.children["ConfigMap", "demo-progress"].setdefault("data", {})
    data |= {"progress.json": '{"stage": "s0', "prepare.json": "[]", "outcome-s0.json": '{"reason": "Later"}'}
    assert cluster.round().phase == "Running"
    assert all(key in degraded(cluster) for key in data) and "spec.trainer.image" in degraded(cluster)
    cluster.finish_stage("s0")
    cluster.round()
    cluster.finish_job("demo-report", 0)
    assert cluster.round().phase == "Succeeded"


def test_what_the_api_server_refuses_is_told_and_counts_nothing() -> None:
    cluster = at_first_stage("g")
    cluster.finish_job("demo-g0-1", 137)
    cluster.rejected_kinds = {"Job"}
    cluster.now += 3600
    for _ in range(3):
        plan = cluster.round()
        assert (plan.phase, plan.reason) == ("Pending", "ApplyRejected")
    assert "Job/demo-g0-2: ApplyRejected: Forbidden: exceeded quota: q. Fix the field" in degraded(cluster)
    assert (cluster.job["status"]["restarts"], cluster.job["status"]["stages"][0]["attempts"]) == (0, 1)
    before = cluster.writes
    cluster.round()
    assert cluster.writes == before
    cluster.rejected_kinds.clear()
    assert cluster.round().phase == "Running"
    assert cluster.running() == ["demo-g0-2"] and cluster.job["status"]["restarts"] == 1


def test_no_pod_runs_without_what_protects_it() -> None:
    cluster = SimulatedCluster(manifest("g"))
    cluster.rejected_kinds = {"NetworkPolicy"}
    cluster.round()
    assert kinds(cluster, "Job") == [] and kinds(cluster, "ConfigMap") != []
    assert "NetworkPolicy/demo-deny: ApplyRejected" in degraded(cluster)


def test_a_report_that_is_refused_does_not_hold_the_end_up() -> None:
    cluster = at_first_stage("s")
    cluster.finish_stage("s0")
    cluster.rejected_kinds = {"Job"}
    cluster.round()
    cluster.now += 301
    assert cluster.round().phase == "Succeeded"


def assert_same_passwords(cluster: SimulatedCluster) -> None:
    """Whatever may run was started with the Secret that is there."""
    if SECRET not in cluster.children:
        return
    there = cluster.children[SECRET]["metadata"]["uid"]
    for (kind, name), child in cluster.children.items():
        if kind in ("Deployment", "StatefulSet") or (kind == "Job" and name[5] in "sge" and not child.get("status")):
            assert cluster.secret_uids[kind, name] == there, name


def test_a_lost_secret_is_made_again_when_nothing_holds_its_passwords_any_more() -> None:
    cluster = at_first_stage("g")
    del cluster.children[SECRET]
    plan = cluster.reconcile()
    assert (plan.phase, plan.reason) == ("Pending", "SharedSecretMissing")
    assert SECRET not in cluster.children and kinds(cluster, "Deployment") != []  # the driver may still need them
    stopped = Outcome(stage="g0", attempt=1, outcome="suspended", reason="Suspended")
    cluster.finish_job("demo-g0-1", 75, outcome=stopped)
    cluster.reconcile()
    assert SECRET not in cluster.children and kinds(cluster, "Deployment") == []
    assert cluster.round().phase == "Running"
    assert SECRET in cluster.children and cluster.running() == ["demo-g0-2"]
    assert cluster.job["status"]["restarts"] == 0
    assert_same_passwords(cluster)


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
@settings(max_examples=20, deadline=None)
def test_whatever_happens_and_wherever_the_operator_dies(actions: list[tuple[str, int | None]]) -> None:
    """Killed after any write: no attempt twice, never two at once, and in the end the job is complete."""
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
            cluster.rejected_kinds = {"Job", "StatefulSet"} if action == "refuse" else set()
        elif action == "lose":
            cluster.children.pop(SECRET, None)
        elif action == "wait":
            cluster.now += 400
        elif action == "settle":
            cluster.settle()
        elif action == "tidy" and stage and "demo-prepare" not in cluster.running():
            cluster.children.pop(("Job", "demo-prepare"), None)
        cluster.reconcile(dies_after=dies_after)
        assert_same_passwords(cluster)
    cluster.job["spec"]["suspend"] = False
    cluster.rejected_kinds = set()
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
