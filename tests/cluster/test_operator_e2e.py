"""The smoke job on a real cluster by helm and kubectl: every stage runs in pods, and every part is killed once.

The operator is killed in every phase, without an effect on pods. A pod of each role is deleted while it is needed, and
a trainer pod is evicted. Each time the job loses at most one step, and every trajectory keeps its score. An eviction of
an engine, as `kubectl drain` does, and a scale-down lose nothing: the other engine continues their trajectories.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from rstar2_operator.status_writer import HOLD_SECONDS
from rstar2_train.api.state_dir import JobState
from rstar2_train.rollout import trajectory_store
from scripts.setup import VENV
from tests.cluster import jobs, mlflow_server, operator_release
from tests.cluster.flows import allowed
from tests.kube_node.cluster import Cluster
from tests.support.state_assertions import assert_complete, steps_done_twice

SECONDS = 2400
STAGES = ("sft", "rl-1", "rl-2", "hard", "rl-3", "eval")
STEPS = {"rl-1": 12, "rl-2": 4, "rl-3": 5}
"""Stage -> number of steps, enough for all disturbances of the stage."""
ENGINES = 2
"""Engines at the start, so that one can be evicted and removed while the other serves."""
COLUMNS = (
    "{.metadata.uid} {.metadata.labels.rstar2\\.dev/role} {.metadata.name}"
    " {.metadata.labels.batch\\.kubernetes\\.io/job-name}"
    ' {.metadata.labels.batch\\.kubernetes\\.io/job-completion-index}{"\\n"}'
)
KILL_RANK = """
import os, pathlib, signal
ranks = [file.parent.name for file in pathlib.Path("/proc").glob("[0-9]*/cmdline") if b"ray::Rank" in file.read_bytes()]
os.kill(int(ranks[0]), signal.SIGKILL)
"""
pytestmark = pytest.mark.timeout(SECONDS + 600)


@contextmanager
def recorded(cluster: Cluster, namespace: str, file: Path) -> Iterator[Callable[[], dict[str, list[str]]]]:
    """Watch pods; the result returns every pod since then: uid -> role, name, Job, completion index."""
    with file.open("w") as out:
        command = ["kubectl", "get", "pods", "-n", namespace, "--watch", "-o", f"jsonpath={COLUMNS}"]
        # Again and again: the API server ends a watch after 30 to 60 minutes.
        again = ["sh", "-c", 'while :; do "$@"; sleep 1; done', "sh", *command]
        watch = subprocess.Popen(again, stdout=out, env=cluster.environment(), start_new_session=True)
        try:
            yield lambda: {line.split()[0]: line.split()[1:] for line in file.read_text().splitlines() if line}
        finally:
            os.killpg(watch.pid, signal.SIGTERM)
            watch.wait()


class JobRun:
    """The running job, with methods that disturb it."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.removed: Counter[str] = Counter()
        """Role -> number of deleted and evicted pods."""
        self._deadline = time.monotonic() + SECONDS

    def status(self) -> dict[str, Any]:
        return self.cluster.get("arl", "smoke", "-n", self.namespace).get("status") or {}

    def describe(self) -> str:
        """Return the description of the job, its pods and events."""
        return self.cluster.kubectl("describe", "arl", "smoke", "-n", self.namespace) + self.cluster.describe(
            self.namespace
        )

    def until(self, goal: str, reached: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the status when `reached` is true for it; fail if the job finishes or the time is over before."""
        while not reached(status := self.status()):
            assert status.get("phase") not in jobs.FINAL, f"finished before {goal}:\n{self.describe()}"
            assert time.monotonic() < self._deadline, f"not reached: {goal}:\n{self.describe()}"
            time.sleep(0.5)
        return status

    def at(self, stage: str, step: int = 0) -> None:
        """Wait until a stage has done a step, according to its progress file: the status is some seconds older.

        A later stage will do: a busy machine may show a short one too late.
        """
        later = STAGES[STAGES.index(stage) :]
        running = ("Running", "Finalizing")
        self.until(f"stage {stage}", lambda status: status.get("stage") in later and status["phase"] in running)
        state = self.state()

        def reached(_: dict[str, Any]) -> bool:
            progress = state.progress()
            if not step or progress is None:
                return not step
            return progress.stage in later[1:] or (progress.stage == stage and progress.step >= step)

        self.until(f"step {step} of {stage}", reached)

    def assert_before_end(self, stage: str) -> None:
        """Check that a stage still has steps to do, so that it had to survive the last disturbance."""
        progress = self.state().progress()
        assert progress is not None and (progress.stage, progress.step < STEPS[stage]) == (stage, True), (
            f"{stage} finished before: increase its steps"
        )
        print(f"disturbed at step {progress.step} of {stage}")

    def state(self) -> JobState:
        return JobState(jobs.state_folder(self.cluster, self.namespace, "smoke"))

    def pods(self, role: str) -> list[dict[str, Any]]:
        """Return the running pods of a role whose deletion was not requested."""
        items = self.cluster.get("pods", "-n", self.namespace, "-l", f"rstar2.dev/role={role}")["items"]
        running = [pod for pod in items if pod["status"]["phase"] == "Running"]
        return [pod for pod in running if "deletionTimestamp" not in pod["metadata"]]

    def pod(self, role: str, index: int = 0) -> dict[str, Any]:
        """Return a running pod of a role, as soon as there is one."""
        pods: list[dict[str, Any]] = []

        def runs(_: dict[str, Any]) -> bool:
            pods[:] = self.pods(role)
            return bool(pods)

        self.until(f"a pod of {role}", runs)
        return pods[index]

    def delete(self, role: str) -> None:
        """Delete a pod of a role without a grace period."""
        name = self.pod(role)["metadata"]["name"]
        self.cluster.kubectl("delete", "pod", name, "-n", self.namespace, "--grace-period=0", "--force")
        self.removed[role] += 1

    def kill_rank(self, index: int) -> None:
        """Kill the process of the trainer rank in a trainer pod, as the kernel does when its memory is exhausted."""
        name = self.pod("trainer", index)["metadata"]["name"]
        # Not Cluster.exec, which may run a command again: the next rank would be killed too.
        self.cluster.kubectl("exec", name, "-n", self.namespace, "--", "python3", "-c", KILL_RANK)

    def until_ready(self, role: str, count: int) -> None:
        """Wait until a role has exactly `count` pods, and all of them are ready."""

        def reached(_: dict[str, Any]) -> bool:
            pods = self.cluster.get("pods", "-n", self.namespace, "-l", f"rstar2.dev/role={role}")["items"]
            return len(pods) == count and all(is_true(pod["status"], "Ready") for pod in pods)

        self.until(f"{count} ready pods of {role}", reached)

    def evict(self, role: str, index: int = 0) -> None:
        """Evict a pod of a role, as `kubectl drain` does."""
        name = self.pod(role, index)["metadata"]["name"]
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": self.namespace}}
        path = f"/api/v1/namespaces/{self.namespace}/pods/{name}/eviction"
        self.cluster.run("kubectl", "create", "--raw", path, "-f", "-", stdin=json.dumps(body))
        self.removed[role] += 1

    def kill_operator(self) -> None:
        operator_release.kill_operator(self.cluster)


def assert_flows(run: JobRun) -> None:
    """Check that the network allows the flow that the job needs and denies the others."""
    trainer, executor = (run.pod(role)["metadata"]["name"] for role in ("trainer", "executor"))
    addresses = {role: run.pod(role)["status"]["podIP"] for role in ("judge", "redis", "rollout")}
    flows = {
        (trainer, "smoke-judge", 8080): True,
        (trainer, "smoke-redis", 6379): False,
        (trainer, "smoke-executor", 7070): False,
        (executor, addresses["judge"], 8080): False,
        (executor, addresses["redis"], 6379): False,
        (executor, addresses["rollout"], 8000): False,
    }
    assert allowed(run.cluster, run.namespace, flows) == flows


def assert_gvisor(run: JobRun) -> None:
    executor = run.pod("executor")["metadata"]["name"]
    assert "gVisor" in run.cluster.exec(run.namespace, executor, "dmesg").stdout


def test_smoke_job_survives_kills_of_every_part(operated: Cluster, namespace: str, tmp_path: Path) -> None:
    """The job succeeds with the expected attempts, no pod is created twice, and its results are complete."""
    jobs.wait_until_alone(operated)
    uri = mlflow_server.start(operated, namespace)
    manifest = jobs.example_job(
        operated, namespace, "smoke.yaml", trainer={"replicas": 2, "gpusPerReplica": 0, "tokensPerMicroBatch": 4096},
        tracking={"mlflow": {"uri": uri}}, roles=("trainer", "rollout", "teacher"),
    )  # fmt: skip
    manifest["spec"]["rollout"]["replicas"] = ENGINES
    manifest["spec"]["teacher"] = {}
    teacher = {"source": manifest["spec"]["model"]["source"]}
    for stage in manifest["spec"]["stages"]:
        if stage["name"] in STEPS:
            stage["grpo"]["steps"] = STEPS[stage["name"]]
        if stage["name"] == "rl-3":
            stage["grpo"]["objective"] = {"type": "Distillation", "teacher": teacher, "rewardWeight": 1}
    run = JobRun(operated, namespace)
    with recorded(operated, namespace, tmp_path / "pods") as pods:
        start = time.time()
        operated.apply([manifest])
        run.until("the start", lambda status: status.get("phase") in ("Preparing", "Running"))
        run.kill_operator()
        run.at("sft")
        run.until("training", lambda status: is_true(status, "Training"))
        assert_few_writes_at_start(run, since=start)
        run.kill_operator()
        run.at("rl-1", step=1)
        assert_flows(run)
        assert_gvisor(run)
        run.delete("judge")
        run.delete("executor")
        run.kill_operator()
        run.until_ready("rollout", ENGINES)
        run.evict("rollout")
        run.assert_before_end("rl-1")
        run.at("rl-2", step=1)
        operated.kubectl("scale", "arl/smoke", "--replicas=1", "-n", namespace)
        run.delete("redis")
        run.at("rl-2", step=2)
        # Before the kill of the operator: without a leader the eviction is not recorded, and its restart is counted.
        run.evict("trainer", index=-1)
        run.until("the attempt after the eviction", lambda status: status.get("restarts") == 1)
        run.until_ready("rollout", 1)  # the removed engine has drained
        run.kill_operator()
        run.at("hard")
        run.kill_operator()
        run.delete("rollout")
        run.at("rl-3", step=1)
        run.delete("teacher")
        run.at("rl-3", step=2)
        # Not a deleted pod: its restart counts only if the orchestrator misses the rank before the pod (RanksLost).
        run.kill_rank(-1)
        run.kill_operator()
        run.at("eval")
        run.until("the deletion of the teacher", lambda _: not run.pods("teacher"))
        run.kill_operator()
        run.until("the report", lambda status: status.get("phase") in ("Finalizing", *jobs.FINAL))
        run.kill_operator()
        run.until("the end", lambda status: status.get("phase") in jobs.FINAL)
        status = run.status()
        print(operated.kubectl("get", "arl", "-n", namespace, "-o", "wide"))
        print(operated.kubectl("describe", "arl", "smoke", "-n", namespace))
        assert status["phase"] == "Succeeded", run.describe()
        assert_no_pod_twice(run, pods())
    stages = {stage["name"]: stage for stage in status["stages"]}
    assert {stage["phase"] for stage in stages.values()} == {"Succeeded"}
    twice = {"rl-2": 2, "rl-3": 2}
    assert {name: stage["attempts"] for name, stage in stages.items()} == {name: 1 for name in stages} | twice
    assert (status["restarts"], status["restartsCountedTowardsMax"]) == (2, 1), (
        "an eviction must not count towards maxRestarts"
    )
    state = run.state()
    assert_complete(state)
    twice_done = steps_done_twice(state)
    assert len(twice_done) <= 2
    assert "rl-1" not in {stage for stage, _ in twice_done}, "an eviction of an engine repeated a step"
    assert_mlflow(operated, namespace, list(stages))
    assert_view(operated, namespace)
    assert_verify(operated, namespace, state)


def is_true(status: dict[str, Any], kind: str) -> bool:
    """Return whether a condition of the type is true."""
    conditions = status.get("conditions") or ()
    return any(condition["type"] == kind and condition["status"] == "True" for condition in conditions)


def assert_few_writes_at_start(run: JobRun, *, since: float) -> None:
    """Check one write per object, and that a status without news waited for its time, with one kill of the operator."""
    # Accepted ones: the API server gives up the request of an operator that is killed meanwhile.
    requests = operator_release.writes(run.cluster, since=since, accepted=True)
    written = [(verb, path) for verb, path in requests if path.startswith(f"{run.namespace}/")]
    own = Counter(path for _, path in written if "/events/" not in path)
    own.pop(f"{run.namespace}/agenticrljobs/smoke/status")
    assert (
        own.pop(f"{run.namespace}/secrets/smoke-secrets") <= 2
    )  # unreadable for the operator: the new leader writes it again
    assert [(verb, path) for verb, path in written if own[path] > 1] == []
    statuses = operator_release.statuses(run.cluster, run.namespace)
    early = [
        (f"after {later - earlier:.1f} s", old, new)
        for (earlier, old), (later, new) in pairwise(statuses)
        if later - earlier < 0.5 * HOLD_SECONDS and news(old) == news(new)
    ]
    print(f"starting the job: {own.total()} writes of {len(own)} objects, {len(statuses)} of status")
    assert len(early) <= 1, yaml.safe_dump(early)  # a new leader does not know the last write


def news(status: dict[str, Any]) -> list[object]:
    """Return the fields whose change is written immediately."""
    degraded = [(each["status"], each["reason"]) for each in status["conditions"] if each["type"] == "Degraded"]
    return [*(status.get(field) for field in ("phase", "stage", "restarts")), degraded]


def assert_no_pod_twice(run: JobRun, pods: dict[str, list[str]]) -> None:
    """Check that each pod was created once, and once more per deletion of its role, across all operators."""
    indexes = Counter((row[2], row[3]) for row in pods.values() if len(row) == 4)
    assert indexes and set(indexes.values()) == {1}, indexes
    roles = Counter(row[0] for row in pods.values() if len(row) == 2)
    for role in ("judge", "executor", "rollout", "teacher", "redis"):
        assert roles[role] == (ENGINES if role == "rollout" else 1) + run.removed[role], roles


def assert_view(cluster: Cluster, namespace: str) -> None:
    """Check that `kubectl rstar2 view` shows the job's trajectories, and that its pod is deleted with it."""
    command = ["kubectl", "rstar2", "view", "smoke", "-n", namespace]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=with_plugin(cluster)) as command_process:
        assert command_process.stdout is not None
        try:
            line = command_process.stdout.readline()
            address = re.search(r"open (http://127\.0\.0\.1:\d+/\S+/)", line)
            assert address, f"no address: {line!r}\n{cluster.describe(namespace)}"
            with urllib.request.urlopen(address[1] + "news.json?generation=0&rows=0&points=0") as answer:
                news = json.load(answer)
        finally:
            command_process.send_signal(signal.SIGINT)
    assert news["status"]["stored"] > 0 and news["points"]
    assert {stage["phase"] for stage in news["status"]["stages"]} == {"done"}
    cluster.kubectl("wait", "pod", "-l", "rstar2.dev/view=smoke", "-n", namespace, "--for=delete", "--timeout=60s")


def assert_verify(cluster: Cluster, namespace: str, state: JobState) -> None:
    """Check that `kubectl rstar2 verify` repeats the verdicts on a problem as `rstar2 verify` does on the state."""
    rows = trajectory_store.read(min(state.stage("rl-1").trajectories.glob("step-*.parquet")))
    problem = ["--problem", rows[0].prompt_id]
    commands = (
        [str(VENV / "bin" / "rstar2"), "verify", "--job", "smoke", "--state", str(state.root.parent), *problem],
        ["kubectl", "rstar2", "verify", "smoke", "-n", namespace, *problem],
    )
    local, remote = (
        subprocess.run(command, capture_output=True, text=True, env=with_plugin(cluster), check=False)
        for command in commands
    )
    assert "recorded verdict" in local.stdout
    assert (remote.stdout, remote.returncode) == (local.stdout, local.returncode), remote.stderr
    cluster.kubectl("wait", "pod", "-l", "rstar2.dev/verify=smoke", "-n", namespace, "--for=delete", "--timeout=60s")


def with_plugin(cluster: Cluster) -> dict[str, str]:
    """Return an environment in which kubectl uses the cluster and finds its plug-in `rstar2`."""
    environment = cluster.environment()
    return {**environment, "PATH": os.pathsep.join([str(VENV / "bin"), environment["PATH"]])}


def assert_mlflow(cluster: Cluster, namespace: str, stages: list[str]) -> None:
    runs = mlflow_server.runs(cluster, namespace)
    names = ["smoke", *(f"smoke / {stage}" for stage in stages)]
    assert {name: status for name, (status, _) in runs.items()} == dict.fromkeys(names, "FINISHED")
    assert all(metrics for name, (_, metrics) in runs.items() if name != "smoke")
