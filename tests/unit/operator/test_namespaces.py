"""Several watched namespaces: one that is deleted, forbidden or answers with errors does not affect the others.

The real kopf and the real informers watch an API server of this file on loopback.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio import client as aio
from kubernetes.aio import config as aio_config

from rstar2_operator import watch
from rstar2_operator.cache import WatchCache
from rstar2_operator.client import KubeClient, connection
from rstar2_operator.informer import children, informers
from rstar2_operator.metrics import Metrics
from rstar2_operator.resync import Resync
from rstar2_operator.settings import OperatorSettings
from rstar2_operator.watch import JobWatch
from rstar2_operator.watch_health import WatchHealth
from rstar2_operator.workqueue import WorkQueue

GROUP, VERSION, PLURAL = "rstar2.dev", "v1alpha1", "agenticrljobs"
SETTINGS = OperatorSettings(watch_namespaces=("team-a", "team-b"))
JOB = {
    "apiVersion": f"{GROUP}/{VERSION}",
    "kind": "AgenticRLJob",
    "metadata": {"name": "demo", "namespace": "team-a", "uid": "1", "resourceVersion": "9", "generation": 1},
    "spec": {},
}
DISCOVERY: dict[str, Any] = {
    "/version": {"major": "1", "minor": "33", "gitVersion": "v1.33.0"},
    "/apis": {"kind": "APIGroupList", "groups": [{
        "name": GROUP, "versions": [{"groupVersion": f"{GROUP}/{VERSION}", "version": VERSION}],
        "preferredVersion": {"groupVersion": f"{GROUP}/{VERSION}", "version": VERSION}}]},
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": [{
        "name": "namespaces", "singularName": "namespace", "namespaced": False, "kind": "Namespace",
        "verbs": ["list", "watch"]}]},
    f"/apis/{GROUP}/{VERSION}": {"kind": "APIResourceList", "groupVersion": f"{GROUP}/{VERSION}", "resources": [{
        "name": PLURAL, "singularName": "agenticrljob", "namespaced": True, "kind": "AgenticRLJob",
        "verbs": ["list", "watch", "get", "patch", "delete"]}]},
}  # fmt: skip


FORBIDDEN = {"kind": "Status", "status": "Failure", "reason": "Forbidden", "code": 403, "message": "no Role"}
PAGE = b"<html>a proxy</html>"
ANSWERS = {
    "forbidden": (403, json.dumps(FORBIDDEN).encode()),
    "login page": (200, PAGE),
    "gone": (410, PAGE),
    "gateway timeout": (504, PAGE),
}
"""Fault -> answer to each request about team-b."""
ERROR = {"kind": "Status", "status": "Failure", "code": 500, "message": "etcdserver: leader changed"}
LINES = {
    "error event": json.dumps({"type": "ERROR", "object": ERROR}).encode() + b"\n",
    "foreign line": PAGE + b"\n",
    "cut line": b'{"type":"ADDED","object":{"meta\n',
}
"""Fault -> line of the watches of the jobs of team-b."""


class Api:
    """An API server with one job in namespace team-a. Namespace team-b has the fault of the test."""

    def __init__(self, fault: str) -> None:
        self.fault = fault
        self.job_watches = 0
        """Watches of the jobs of team-b."""
        self.breaks = asyncio.Event()
        """Set when the watches of the jobs of team-b may get an error."""
        self.definition_deleted = asyncio.Event()
        """Set while the cluster has no definition of the jobs."""
        self.job = JOB

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a list, a watch or a request for discovery."""
        path, in_b = request.path, "/namespaces/team-b/" in request.path
        if GROUP in path and self.definition_deleted.is_set():
            return web.json_response({"kind": "Status", "reason": "NotFound", "code": 404, "message": ""}, status=404)
        if path == "/apis" and self.definition_deleted.is_set():
            return web.json_response({"kind": "APIGroupList", "groups": []})
        if path in DISCOVERY:
            return web.json_response(DISCOVERY[path])
        if in_b and self.fault in ANSWERS:
            status, body = ANSWERS[self.fault]
            return web.Response(status=status, body=body, content_type="text/html" if body == PAGE else None)
        if request.query.get("watch") == "true":
            response = web.StreamResponse()
            await response.prepare(request)
            if in_b and path.endswith(PLURAL):
                self.job_watches += 1
                await self.breaks.wait()
                await response.write(LINES[self.fault])
            await self.definition_deleted.wait()
            return response
        items = [self.job] if path.endswith(f"team-a/{PLURAL}") else []
        page = {"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "10"}, "items": items}
        return web.json_response(page)


@asynccontextmanager
async def served(api: Api, folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubeClient]:
    """Serve an Api; yield a client of it."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", api.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": f"http://{host}:{port}"}}],
        "users": [{"name": "u", "user": {"token": "t"}}]}))  # fmt: skip
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    configuration = aio.Configuration()
    await aio_config.load_kube_config(config_file=str(kubeconfig), client_configuration=configuration)
    try:
        async with connection(configuration) as connected:
            yield KubeClient(connected)
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("fault", [*ANSWERS, *LINES])
async def test_namespace_fault_leaves_the_others_served(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job of team-a is reconciled; team-b is named in a metric, and its watch is repeated."""
    monkeypatch.setattr(watch, "LONGEST_WAIT", 0.1)
    api, cache, queue, metrics = Api(fault), WatchCache(), WorkQueue[tuple[str, str]](), Metrics()
    health = WatchHealth(metrics.watches_failing)
    async with served(api, tmp_path, monkeypatch) as client:
        watched = informers(SETTINGS, client=client, cache=cache, queue=queue, health=health)
        resync = Resync(client, cache, kinds=children(SETTINGS), namespaces=SETTINGS.watch_namespaces)
        namespaces = SETTINGS.watch_namespaces
        jobs = [JobWatch(each, SETTINGS, cache=cache, queue=queue, health=health) for each in namespaces]
        tasks = [asyncio.create_task(informer.run()) for informer in watched]
        tasks += [asyncio.create_task(job.run(started=lambda: None)) for job in jobs]
        tasks.append(asyncio.create_task(resync.complete(queue, watched)))
        async with asyncio.timeout(120):
            while fault in LINES and not api.job_watches:
                await asyncio.sleep(0.05)
        lease = asyncio.create_task(asyncio.sleep(3600))  # as each task that starts after kopf
        tasks.append(lease)
        api.breaks.set()
        try:
            async with asyncio.timeout(120):
                while not (cache.is_complete("team-a") and (fault in ANSWERS or api.job_watches > 1)):
                    await asyncio.sleep(0.05)
                assert await queue.take() == ("team-a", "demo")
                while (page := 'unreadable{namespace="team-b"}') not in metrics.page().decode():
                    await asyncio.sleep(0.05)
            assert f"{page} 0.0" not in metrics.page().decode()
            assert cache.is_complete("team-b") == (fault in LINES)
            assert 'unreadable{namespace="team-a"}' not in metrics.page().decode()
            assert not lease.done(), "the end of one watch must not end the process"
            assert not any(task.done() for task in tasks[: len(watched) + len(jobs)])
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def test_definition_that_is_deleted_and_applied_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The jobs go with their definition; the watch waits, and delivers those that are created afterwards."""
    monkeypatch.setattr(watch, "LONGEST_WAIT", 0.1)
    api, cache, queue = Api(""), WatchCache(), WorkQueue[tuple[str, str]]()
    api.breaks.clear()
    async with served(api, tmp_path, monkeypatch):
        jobs = JobWatch("team-a", SETTINGS, cache=cache, queue=queue, health=WatchHealth())
        task = asyncio.create_task(jobs.run(started=lambda: None))
        try:
            async with asyncio.timeout(120):
                assert await queue.take() == ("team-a", "demo")
                queue.done(("team-a", "demo"))
                api.definition_deleted.set()
                await asyncio.sleep(3)
                api.job = {**JOB, "metadata": {**JOB["metadata"], "uid": "2", "resourceVersion": "19"}}
                api.definition_deleted.clear()
                while (job := cache.job(("team-a", "demo"))) is None or job["metadata"]["uid"] != "2":
                    await asyncio.sleep(0.05)
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def test_cluster_without_rights_on_nodes_is_served(caplog: pytest.LogCaptureFixture) -> None:
    """Jobs need no rights on nodes, so their absence is no error and no alert."""
    metrics = Metrics()
    health = WatchHealth(metrics.watches_failing)
    assert health.failed("", "Node", "403 Forbidden") and not health.failed("", "Node", "403 Forbidden")
    assert "not served" not in caplog.text and 'unreadable{namespace=""} 0.0' in metrics.page().decode()
    health.failed("", "Pod", "403 Forbidden")
    assert "the cluster is not served: Pod" in caplog.text
    health.works("", "Pod")
    assert 'unreadable{namespace=""} 0.0' in metrics.page().decode()
