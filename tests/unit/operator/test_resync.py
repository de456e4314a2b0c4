"""The cache is complete before the first decision; objects that a watch misses later are detected."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rstar2_operator import names
from rstar2_operator.cache import WatchCache
from rstar2_operator.informer import Informer
from rstar2_operator.metrics import Metrics
from rstar2_operator.resync import Resync
from rstar2_operator.workqueue import WorkQueue

pytestmark = pytest.mark.usefixtures("virtual_time")
KEY = ("team", "demo")


class Api:
    """A fake API server that lists names by kind."""

    def __init__(self, **existing: list[str]) -> None:
        self.existing = existing
        self.requests: list[str] = []

    async def list_metadata(self, kind: str, namespace: str, *, selector: str) -> list[dict[str, Any]]:
        assert selector == ("" if kind == "AgenticRLJob" else names.SELECTOR)
        self.requests.append(kind)
        return [body(name)["metadata"] for name in self.existing.get(kind, [])]


def body(name: str, job: str = "demo", uid: str = "") -> dict:
    meta: dict[str, Any] = {
        "namespace": "team",
        "name": name,
        "uid": uid or name,
        "labels": names.labels(job, "trainer"),
    }
    return {"metadata": meta | {"creationTimestamp": "2026-11-22T08:00:00Z"}}


def sync(api: Api, cache: WatchCache, *namespaces: str) -> Resync:
    return Resync(api, cache, kinds=["Job", "Pod"], namespaces=namespaces)  # type: ignore[arg-type]


def without_times(request: Any) -> Any:
    async def list_metadata(*arguments: Any, **options: Any) -> list[dict[str, Any]]:
        listed = await request(*arguments, **options)
        return [{name: value for name, value in meta.items() if name != "creationTimestamp"} for meta in listed]

    return list_metadata


async def started_sync(api: Api, cache: WatchCache, *informers: Informer) -> asyncio.Task[None]:
    task = asyncio.create_task(sync(api, cache).complete(WorkQueue(), informers))
    await asyncio.sleep(0.05)
    return task


def full() -> tuple[Api, WatchCache]:
    """Return a job with a pod, in the API server and in the cache."""
    api, cache = Api(AgenticRLJob=["demo"], Job=["demo-prepare"], Pod=["demo-prepare-x"]), WatchCache()
    cache.record_job(body("demo"), gone=False)
    cache.record_child("Job", body("demo-prepare"), gone=False)
    cache.record_child("Pod", body("demo-prepare-x"), gone=False)
    return api, cache


async def queued(queue: WorkQueue) -> tuple[str, str] | None:
    try:
        async with asyncio.timeout(0.01):
            return await queue.take()
    except TimeoutError:
        return None


async def test_resync_compares_objects_without_creation_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """An object without the time is no older one: it must have been delivered."""
    api, cache = full()
    api.existing["Pod"].append("demo-prepare-y")
    monkeypatch.setattr(api, "list_metadata", without_times(api.list_metadata))
    resync = sync(api, cache)
    assert [await resync.compare(WorkQueue()) for _ in range(2)] == ["", "Pod team/demo-prepare-y"]


async def test_resync_waits_until_each_kind_is_cached() -> None:
    """No job is reconciled before all its children are cached; otherwise it would be prepared again."""
    api, cache = Api(AgenticRLJob=["demo"]), WatchCache()
    informer = Informer("Job", "", client=api, cache=cache, queue=WorkQueue())  # type: ignore[arg-type]
    task = await started_sync(api, cache, informer)
    assert not task.done()
    cache.record_job(body("demo"), gone=False)
    await asyncio.sleep(0.5)
    assert not task.done()
    informer.synced.set()
    await asyncio.wait_for(task, 60)
    assert set(api.requests) == {"AgenticRLJob"}


async def test_resync_does_not_wait_for_deleted_jobs() -> None:
    """A job that is deleted during the initial sync need not be delivered."""
    api, cache = Api(AgenticRLJob=["gone-unseen", "gone-seen"]), WatchCache()
    task = await started_sync(api, cache)
    cache.record_job(body("gone-seen"), gone=True)
    api.existing["AgenticRLJob"] = ["gone-seen"]
    await asyncio.wait_for(task, 60)


async def test_resync_empty_cluster_is_complete() -> None:
    """Without objects the cache is complete immediately."""
    await asyncio.wait_for(sync(Api(), WatchCache(), "a", "b").complete(WorkQueue()), 60)


async def test_resync_missed_deletion_updates_the_cache() -> None:
    """A deletion that no watch reported is removed from the cache, and its job is queued."""
    api, cache = full()
    queue: WorkQueue = WorkQueue()
    assert await sync(api, cache).compare(queue) == "" and await queued(queue) is None
    api.existing["Pod"] = []
    await sync(api, cache).compare(queue)
    snapshot = cache.observed(KEY)
    assert snapshot is not None and snapshot.pods == () and ("Job", "demo-prepare") in snapshot.children
    assert await queued(queue) == KEY
    api.existing["AgenticRLJob"] = []
    await sync(api, cache).compare(queue)
    assert cache.observed(KEY) is None and cache.jobs() == []


async def test_resync_object_created_during_the_list_stays() -> None:
    """An object that is created while the list is in flight is not removed."""
    api, cache = full()
    queue: WorkQueue = WorkQueue()
    listed = api.list_metadata

    async def slowly(kind: str, namespace: str, *, selector: str) -> list[dict[str, Any]]:
        result = await listed(kind, namespace, selector=selector)
        if kind == "Pod":
            cache.record_child("Pod", body("demo-prepare-x", uid="another"), gone=False)
            cache.record_child("Pod", body("demo-prepare-y"), gone=False)
        return result

    api.existing["Pod"] = []
    api.list_metadata = slowly  # type: ignore[method-assign]
    await sync(api, cache).compare(queue)
    snapshot = cache.observed(KEY)
    assert snapshot is not None and [pod["metadata"]["name"] for pod in snapshot.pods] == [
        "demo-prepare-x",
        "demo-prepare-y",
    ]


async def test_resync_stale_watch_is_named_by_the_second_comparison() -> None:
    """An object that two comparisons list and no watch delivers names a stale watch."""
    api, cache = full()
    queue: WorkQueue = WorkQueue()
    resync = sync(api, cache)
    api.existing["Pod"].append("demo-a-1-0-z")
    assert await resync.compare(queue) == ""
    assert await resync.compare(queue) == "Pod team/demo-a-1-0-z"
    cache.record_child("Pod", body("demo-a-1-0-z"), gone=False)
    assert await resync.compare(queue) == ""


async def test_resync_ignores_objects_of_deleted_jobs() -> None:
    """Objects without a job prove no stale watch."""
    api, cache = full()
    resync = sync(api, cache)
    cache.record_job(body("demo"), gone=True)
    api.existing["AgenticRLJob"] = []
    assert [await resync.compare(WorkQueue()) for _ in range(2)] == ["", ""]


def test_resync_names_the_pods_of_orphaned_jobs(caplog: pytest.LogCaptureFixture) -> None:
    """Pods of a job that was deleted with --cascade=orphan are counted, and the log has the command, once."""
    api, cache = full()
    resync, owned = sync(api, cache), body("demo-prepare")
    owned["metadata"]["ownerReferences"] = [{"controller": True, "uid": "demo"}]
    cache.record_job(body("demo"), gone=True)
    assert resync.find_orphans() == {}, "the job may not have been delivered"
    cache.end_initial_sync()
    cache.record_job(body("demo", uid="again"), gone=False)
    assert resync.find_orphans() == {}, "the new job of the name has the condition"
    cache.record_job(body("demo", uid="again"), gone=True)
    cache.record_child("Job", owned, gone=False)
    assert resync.find_orphans() == {}, "its pods are being deleted"
    cache.record_child("Job", body("demo-prepare"), gone=False)
    assert [resync.find_orphans() for _ in range(2)] == [{KEY: 1}, {KEY: 1}]
    (message,) = caplog.messages
    assert "still run: 1." in message and "-l rstar2.dev/job=demo -n team" in message
    metrics, labels = Metrics(), {"namespace": "team", "job": "demo"}
    for running, value in (({KEY: 1}, 1), ({}, None)):
        metrics.report_orphans(running)
        assert metrics.registry.get_sample_value("rstar2_operator_orphaned_pods", labels) == value
    cache.record_child("Pod", body("demo-prepare-x") | {"status": {"phase": "Succeeded"}}, gone=False)
    assert resync.find_orphans() == {}


async def test_resync_ignores_claims_of_earlier_jobs() -> None:
    """A retained claim of an earlier job of the name proves no stale watch."""
    api, cache = Api(AgenticRLJob=["demo"], Job=["demo-state"]), WatchCache()
    again = body("demo")
    again["metadata"]["creationTimestamp"] = "2026-11-22T09:00:00Z"
    cache.record_job(again, gone=False)
    resync = sync(api, cache)
    assert [await resync.compare(WorkQueue()) for _ in range(2)] == ["", ""]


async def test_cache_keeps_disruptions_of_deleted_pods() -> None:
    """The eviction of a pod stays known after its deletion, and ends with the job."""
    _, cache = full()
    evicted = body("demo-a-1-1-z")
    evicted["metadata"]["labels"][names.BATCH_JOB_LABEL] = "demo-a-1"
    evicted["status"] = {"conditions": [{"type": "DisruptionTarget", "status": "True"}]}
    cache.record_child("Pod", evicted, gone=True)
    snapshot = cache.observed(KEY)
    assert snapshot is not None and snapshot.disrupted == {"demo-a-1"}
    cache.record_job(body("demo"), gone=True)
    cache.record_child("Pod", evicted, gone=True)
    cache.record_job(body("demo", uid="another"), gone=False)
    snapshot = cache.observed(KEY)
    assert snapshot is not None and not snapshot.disrupted
