"""A job's judge and executors in pods: hostile snippets, those that local sandboxes are held to; and scaling."""

from __future__ import annotations

import json
import statistics
import time
import uuid
from collections.abc import Iterator

import pytest
import yaml

from rstar2_operator import names
from scripts.setup import ROOT
from tests.cluster import training
from tests.kube_node.cluster import Cluster
from tests.kube_node.pods import restricted
from tests.support.hostile import CLEAN, HOSTILE, PROBE, SESSIONS, targets

READY_SECONDS = 180
SCRIPT = """
import asyncio, json, sys, time
from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.judge.client.client import JudgeClient
from rstar2_train.utils.auth import secret

SHORT = JudgeLimits(wall_seconds=2)

async def main():
    given = json.load(sys.stdin)
    async with JudgeClient(given["url"], secret("RSTAR2_JUDGE_TOKEN")) as client:
        for attack in given["attacks"]:
            if attack["before"]:
                await client.run(attack["before"])
            result = await client.run(attack["code"], limits=JudgeLimits(**attack["limits"]))
            began = time.perf_counter()
            probe = await client.run(given["probe"])
            seen = [attack["name"], result.to_dict(), probe.to_dict(), time.perf_counter() - began]
            print(json.dumps(seen), flush=True)
        for name, code in given["sessions"].items():
            async with client.session() as good, client.session() as bad:
                await good.run("kept = 'here'")
                await bad.run(code, limits=SHORT)
                for _ in range(3):
                    await bad.run("print('again')", limits=SHORT)
                    others = await client.run(given["probe"]), await good.run("kept")
                    print(json.dumps([name, *(one.to_dict() for one in others)]), flush=True)

asyncio.run(main())
"""
"""Runs in the judge's pod, beside its API."""
STATUS = f"""
import asyncio, json
from rstar2_train.judge.client.client import JudgeClient
from rstar2_train.utils.auth import secret

async def main():
    async with JudgeClient("http://127.0.0.1:{names.JUDGE_PORT}", secret("RSTAR2_JUDGE_TOKEN")) as client:
        print(json.dumps(await client.status()))

asyncio.run(main())
"""
"""The same."""


@pytest.fixture(scope="module")
def judged(operated: Cluster) -> Iterator[str]:
    """A namespace with a job that never gets beyond its start, for want of an engine: only its judge is needed."""
    namespace = f"t-{uuid.uuid4().hex[:8]}"
    operated.apply([restricted(namespace)])
    job = training.job(operated, namespace, "smoke.yaml")
    job["spec"]["stages"] = [stage for stage in job["spec"]["stages"] if stage["name"] == "rl-1"]
    job["spec"]["executor"] = {"replicas": 1, "cpu": "500m"}  # room for a second one
    job["spec"]["rollout"]["image"] = "rstar2.test/no-such-engine:1"
    operated.apply([job])
    deadline = time.monotonic() + READY_SECONDS
    while not ready(operated, namespace):
        assert time.monotonic() < deadline, operated.story(namespace)
        time.sleep(1)
    yield namespace
    operated.kubectl("delete", "namespace", namespace, "--wait=false")


def test_no_snippet_gets_out_of_an_executors_pod(operated: Cluster, judged: str) -> None:
    namespace = judged
    judge, executor = (pod(operated, namespace, role) for role in ("judge", "executor"))
    files = ["/etc/resolv.conf", "/usr", "/root", "/var/run/secrets", "/opt/rstar2", names.WORKER_KEYS, "/dev/shm"]
    addresses = [
        (service(operated, namespace, names.redis("smoke")), names.REDIS_PORT),
        (judge["status"]["podIP"], names.JUDGE_PORT),
        (executor["status"]["podIP"], names.EXECUTOR_PORT),
        ("127.0.0.1", names.EXECUTOR_PORT),
        (service(operated, "default", "kubernetes"), 443),
    ]
    values = targets(files, addresses)
    attacks = [
        {"name": one.name, "before": one.before, "code": one.program(values), "limits": one.limits} for one in HOSTILE
    ]
    url = f"http://127.0.0.1:{names.JUDGE_PORT}"
    given = {"url": url, "probe": PROBE, "attacks": attacks, "sessions": SESSIONS}
    command = ["exec", "-i", "-n", namespace, judge["metadata"]["name"], "-c", "api", "--", "python", "-c", SCRIPT]
    rows = [json.loads(line) for line in operated.kubectl(*command, stdin=json.dumps(given), seconds=600).splitlines()]
    seen, beside = rows[: len(HOSTILE)], rows[len(HOSTILE) :]
    assert [name for name, *_ in seen] == [one.name for one in HOSTILE]
    seconds = [row[3] for row in seen]
    print(f"ready again after {len(seen)} attacks: p50 {statistics.median(seconds):.3f} s, max {max(seconds):.2f} s")
    by_name = {one.name: one for one in HOSTILE}
    problems = {
        name: by_name[name].problem(result["status"], result["stdout"], result["stderr"]) for name, result, *_ in seen
    }
    assert {name: problem for name, problem in problems.items() if problem} == {}
    harmed = {name: probe for name, _, probe, _ in seen if (probe["status"], probe["stdout"]) != ("ok", CLEAN)}
    assert harmed == {}
    assert [name for name, *_ in beside] == [name for name in SESSIONS for _ in range(3)]
    for name, probe, kept in beside:
        assert (probe["stdout"], kept["stdout"]) == (CLEAN, "'here'\n"), name


def test_executors_are_scaled_from_outside(operated: Cluster, judged: str) -> None:
    """As an autoscaler does: the operator leaves the number alone, and the worker finds whoever comes."""
    example = (ROOT / "examples" / "cluster" / "judge-scaling.yaml").read_text().replace("JOB", "smoke")
    known = [body for body in yaml.safe_load_all(example) if body["kind"] != "PodMonitor"]  # of Prometheus Operator
    operated.kubectl("apply", "--dry-run=server", "-n", judged, "-f", "-", stdin=json.dumps({
        "apiVersion": "v1", "kind": "List", "items": known}))  # fmt: skip
    scaled = next(body["spec"]["scaleTargetRef"] for body in known if body["kind"] == "HorizontalPodAutoscaler")
    assert scaled["name"] == names.executor("smoke")
    operated.kubectl("scale", "-n", judged, f"deployment/{scaled['name']}", "--replicas=2")
    judge = pod(operated, judged, "judge")["metadata"]["name"]
    question = ["exec", "-n", judged, judge, "-c", "api", "--", "python", "-c", STATUS]
    deadline = time.monotonic() + READY_SECONDS
    while (status := json.loads(operated.kubectl(*question)))["executors"]["ready"] != 2:
        assert time.monotonic() < deadline, f"{status}\n{operated.story(judged)}"
        time.sleep(1)
    assert operated.get("deployment", scaled["name"], "-n", judged)["spec"]["replicas"] == 2


def ready(cluster: Cluster, namespace: str) -> bool:
    conditions = (cluster.get("arl", "smoke", "-n", namespace).get("status") or {}).get("conditions", ())
    return any(one["type"] == "JudgeReady" and one["status"] == "True" for one in conditions)


def pod(cluster: Cluster, namespace: str, role: str) -> dict:
    (found,) = cluster.get("pods", "-n", namespace, "-l", f"rstar2.dev/role={role}")["items"]
    return found


def service(cluster: Cluster, namespace: str, name: str) -> str:
    found = cluster.get("service", name, "-n", namespace)["spec"]["clusterIP"]
    return (
        found
        if found != "None"
        else cluster.get("endpoints", name, "-n", namespace)["subsets"][0]["addresses"][0]["ip"]
    )
