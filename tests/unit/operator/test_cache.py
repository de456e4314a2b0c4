"""The watch cache: events that are late, repeated, lost or about another object of the same name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rstar2_operator import names
from rstar2_operator.cache import WatchCache
from rstar2_operator.observed import ObservedJob

KEY = ("team", "demo")


def job(version: int, uid: str = "job-1", name: str = "demo", **status: Any) -> dict[str, Any]:
    meta = {"namespace": "team", "name": name, "uid": uid, "resourceVersion": str(version)}
    return {"kind": "AgenticRLJob", "metadata": meta, "status": status}


def child(version: int, uid: str = "child-1", *, name: str = "demo-progress", owner: str = "job-1") -> dict[str, Any]:
    meta = {"namespace": "team", "name": name, "uid": uid, "resourceVersion": str(version)}
    meta |= {"labels": names.labels("demo", "trainer"), "ownerReferences": [{"controller": True, "uid": owner}]}
    return {"kind": "ConfigMap", "metadata": meta}


def snapshot(cache: WatchCache) -> ObservedJob:
    observed = cache.observed(KEY)
    assert observed is not None
    return observed


def test_cache_older_event_does_not_replace_a_write() -> None:
    """The response to a write is newer than the events that were sent before it."""
    cache = WatchCache()
    cache.record_job(job(1, phase="Running"), gone=False)
    cache.record_write(
        "AgenticRLJob", job(3, phase="Pending") | {"metadata": job(3)["metadata"] | {"managedFields": []}}
    )
    cache.record_job(job(2, phase="Running"), gone=False)
    assert snapshot(cache).status == {"phase": "Pending"} and "managedFields" not in snapshot(cache).job["metadata"]
    cache.record_job(job(4, phase="Preparing"), gone=False)
    assert snapshot(cache).status == {"phase": "Preparing"}


def test_cache_late_response_does_not_revive_an_object() -> None:
    """An object whose deletion was delivered or carried out stays deleted."""
    cache = WatchCache()
    cache.record_job(job(1), gone=False)
    cache.record_child("ConfigMap", child(5), gone=True)
    cache.record_write("ConfigMap", child(4))
    assert snapshot(cache).children == {}
    cache.record_child("ConfigMap", child(6, "child-2"), gone=False)
    cache.record_deletion("ConfigMap", child(6, "child-2"))
    cache.record_child("ConfigMap", child(7, "child-2"), gone=False)
    assert snapshot(cache).children == {}
    cache.record_job(job(8), gone=True)
    cache.record_write("AgenticRLJob", job(7))
    assert cache.observed(KEY) is None


def test_cache_object_with_restored_label_returns() -> None:
    """A watch reports a lost label as a deletion; the object returns when the label does."""
    cache = WatchCache()
    cache.record_job(job(1), gone=False)
    cache.record_child("ConfigMap", child(2), gone=False)
    cache.record_child("ConfigMap", child(3), gone=True)
    cache.record_child("ConfigMap", child(4), gone=False)
    assert len(snapshot(cache).children) == 1


def test_cache_late_deletion_leaves_the_new_object() -> None:
    """The deletion of an object does not remove the next one of its name."""
    cache = WatchCache()
    cache.record_job(job(1), gone=False)
    cache.record_child("ConfigMap", child(2), gone=False)
    cache.record_job(job(5, "job-2"), gone=False)
    cache.record_child("ConfigMap", child(6, "child-2", owner="job-2"), gone=False)
    cache.record_child("ConfigMap", child(4), gone=True)
    cache.record_job(job(3), gone=True)
    observed = snapshot(cache)
    assert observed.job["metadata"]["uid"] == "job-2"
    assert [each["metadata"]["uid"] for each in observed.children.values()] == ["child-2"]


@pytest.mark.parametrize("last", ["AgenticRLJob", "ConfigMap", "Pod"])
def test_cache_keeps_nothing_of_a_deleted_job(last: str) -> None:
    """After the deletion of a job and its objects, in any order, only the UIDs of deleted objects are kept."""
    cache, other = WatchCache(), WatchCache()
    bodies = {"AgenticRLJob": job(1), "ConfigMap": child(2), "Pod": child(3, "pod-1", name="demo-g0-1-0")}
    for kind, body in bodies.items():
        cache.record_job(body, gone=False) if kind == "AgenticRLJob" else cache.record_child(kind, body, gone=False)
    for kind in sorted(bodies, key=last.__eq__):
        cache.drop(kind, bodies[kind]["metadata"]["uid"])
    cache.record_job(job(4), gone=True)
    cache.record_write("AgenticRLJob", job(5))
    cache.end_initial_sync(), other.end_initial_sync()
    kept = {name: value for name, value in vars(cache).items() if name not in ("_tombstones", "_snapshot")}
    assert kept == {name: vars(other)[name] for name in kept}


def test_cache_children_of_another_job_uid_are_excluded() -> None:
    """A recreated job does not see the objects of the deleted job of its name."""
    cache = WatchCache()
    cache.record_job(job(1), gone=False)
    cache.record_child("ConfigMap", child(2), gone=False)
    cache.record_job(job(3, "job-2"), gone=False)
    assert snapshot(cache).children == {}


def test_cache_pods_of_a_deleted_job_stay_until_deleted() -> None:
    """A recreated job sees the pods of the deleted job, which may still hold accelerators."""
    cache = WatchCache()
    cache.record_job(job(1), gone=False)
    cache.record_child("Pod", child(2, "pod-1"), gone=False)
    cache.record_job(job(3), gone=True)
    cache.record_job(job(4, "job-2"), gone=False)
    assert len(snapshot(cache).pods) == 1
    cache.record_child("Pod", child(5, "pod-1"), gone=True)
    assert snapshot(cache).pods == ()


def test_cache_warning_belongs_to_the_job_of_its_object() -> None:
    """Job `demo` gets the events of its Deployment demo-rollout, though a job demo-rollout exists."""
    cache = WatchCache()
    cache.record_job(job(1), gone=False)
    cache.record_job(job(2, "job-2", "demo-rollout"), gone=False)
    about = {"namespace": "team", "name": "demo-rollout", "kind": "ReplicaSet", "uid": "unknown"}
    assert cache.record_warning({"involvedObject": about}) == [KEY]
    about["name"] = "demo-rollout-judge"
    assert cache.record_warning({"involvedObject": about}) == [KEY, ("team", "demo-rollout")]
    cache.record_child("Deployment", child(3, "engines", name="demo-rollout-judge"), gone=False)
    assert cache.record_warning({"involvedObject": about | {"uid": "engines"}}) == [KEY]
    assert len(snapshot(cache).warnings) == 3


def test_cache_keeps_a_pod_without_its_template() -> None:
    """A cached pod has its node, limits, conditions and containers, and neither template nor addresses."""
    cache = WatchCache()
    cache.record_job(job(1), gone=False)
    container = {"name": "main", "env": [{"name": "A"}], "resources": {"limits": {"amd.com/gpu": "8"}}}
    state = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    pod = child(2, "pod-1", name="demo-sft-1-0")
    pod["metadata"] |= {"annotations": {"a": "b"}, "managedFields": []}
    pod["spec"] = {"nodeName": "n1", "volumes": [{}], "containers": [container]}
    status = {"name": "main", "ready": False, "state": state, "imageID": "sha256:1"}
    pod["status"] = {"phase": "Failed", "podIP": "10.0.0.1", "containerStatuses": [status]}
    cache.record_child("Pod", pod, gone=False)
    cached = snapshot(cache).pods[0]
    kept = {"name": "main", "resources": {"limits": {"amd.com/gpu": "8"}}}
    assert cached["spec"] == {"nodeName": "n1", "containers": [kept]}
    assert cached["status"] == {
        "phase": "Failed",
        "containerStatuses": [{"name": "main", "ready": False, "state": state}],
    }
    assert "annotations" not in cached["metadata"] and cached["metadata"]["labels"]


def test_cache_snapshot_is_read_once_per_change() -> None:
    """Without a change the snapshot is the same object; a change of each kind is in the next one."""
    cache = WatchCache()
    cache.record_job(job(1, phase="Running"), gone=False)
    cache.record_job(job(2, name="other"), gone=False)
    pod = child(3, "pod-1", name="demo-rollout-0") | {"kind": "Pod", "spec": {"nodeName": "node-1"}}
    sign = {"metricsexporter.amd.com.gpu.3.state": "unhealthy"}
    faulty = {"metadata": {"name": "node-1", "uid": "n1", "labels": sign}, "spec": {}}
    event = {"involvedObject": {"namespace": "team", "name": "demo-rollout-0", "uid": "pod-1"}}
    changes: list[Callable[[], object]] = [
        lambda: cache.record_job(job(4, phase="Failed"), gone=False),
        lambda: cache.record_child("Pod", pod, gone=False),
        lambda: cache.record_node(faulty, gone=False),
        lambda: cache.record_warning(event),
        lambda: cache.drop("Node", "n1"),
        lambda: cache.drop("Pod", "pod-1"),
        lambda: cache.record_deletion("AgenticRLJob", job(4)),
    ]
    for change in changes:
        before = snapshot(cache)
        assert snapshot(cache) is before
        change()
        assert cache.observed(KEY) != before
    cache.record_job(job(5, "job-2", phase="Pending"), gone=False)
    assert snapshot(cache).status == {"phase": "Pending"} and cache.observed(("team", "other")) != snapshot(cache)


def test_cache_change_of_unread_fields_wakes_no_job() -> None:
    """A newer version of a pod with another message of a true condition wakes no job; a change of its phase does."""
    cache = WatchCache()
    cache.record_job(job(1), gone=False)
    ready = {"type": "Ready", "status": "True", "message": "first"}
    pod = child(5, name="demo-rollout-0") | {"kind": "Pod"}
    pod["status"] = {"phase": "Running", "conditions": [ready]}
    assert cache.record_child("Pod", pod, gone=False) == KEY
    later = {**pod, "metadata": {**pod["metadata"], "resourceVersion": "6"}}
    later["status"] = {"phase": "Running", "conditions": [{**ready, "message": "second"}]}
    assert cache.record_child("Pod", later, gone=False) is None
    failed = {**later, "metadata": {**pod["metadata"], "resourceVersion": "7"}, "status": {"phase": "Failed"}}
    assert cache.record_child("Pod", failed, gone=False) == KEY
    assert cache.record_child("Pod", failed, gone=True) == KEY
