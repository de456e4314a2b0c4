"""A job's judge and executors in pods: the hostile snippets of the local sandbox tests, and scaling."""

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
from tests.cluster import jobs, operator_release
from tests.kube_node.cluster import Cluster
from tests.kube_node.pods import restricted
from tests.support.hostile import CLEAN, HOSTILE, PROBE, SESSIONS, targets
from tests.support.waiting import until

READY_SECONDS = 400
SCRIPT = """
import asyncio, json, sys, time
from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.judge.client.client import JudgeClient
from rstar2_train.utils.auth import read_secret

SHORT, PATIENT = JudgeLimits(wall_seconds=2), JudgeLimits(wall_seconds=60)

async def main():
    request = json.load(sys.stdin)
    async with JudgeClient(request["url"], read_secret("RSTAR2_JUDGE_TOKEN")) as client:
        for attack in request["attacks"]:
            if attack["before"]:
                await client.run(attack["before"], limits=PATIENT)
            result = await client.run(attack["code"], limits=JudgeLimits(**attack["limits"]))
            start = time.perf_counter()
            probe = await client.run(request["probe"], limits=PATIENT)
            row = [attack["name"], result.to_dict(), probe.to_dict(), time.perf_counter() - start]
            print(json.dumps(row), flush=True)
        for name, code in request["sessions"].items():
            async with client.session() as good, client.session() as bad:
                await good.run("kept = 'here'", limits=PATIENT)
                await bad.run(code, limits=SHORT)
                for _ in range(3):
                    await bad.run("print('again')", limits=SHORT)
                    results = await client.run(request["probe"], limits=PATIENT), await good.run("kept", limits=PATIENT)
                    print(json.dumps([name, *(result.to_dict() for result in results)]), flush=True)

asyncio.run(main())
"""
"""Sends the attacks and sessions of its standard input to the judge; runs in the judge's pod."""
STATUS = f"""
import asyncio, json
from rstar2_train.judge.client.client import JudgeClient
from rstar2_train.utils.auth import read_secret

async def main():
    async with JudgeClient("http://127.0.0.1:{names.JUDGE_PORT}", read_secret("RSTAR2_JUDGE_TOKEN")) as client:
        print(json.dumps(await client.status()))

asyncio.run(main())
"""
"""Prints the status of the judge; runs in the judge's pod."""


@pytest.fixture(scope="module")
def judged(operated: Cluster) -> Iterator[str]:
    """Provide a namespace with a ready judge; the job waits for an engine image that does not exist."""
    namespace = f"t-{uuid.uuid4().hex[:8]}"
    operated.apply([restricted(namespace)])
    job = jobs.example_job(operated, namespace, "smoke.yaml")
    job["spec"]["stages"] = [stage for stage in job["spec"]["stages"] if stage["name"] == "rl-1"]
    job["spec"]["executor"] = {"replicas": 1, "cpu": "500m"}  # leaves capacity for a second one
    job["spec"]["rollout"]["image"] = "rstar2.test/no-such-engine:1"
    operated.apply([job])
    deadline = time.monotonic() + READY_SECONDS
    while not ready(operated, namespace):
        assert time.monotonic() < deadline, operated.describe(namespace)
        time.sleep(1)
    yield namespace
    operated.kubectl("delete", "namespace", namespace, "--wait=false")


def test_executor_pod_contains_hostile_snippets(operated: Cluster, judged: str) -> None:
    """No attack succeeds, each ends as expected, and the next call and other sessions are unharmed."""
    namespace = judged
    judge, executor = (pod(operated, namespace, role) for role in ("judge", "executor"))
    files = ["/etc/resolv.conf", "/usr", "/root", "/var/run/secrets", "/opt/rstar2", names.WORKER_KEYS, "/dev/fd"]
    addresses = [
        (service(operated, namespace, names.redis("smoke")), names.REDIS_PORT),
        (judge["status"]["podIP"], names.JUDGE_PORT),
        (executor["status"]["podIP"], names.EXECUTOR_PORT),
        ("127.0.0.1", names.EXECUTOR_PORT),
        (service(operated, "default", "kubernetes"), 443),
    ]
    values = targets(files, addresses)
    attacks = [
        {"name": attack.name, "before": attack.before, "code": attack.program(values), "limits": attack.limits}
        for attack in HOSTILE
    ]
    url = f"http://127.0.0.1:{names.JUDGE_PORT}"
    request = {"url": url, "probe": PROBE, "attacks": attacks, "sessions": SESSIONS}
    command = ["exec", "-i", "-n", namespace, judge["metadata"]["name"], "-c", "api", "--", "python", "-c", SCRIPT]
    output = operated.kubectl(*command, stdin=json.dumps(request), seconds=1200)
    rows = [json.loads(line) for line in output.splitlines()]
    attack_rows, session_rows = rows[: len(HOSTILE)], rows[len(HOSTILE) :]
    assert [name for name, *_ in attack_rows] == [attack.name for attack in HOSTILE]
    seconds = [row[3] for row in attack_rows]
    print(f"seconds until the next result: p50 {statistics.median(seconds):.3f}, max {max(seconds):.2f}")
    by_name = {attack.name: attack for attack in HOSTILE}
    problems = {
        name: by_name[name].problem(result["status"], result["stdout"], result["stderr"])
        for name, result, *_ in attack_rows
    }
    assert {name: problem for name, problem in problems.items() if problem} == {}
    harmed = {name: probe for name, _, probe, _ in attack_rows if (probe["status"], probe["stdout"]) != ("ok", CLEAN)}
    assert harmed == {}
    assert [name for name, *_ in session_rows] == [name for name in SESSIONS for _ in range(3)]
    for name, probe, kept in session_rows:
        outcome = f"{name}: {probe}, {kept}\n{judge_log(operated, judge)}"
        assert (probe["stdout"], kept["stdout"]) == (CLEAN, "'here'\n"), outcome


def test_executors_scaled_by_autoscaler_are_used(operated: Cluster, judged: str) -> None:
    """An external change of the replicas stays, and the worker connects to the new executor."""
    example = (ROOT / "examples" / "cluster" / "judge-scaling.yaml").read_text().replace("JOB", "smoke")
    supported = [body for body in yaml.safe_load_all(example) if body["kind"] != "PodMonitor"]  # has no CRD here
    operated.kubectl("apply", "--dry-run=server", "-n", judged, "-f", "-", stdin=json.dumps({
        "apiVersion": "v1", "kind": "List", "items": supported}))  # fmt: skip
    scaled = next(body["spec"]["scaleTargetRef"] for body in supported if body["kind"] == "HorizontalPodAutoscaler")
    assert scaled["name"] == names.executor("smoke")
    operated.kubectl("scale", "-n", judged, f"deployment/{scaled['name']}", "--replicas=2")
    judge = pod(operated, judged, "judge")["metadata"]["name"]
    command = ["exec", "-n", judged, judge, "-c", "api", "--", "python", "-c", STATUS]
    deadline = time.monotonic() + READY_SECONDS
    while (status := json.loads(operated.kubectl(*command)))["executors"]["ready"] != 2:
        assert time.monotonic() < deadline, f"{status}\n{operated.describe(judged)}"
        time.sleep(1)
    assert operated.get("deployment", scaled["name"], "-n", judged)["spec"]["replicas"] == 2


def test_uninstall_ends_a_running_job_in_stages(operated: Cluster, judged: str) -> None:
    """The last test with the operator. The hook waits until the job's pods are gone; report and claim stay."""
    arguments = ("--namespace", operator_release.NAMESPACE, "--timeout", "600s")
    operated.run("helm", "uninstall", operator_release.RELEASE, *arguments, seconds=700)
    assert operated.get("pods", "-n", judged, "-l", "rstar2.dev/job=smoke")["items"] == []
    created = f"--field-selector=reason=SuccessfulCreate,involvedObject.name={names.report('smoke')}"
    assert operated.get("events", "-n", judged, created)["items"] != []
    definition = ("kubectl", "get", operator_release.DEFINITION)
    until(lambda: operated.run(*definition, check=False).returncode != 0, "the definition is deleted")
    kinds = "networkpolicies,jobs,configmaps,deployments,statefulsets,services"

    def left() -> list[str]:
        items = operated.get(kinds, "-n", judged, "-l", "rstar2.dev/job=smoke")["items"]
        return [f"{each['kind']}/{each['metadata']['name']}" for each in items]

    until(lambda: left() == [], "the garbage collector deletes the objects of the job")
    assert operated.get("pvc", "-n", judged)["items"] != []


def ready(cluster: Cluster, namespace: str) -> bool:
    conditions = (cluster.get("arl", "smoke", "-n", namespace).get("status") or {}).get("conditions", ())
    return any(item["type"] == "JudgeReady" and item["status"] == "True" for item in conditions)


def pod(cluster: Cluster, namespace: str, role: str) -> dict:
    (item,) = cluster.get("pods", "-n", namespace, "-l", f"rstar2.dev/role={role}")["items"]
    return item


def judge_log(cluster: Cluster, judge: dict) -> str:
    """Return the last lines of a judge's pod: it has the reason for which a sandbox ended."""
    metadata = judge["metadata"]
    return cluster.kubectl("logs", metadata["name"], "-n", metadata["namespace"], "--all-containers", "--tail=40")


def service(cluster: Cluster, namespace: str, name: str) -> str:
    """Return the address of a Service, or of the only endpoint of a headless one."""
    address = cluster.get("service", name, "-n", namespace)["spec"]["clusterIP"]
    if address != "None":
        return address
    return cluster.get("endpoints", name, "-n", namespace)["subsets"][0]["addresses"][0]["ip"]
