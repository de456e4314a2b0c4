"""Nothing is decided before the watches have told everything that is there; what they miss later is noticed."""

from __future__ import annotations

import asyncio
from typing import Any

from rstar2_operator import names
from rstar2_operator.cache import WatchCache
from rstar2_operator.resync import Resync
from rstar2_operator.workqueue import WorkQueue

KEY = ("team", "demo")


class Api:
    """What the API server lists."""

    def __init__(self, **there: list[str]) -> None:
        self.there = there
        self.asked: list[str] = []

    async def list_metadata(self, kind: str, namespace: str, *, selector: str) -> list[dict[str, Any]]:
        assert selector == ("" if kind == "AgenticRLJob" else names.SELECTOR)
        self.asked.append(kind)
        return [body(name)["metadata"] for name in self.there.get(kind, [])]


def body(name: str, job: str = "demo", uid: str = "") -> dict:
    meta: dict[str, Any] = {"namespace": "team", "name": name, "uid": uid or name, "labels": {names.JOB_LABEL: job}}
    return {"metadata": meta | {"creationTimestamp": "2026-11-22T08:00:00Z"}}


def sync(api: Api, store: WatchCache, *namespaces: str) -> Resync:
    return Resync(api, store, kinds=["Job", "Pod"], namespaces=namespaces)  # type: ignore[arg-type]


async def begun(api: Api, store: WatchCache) -> asyncio.Task[None]:
    task = asyncio.create_task(sync(api, store).wait_until_complete())
    await asyncio.sleep(0.05)
    return task


def full() -> tuple[Api, WatchCache]:
    """A job with a pod, as the watches told it."""
    api, store = Api(AgenticRLJob=["demo"], Job=["demo-prepare"], Pod=["demo-prepare-x"]), WatchCache()
    store.record_job(body("demo"), gone=False)
    store.record_child("Job", body("demo-prepare"), gone=False)
    store.record_child("Pod", body("demo-prepare-x"), gone=False)
    return api, store


async def queued(queue: WorkQueue) -> tuple[str, str] | None:
    try:
        async with asyncio.timeout(0.01):
            return await queue.take()
    except TimeoutError:
        return None


async def test_it_waits_for_each_kind() -> None:
    api, store = Api(AgenticRLJob=["demo"], Job=["demo-prepare"], Pod=["demo-prepare-x"]), WatchCache()
    task = await begun(api, store)
    assert not task.done()
    store.record_job(body("demo"), gone=False)
    store.record_child("Pod", body("demo-prepare-x"), gone=False)
    await asyncio.sleep(0.5)
    assert not task.done(), "the Job that prepares has not been seen: the job would be prepared again"
    store.record_child("Job", body("demo-prepare"), gone=False)
    await asyncio.wait_for(task, 2)
    assert set(api.asked) == {"AgenticRLJob", "Job", "Pod"}


async def test_what_is_deleted_meanwhile_is_not_waited_for() -> None:
    api, store = Api(Job=["gone-unseen", "gone-seen"]), WatchCache()
    task = await begun(api, store)
    store.record_child("Job", body("gone-seen", job="other"), gone=False)
    store.record_job(body("other"), gone=True)
    api.there["Job"] = ["gone-seen"]
    await asyncio.wait_for(task, 2)


async def test_nothing_there_is_nothing_to_wait_for() -> None:
    await asyncio.wait_for(sync(Api(), WatchCache(), "a", "b").wait_until_complete(), 1)


async def test_what_went_unseen_is_forgotten_and_its_job_looked_at() -> None:
    api, store = full()
    queue: WorkQueue = WorkQueue()
    assert await sync(api, store).compare(queue) == "" and await queued(queue) is None
    api.there["Pod"] = []
    await sync(api, store).compare(queue)
    seen = store.observed(KEY)
    assert seen is not None and seen.pods == () and ("Job", "demo-prepare") in seen.children
    assert await queued(queue) == KEY
    api.there["AgenticRLJob"] = []
    await sync(api, store).compare(queue)
    assert store.observed(KEY) is None and store.jobs() == []


async def test_what_is_made_while_the_list_is_on_its_way_stays() -> None:
    api, store = full()
    queue: WorkQueue = WorkQueue()
    listed = api.list_metadata

    async def slowly(kind: str, namespace: str, *, selector: str) -> list[dict[str, Any]]:
        there = await listed(kind, namespace, selector=selector)
        if kind == "Pod":
            store.record_child("Pod", body("demo-prepare-x", uid="another"), gone=False)
            store.record_child("Pod", body("demo-prepare-y"), gone=False)
        return there

    api.there["Pod"] = []
    api.list_metadata = slowly  # type: ignore[method-assign]
    await sync(api, store).compare(queue)
    seen = store.observed(KEY)
    assert seen is not None and [pod["metadata"]["name"] for pod in seen.pods] == ["demo-prepare-x", "demo-prepare-y"]


async def test_a_watch_that_tells_nothing_is_found_out_by_the_second_look() -> None:
    api, store = full()
    queue: WorkQueue = WorkQueue()
    one = sync(api, store)
    api.there["Pod"].append("demo-a-1-0-z")
    assert await one.compare(queue) == ""
    assert await one.compare(queue) == "Pod team/demo-a-1-0-z"
    store.record_child("Pod", body("demo-a-1-0-z"), gone=False)
    assert await one.compare(queue) == ""


async def test_what_a_deleted_job_has_left_is_nobodys() -> None:
    api, store = full()
    one = sync(api, store)
    store.record_job(body("demo"), gone=True)
    api.there["AgenticRLJob"] = []
    assert [await one.compare(WorkQueue()) for _ in range(2)] == ["", ""]


async def test_a_claim_that_an_earlier_job_of_the_name_has_left_is_no_sign_of_a_deaf_watch() -> None:
    api, store = full()
    again = body("demo")
    again["metadata"]["creationTimestamp"] = "2026-11-22T09:00:00Z"
    store.record_job(body("demo"), gone=True)
    store.record_job(again, gone=False)
    api.there["Job"] = ["demo-state"]
    one = sync(api, store)
    assert [await one.compare(WorkQueue()) for _ in range(2)] == ["", ""]


async def test_an_evicted_pod_is_remembered_when_it_is_gone() -> None:
    _, store = full()
    evicted = body("demo-a-1-1-z")
    evicted["metadata"]["labels"][names.OF_JOB_LABEL] = "demo-a-1"
    evicted["status"] = {"conditions": [{"type": "DisruptionTarget", "status": "True"}]}
    store.record_child("Pod", evicted, gone=True)
    seen = store.observed(KEY)
    assert seen is not None and seen.disrupted == {"demo-a-1"}
    store.record_job(body("demo"), gone=True)
    store.record_child("Pod", evicted, gone=True)
    store.record_job(body("demo", uid="another"), gone=False)
    seen = store.observed(KEY)
    assert seen is not None and not seen.disrupted, "the deleted job's"
