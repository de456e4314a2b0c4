"""The informer: lists in pages, lost positions, missed deletions, an API server that does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from rstar2_operator import informer, names
from rstar2_operator.cache import WatchCache
from rstar2_operator.client import NotJson
from rstar2_operator.informer import Informer
from rstar2_operator.watch_health import WatchHealth
from rstar2_operator.workqueue import WorkQueue
from tests.support.fake_kube_api import api_error

KEY = ("team", "demo")
Change = tuple[str, dict[str, Any]]


def pod(name: str, version: int = 1) -> dict[str, Any]:
    meta = {"namespace": "team", "name": name, "uid": name, "resourceVersion": str(version)}
    return {"metadata": meta | {"labels": names.labels("demo", "trainer")}}


class Api:
    """Pages of lists, and the events of each watch; then watches stay open."""

    def __init__(self, *watches: Sequence[Change | Exception] | Exception) -> None:
        self.pages_of_list: list[list[dict[str, Any]]] = [[pod("a")], [pod("b")]]
        self.watches = list(watches)
        self.versions: list[str] = []
        """Version from which each watch started."""
        self.kind = "Pod"
        self.lists = 0
        self.errors: list[Exception] = []
        """Errors of the next lists."""

    async def pages(self, kind: str, namespace: str, *, selectors: dict[str, str]) -> AsyncIterator[dict[str, Any]]:
        assert (kind, namespace, selectors) == (self.kind, "", {"labelSelector": names.SELECTOR})
        self.lists += 1
        if self.errors:
            raise self.errors.pop(0)
        for items in self.pages_of_list:
            yield {"metadata": {"resourceVersion": "10"}, "items": items}

    async def watch(
        self, kind: str, namespace: str, *, selectors: dict[str, str], version: str, opened: Callable[[], None]
    ) -> AsyncIterator[Change]:
        self.versions.append(version)
        changes = self.watches.pop(0) if self.watches else None
        if isinstance(changes, Exception):
            raise changes
        opened()
        if changes is None:
            await asyncio.Event().wait()
            return
        for change in changes:
            if isinstance(change, Exception):
                raise change
            yield change


def cache_with_job() -> WatchCache:
    cache = WatchCache()
    cache.record_job(
        {"metadata": {"namespace": "team", "name": "demo", "uid": "job", "resourceVersion": "1"}}, gone=False
    )
    return cache


async def watched(api: Api, *, watches: int, health: WatchHealth | None = None) -> set[str]:
    """Run until that many watches were started. Return the names of the cached pods."""
    cache, queue = cache_with_job(), WorkQueue[tuple[str, str]]()
    task = asyncio.create_task(
        Informer("Pod", "", client=api, cache=cache, queue=queue, health=health).run()  # type: ignore[arg-type]
    )
    async with asyncio.timeout(120):
        while len(api.versions) < watches:
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert len(queue) == 1
    observed = cache.observed(KEY)
    assert observed is not None
    return {str(each["metadata"]["name"]) for each in observed.pods}


async def test_informer_continues_an_ended_watch() -> None:
    """A watch that ends is continued from the last version, also of a bookmark, without another list."""
    bookmark = {"metadata": {"resourceVersion": "12"}}
    api = Api([("ADDED", pod("c", 11)), ("BOOKMARK", bookmark)], [("DELETED", pod("a", 13))])
    assert await watched(api, watches=3) == {"b", "c"}
    assert (api.versions, api.lists) == (["10", "12", "13"], 1)


async def test_informer_open_watch_is_served_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch without changes works soon after it is accepted, not at its end."""
    monkeypatch.setattr("rstar2_operator.informer.OPEN_SECONDS", 0.0)
    api, failing = Api(api_error(403, "Forbidden", "no Role")), list[int]()
    health = WatchHealth(lambda namespace, number: failing.append(number))
    queue = WorkQueue[tuple[str, str]]()
    watched_pods = Informer("Pod", "", client=api, cache=WatchCache(), queue=queue, health=health)  # type: ignore[arg-type]
    task = asyncio.create_task(watched_pods.run())
    async with asyncio.timeout(120):
        while failing != [1, 0]:
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("lost", [[("ERROR", {"code": 410})], api_error(410, "Expired", "too old")])
async def test_informer_lost_position_finds_deletions(lost: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """After 410 the kind is listed again; a pod that the list lacks was deleted, and one that it has is kept."""
    api = Api([("ADDED", pod("c", 11))], lost)
    started = api.watch

    def watch(*arguments: Any, **options: Any) -> Any:
        if len(api.versions) == 1:
            api.pages_of_list = [[pod("b")], [pod("c", 11)]]
        return started(*arguments, **options)

    monkeypatch.setattr(api, "watch", watch)
    assert await watched(api, watches=3) == {"b", "c"}
    assert api.lists == 2 and api.versions[-1] == "10"


async def test_informer_list_that_expires_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A continue token that has expired (410) drops no object of the pages that did not arrive."""
    api, position = Api(api_error(410, "Expired", "too old")), [3]
    pages = api.pages

    async def expiring(*arguments: Any, **options: Any) -> AsyncIterator[dict[str, Any]]:
        async for page in pages(*arguments, **options):
            position[0] -= 1
            if position[0] == -1:
                raise api_error(410, "Expired", "The provided continue parameter is too old")
            yield page

    monkeypatch.setattr(api, "pages", expiring)
    assert await watched(api, watches=2) == {"a", "b"}
    assert api.lists == 3 and api.versions == ["10", "10"]


async def test_informer_serves_jobs_without_kueue(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster without the definition of Workload has none: jobs without a queue are served."""
    unserved: list[int] = []
    api, health = Api(), WatchHealth(lambda namespace, failing: unserved.append(failing))
    api.kind, api.errors = "Workload", [api_error(404, "NotFound", "the server could not find the requested resource")]
    cache, queue = cache_with_job(), WorkQueue[tuple[str, str]]()
    body = {"metadata": pod("w")["metadata"], "spec": {}}
    cache.record_child("Workload", body, gone=False)
    monkeypatch.setattr(informer, "LONGEST_WAIT", 0.01)
    workloads = Informer("Workload", "", client=api, cache=cache, queue=queue, health=health)  # type: ignore[arg-type]
    task = asyncio.create_task(workloads.run())
    async with asyncio.timeout(60):
        await workloads.synced.wait()
        assert cache.uids("Workload", "") == set() and len(queue) == 1
        while not api.versions:  # Kueue is installed again
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert cache.uids("Workload", "") == {"a", "b"} and not any(unserved)


async def test_informer_silent_watch_is_repeated() -> None:
    """A broken connection is replaced; the cache keeps its objects meanwhile."""
    assert await watched(Api(TimeoutError(), OSError("reset")), watches=3) == {"a", "b"}


FOREIGN = NotJson("<html>504</html>")
CUT = [("ADDED", pod("c", 11)), FOREIGN]


@pytest.mark.parametrize(
    ("watches", "versions", "is_reported"),
    [
        ([CUT], ["10", "11"], True),
        ([FOREIGN], ["10", "10"], True),
        ([[("ADDED", pod("c", 11)), OSError("reset")]], ["10", "11"], False),
        ([OSError("refused")], ["10", "10"], False),
        ([OSError("refused")] * 2, ["10"] * 3, True),
        ([[]], ["10", "10"], False),
        ([[], []], ["10"] * 3, True),
        ([[("ERROR", {"code": 410})]], ["10", "10"], False),
        ([[("ERROR", {"code": 410})]] * 2, ["10"] * 3, True),
    ],
)
async def test_informer_watch_that_delivers_nothing_is_reported(
    watches: list[Any], versions: list[str], is_reported: bool
) -> None:
    """One end of a watch is usual. A second one without a change, or a line that is not JSON, is a failure."""
    failing: list[int] = []
    api, health = Api(*watches), WatchHealth(lambda namespace, number: failing.append(number))
    assert await watched(api, watches=len(versions), health=health) == {"a", "b", *({"c"} if "11" in versions else ())}
    assert api.versions == versions and (1 in failing) == is_reported


async def test_informer_failing_watches_wait_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that ends every watch immediately gets no flood of requests; a change in between ends the backoff."""
    waits, failed = list[float](), Informer._failed
    monkeypatch.setattr(informer.random, "random", lambda: 0.5)

    def record(self: Informer, error: Exception, failures: int) -> float:
        waits.append(failed(self, error, failures))
        return 0.0

    monkeypatch.setattr(Informer, "_failed", record)
    await watched(Api([], [], [], CUT, []), watches=6)
    assert waits == [0.2, 0.4, 0.8, 0.2, 0.4]


async def test_informer_waits_as_the_api_server_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """After 429 the next list waits for Retry-After, after other errors for a backoff."""
    waits: list[float] = []
    monkeypatch.setattr(informer, "LONGEST_WAIT", 0.01)
    api = Api()
    throttled = api_error(429, "TooManyRequests", "slow down")
    throttled.headers = {"Retry-After": "7"}
    api.errors = [throttled, api_error(503, "Unavailable", ""), OSError("refused")]
    sleep = asyncio.sleep

    async def record(seconds: float) -> None:
        waits.append(seconds)
        await sleep(min(seconds, 0.01))

    monkeypatch.setattr(informer.asyncio, "sleep", record)
    assert await watched(api, watches=1) == {"a", "b"}
    assert 7.0 in waits and api.lists == 4


FAILED = [{"phase": "Failed"}, {"conditions": [{"type": "Failed", "status": "True"}]}]
SOUND = [{"phase": "Running"}, {"conditions": [{"type": "Failed", "status": "False"}]}]


@pytest.mark.parametrize("status", [*FAILED, *SOUND])
async def test_informer_reports_failures_first(status: dict[str, Any]) -> None:
    """A failed pod or Job makes its job urgent; any other change does not."""
    queue = WorkQueue[tuple[str, str]]()
    queue.add(("team", "other"))
    api = Api([("MODIFIED", pod("c", 11) | {"status": status})])
    api.pages_of_list = [[]]
    task = asyncio.create_task(
        Informer("Pod", "", client=api, cache=cache_with_job(), queue=queue).run()  # type: ignore[arg-type]
    )
    async with asyncio.timeout(120):
        while len(queue) < 2:
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert await queue.take() == (KEY if status in FAILED else ("team", "other"))


async def test_informer_failure_is_urgent_once() -> None:
    """A later change of a failed pod, such as its deletion, is like any other change."""
    queue = WorkQueue[tuple[str, str]]()
    changes = [("MODIFIED", pod("c", version) | {"status": {"phase": "Failed"}}) for version in (11, 12)]
    changes[1][1]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    api = Api(changes[:1], changes[1:])
    api.pages_of_list = [[]]
    task = asyncio.create_task(
        Informer("Pod", "", client=api, cache=cache_with_job(), queue=queue).run()  # type: ignore[arg-type]
    )
    async with asyncio.timeout(120):
        assert await queue.take(urgent_only=True) == KEY
        queue.done(KEY)
        while len(api.versions) < 3:
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    queue.add(("team", "failed"), urgent=True)
    assert await queue.take() == ("team", "failed")
