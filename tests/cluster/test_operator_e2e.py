"""The tiny job on a real cluster, by helm and kubectl alone: every stage in pods, and every part killed on the way.

The operator is ended in every phase, which no pod may notice; a pod of each role is deleted while it is needed, and one
of the trainer's evicted, which costs one step at most each time and no trajectory its score.
"""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rstar2_train.api.state_dir import JobState
from tests.cluster import training
from tests.kube_node.cluster import Cluster
from tests.support.state_assertions import assert_whole, steps_done_twice

SECONDS = 2400
STEPS = {"rl-1": 8, "rl-2": 4, "rl-3": 5}
"""Enough for what is done to each stage to happen before it ends."""
FINAL = ("Complete", "Failed", "Invalid")
COLUMNS = (
    "{.metadata.uid} {.metadata.labels.rstar2\\.dev/role} {.metadata.name}"
    " {.metadata.labels.batch\\.kubernetes\\.io/job-name}"
    ' {.metadata.labels.batch\\.kubernetes\\.io/job-completion-index}{"\\n"}'
)
REACH = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 3)"
pytestmark = pytest.mark.timeout(SECONDS + 600)


@contextmanager
def recorded(cluster: Cluster, namespace: str, file: Path) -> Iterator[Callable[[], dict[str, list[str]]]]:
    """Every pod that the namespace ever had: uid -> role, name, Job and index of it."""
    with file.open("w") as out:
        command = ["kubectl", "get", "pods", "-n", namespace, "--watch", "-o", f"jsonpath={COLUMNS}"]
        watch = subprocess.Popen(command, stdout=out, env=cluster.environment())
        try:
            yield lambda: {line.split()[0]: line.split()[1:] for line in file.read_text().splitlines() if line}
        finally:
            watch.terminate()
            watch.wait()


class Run:
    """The job as it runs; disturbs it."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.deleted: Counter[str] = Counter()
        """Role -> pods deleted."""
        self.ended_in: list[str] = []
        """Phases in which the operator was ended."""
        self._deadline = time.monotonic() + SECONDS

    def status(self) -> dict[str, Any]:
        return self.cluster.get("arl", "smoke", "-n", self.namespace).get("status") or {}

    def story(self) -> str:
        return self.cluster.kubectl("describe", "arl", "smoke", "-n", self.namespace) + self.cluster.story(
            self.namespace
        )

    def until(self, what: str, reached: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The status once it is so; fails when the job ends otherwise, or never gets there."""
        while not reached(status := self.status()):
            assert status.get("phase") not in FINAL, f"ended before {what}:\n{self.story()}"
            assert time.monotonic() < self._deadline, f"never saw {what}:\n{self.story()}"
            time.sleep(0.5)
        return status

    def at(self, stage: str, step: int = 0) -> None:
        """Wait until a stage's driver has done a step, as its own file says: the status may be some seconds behind."""
        self.until(f"stage {stage}", lambda status: status.get("stage") == stage and status["phase"] == "Running")
        state = self.state()

        def reached(_: dict[str, Any]) -> bool:
            progress = state.progress()
            return (progress is not None and progress.stage == stage and progress.step >= step > 0) or not step

        self.until(f"step {step} of {stage}", reached)

    def state(self) -> JobState:
        return JobState(training.state_folder(self.cluster, self.namespace, "smoke"))

    def pods(self, role: str) -> list[dict[str, Any]]:
        found = self.cluster.get("pods", "-n", self.namespace, "-l", f"rstar2.dev/role={role}")["items"]
        return [pod for pod in found if pod["status"]["phase"] == "Running"]

    def delete(self, role: str, index: int = 0) -> None:
        """Delete a pod of a role without a warning."""
        name = self.pods(role)[index]["metadata"]["name"]
        self.cluster.kubectl("delete", "pod", name, "-n", self.namespace, "--grace-period=0", "--force")
        self.deleted[role] += 1

    def evict(self, role: str, index: int = 0) -> None:
        """Ask a pod of a role to go as who drains a node does."""
        name = self.pods(role)[index]["metadata"]["name"]
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": self.namespace}}
        path = f"/api/v1/namespaces/{self.namespace}/pods/{name}/eviction"
        self.cluster.run("kubectl", "create", "--raw", path, "-f", "-", stdin=training.as_json(body))

    def end_operator(self, phase: str) -> None:
        training.kill_operator(self.cluster)
        self.ended_in.append(phase)

    def reaches(self, pod: str, host: str, port: int) -> bool:
        asked = self.cluster.exec(self.namespace, pod, "python3", "-c", REACH, host, str(port), check=False)
        assert asked.returncode == 0 or "Error" in asked.stderr, asked.stderr
        return asked.returncode == 0


def assert_flows(run: Run) -> None:
    """What the design's arrows allow works, or the job would not; what it does not is denied."""
    trainer, executor = (run.pods(role)[0]["metadata"]["name"] for role in ("trainer", "executor"))
    addresses = {role: run.pods(role)[0]["status"]["podIP"] for role in ("judge", "redis", "rollout")}
    flows = {
        (trainer, "smoke-judge", 8080): True,
        (trainer, "smoke-redis", 6379): False,
        (trainer, "smoke-executor", 7070): False,
        (executor, addresses["judge"], 8080): False,
        (executor, addresses["redis"], 6379): False,
        (executor, addresses["rollout"], 8000): False,
    }
    with ThreadPoolExecutor(len(flows)) as threads:  # a denied one takes its whole time limit
        seen = dict(zip(flows, threads.map(lambda flow: run.reaches(*flow), flows), strict=True))
    assert seen == flows


def assert_gvisor(run: Run) -> None:
    executor = run.pods("executor")[0]["metadata"]["name"]
    assert "gVisor" in run.cluster.exec(run.namespace, executor, "dmesg").stdout


def test_the_smoke_job_completes_whatever_is_killed(operated: Cluster, namespace: str, tmp_path: Path) -> None:
    training.wait_until_alone(operated)
    uri = training.start_mlflow(operated, namespace)
    manifest = training.job(
        operated, namespace, "smoke.yaml", trainer={"replicas": 2, "gpusPerReplica": 0, "tokensPerMicroBatch": 4096},
        tracking={"mlflow": {"uri": uri}},
    )  # fmt: skip
    for stage in manifest["spec"]["stages"]:
        if stage["name"] in STEPS:
            stage["grpo"]["steps"] = STEPS[stage["name"]]
    run = Run(operated, namespace)
    with recorded(operated, namespace, tmp_path / "pods") as pods:
        began = time.time()
        operated.apply([manifest])
        run.until("its start", lambda status: status.get("phase") == "Preparing")
        run.end_operator("Preparing")
        run.at("sft")
        run.until("training", lambda status: has(status, "Training"))
        assert_start_was_cheap(run, since=began)
        run.end_operator("sft")
        run.at("rl-1", step=1)
        assert_flows(run)
        assert_gvisor(run)
        run.delete("judge")
        run.delete("executor")
        run.end_operator("rl-1")
        run.at("rl-2", step=1)
        run.delete("redis")
        run.at("rl-2", step=2)
        # Before the operator is ended: while nobody leads an eviction is not seen as one, and its restart is counted.
        run.evict("trainer", index=-1)
        run.until("the attempt after the eviction", lambda status: status.get("restarts") == 1)
        run.end_operator("rl-2")
        run.at("hard")
        run.end_operator("hard")
        run.delete("rollout")
        run.at("rl-3", step=2)
        run.delete("trainer", index=-1)
        run.end_operator("rl-3")
        run.at("eval")
        run.end_operator("eval")
        run.until("its report", lambda status: status.get("phase") == "Finishing")
        run.end_operator("Finishing")
        run.until("the end", lambda status: status.get("phase") in FINAL)
        status = run.status()
        print(operated.kubectl("get", "arl", "-n", namespace, "-o", "wide"))
        print(operated.kubectl("describe", "arl", "smoke", "-n", namespace))
        assert status["phase"] == "Complete", run.story()
        assert_no_pod_twice(run, pods())
    stages = {stage["name"]: stage for stage in status["stages"]}
    assert {stage["phase"] for stage in stages.values()} == {"Done"}
    twice = {"rl-2": 2, "rl-3": 2}
    assert {name: stage["attempts"] for name, stage in stages.items()} == {name: 1 for name in stages} | twice
    assert (status["restarts"], status["restartsCountedTowardsMax"]) == (2, 1), "who drains a node counts nothing"
    state = run.state()
    assert_whole(state)
    assert len(steps_done_twice(state)) <= 2
    assert_mlflow(operated, namespace, list(stages))


def has(status: dict[str, Any], kind: str) -> bool:
    return any(one["type"] == kind and one["status"] == "True" for one in status.get("conditions") or ())


def assert_start_was_cheap(run: Run, *, since: float) -> None:
    """One write an object, at most three of status until training runs. (The operator was ended once meanwhile.)"""
    written = [what for _, what in training.writes(run.cluster, since=since) if what.startswith(f"{run.namespace}/")]
    own = Counter(what for what in written if "/events/" not in what)
    own.pop(f"{run.namespace}/agenticrljobs/smoke/status")
    assert own.pop(f"{run.namespace}/secrets/smoke-secrets") <= 2  # nobody may read it: the successor writes it anew
    assert {what: times for what, times in own.items() if times > 1} == {}
    said = training.statuses(run.cluster, run.namespace)
    starting = next(count for count, status in enumerate(said, start=1) if has(status, "Training"))
    print(f"starting the job: {own.total()} writes of {len(own)} objects, {starting} of status")
    assert starting <= 3, said[:starting]


def assert_no_pod_twice(run: Run, pods: dict[str, list[str]]) -> None:
    """Each pod of a Job was made once, whoever reconciled; the others once, and once more for each that was deleted."""
    indexes = Counter((row[2], row[3]) for row in pods.values() if len(row) == 4)
    assert indexes and set(indexes.values()) == {1}, indexes
    roles = Counter(row[0] for row in pods.values() if len(row) == 2)
    for role in ("judge", "executor", "rollout", "redis"):
        assert roles[role] == 1 + run.deleted[role], roles


def assert_mlflow(cluster: Cluster, namespace: str, stages: list[str]) -> None:
    runs = training.mlflow_runs(cluster, namespace)
    names = ["smoke", *(f"smoke / {stage}" for stage in stages)]
    assert {name: ended for name, (ended, _) in runs.items()} == dict.fromkeys(names, "FINISHED")
    assert all(metrics for name, (_, metrics) in runs.items() if name != "smoke")
