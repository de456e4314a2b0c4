"""Nothing is decided before the watches have told everything that is there."""

from __future__ import annotations

import asyncio

from rstar2_operator import names
from rstar2_operator.store import Store
from rstar2_operator.sync import synced


class Api:
    """What the API server lists."""

    def __init__(self, **there: list[str]) -> None:
        self.there = there
        self.asked: list[str] = []

    async def list_names(self, kind: str, namespace: str, *, selector: str) -> list[tuple[str, str]]:
        assert selector == ("" if kind == "AgenticRLJob" else names.SELECTOR)
        self.asked.append(kind)
        return [("team", name) for name in self.there.get(kind, [])]


def body(name: str, job: str = "demo") -> dict:
    return {"metadata": {"namespace": "team", "name": name, "labels": {names.JOB_LABEL: job}}}


async def begun(api: Api, store: Store) -> asyncio.Task[None]:
    task = asyncio.create_task(synced(api, store, kinds=["Job", "Pod"], namespaces=[]))  # type: ignore[arg-type]
    await asyncio.sleep(0.05)
    return task


async def test_it_waits_for_each_kind() -> None:
    api, store = Api(AgenticRLJob=["demo"], Job=["demo-prepare"], Pod=["demo-prepare-x"]), Store()
    task = await begun(api, store)
    assert not task.done()
    store.saw_job(body("demo"), gone=False)
    store.saw_child("Pod", body("demo-prepare-x"), gone=False)
    await asyncio.sleep(0.5)
    assert not task.done(), "the Job that prepares has not been seen: the job would be prepared again"
    store.saw_child("Job", body("demo-prepare"), gone=False)
    await asyncio.wait_for(task, 2)
    assert set(api.asked) == {"AgenticRLJob", "Job", "Pod"}


async def test_what_is_deleted_meanwhile_is_not_waited_for() -> None:
    api, store = Api(Job=["gone-unseen", "gone-seen"]), Store()
    task = await begun(api, store)
    store.saw_child("Job", body("gone-seen", job="other"), gone=False)
    store.saw_job(body("other"), gone=True)
    api.there["Job"] = ["gone-seen"]
    await asyncio.wait_for(task, 2)


async def test_nothing_there_is_nothing_to_wait_for() -> None:
    await asyncio.wait_for(synced(Api(), Store(), kinds=["Job"], namespaces=["a", "b"]), 1)  # type: ignore[arg-type]
