"""Tasks of users on the cluster: an agent's pods, an environment of PyPI, and a tool that returns files."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from rstar2_train.api.loader import read_manifest
from rstar2_train.api.state_dir import JobState
from rstar2_train.data.tiny import write_rows
from rstar2_train.data.tiny.policy import write_policy
from rstar2_train.evaluation.records import JobReport
from rstar2_train.rollout import trajectory_store
from rstar2_train.rollout.trajectory import Trajectory
from rstar2_train.tools.schema import call_text
from scripts.setup import ROOT
from tests.cluster import jobs
from tests.kube_node import images, volumes
from tests.kube_node.cluster import Cluster
from tests.support import openenv_package
from tests.support.waiting import until

SECONDS = 1500
pytestmark = pytest.mark.timeout(SECONDS + 600)
TOOL = '''
def note(text: str) -> str:
    """Writes a file."""
    with open("out/note.txt", "w") as file:
        file.write(text)
    return "written"
'''
CHECKER = """
def score(row, answer, transcript):
    return float(open("out/note.txt").read() == row["data"]["text"])
"""


def finish(cluster: Cluster, namespace: str, name: str) -> JobState:
    """Wait until a job has succeeded; return its state directory."""
    deadline = time.monotonic() + SECONDS
    while (phase := jobs.phase(cluster, namespace, name)) not in jobs.FINAL:
        assert time.monotonic() < deadline, cluster.describe(namespace)
        time.sleep(2)
    assert phase == "Succeeded", cluster.kubectl("describe", "arl", name, "-n", namespace)
    return JobState(jobs.state_folder(cluster, namespace, name))


def trajectories(state: JobState, stage: str) -> list[Trajectory]:
    """Return the rollouts of all steps."""
    files = sorted(state.stage(stage).trajectories.glob("step-*.parquet"))
    return [row for file in files for row in trajectory_store.read(file)]


def let_pods_read(folder: Path) -> None:
    """Let every user read the files of a task: only their owner can read weights, and pods have another user."""
    for file in folder.rglob("*"):
        file.chmod(0o755 if file.is_dir() else 0o644)


def mount(cluster: Cluster, namespace: str, job: dict[str, Any], folders: dict[str, Path]) -> None:
    """Show folders of this machine to the pods of the job's patch, each at its own path."""
    for name, folder in folders.items():
        cluster.apply(volumes.host_folder(namespace, name, folder))
    more, mounts = volumes.mounts(folders)
    (patch,) = job["spec"]["runtimePatches"]
    patch["volumes"] = [*patch["volumes"], *more]
    patch["volumeMounts"] = [*patch["volumeMounts"], *mounts]


def running_agents(cluster: Cluster, namespace: str) -> list[str]:
    """Return the names of the running pods of an agent."""
    pods = cluster.get("pods", "-n", namespace, "-l", "rstar2.dev/role=agent")["items"]
    return [pod["metadata"]["name"] for pod in pods if pod["status"]["phase"] == "Running"]


def test_agent_pods_play_isolated_rollouts(operated: Cluster, namespace: str) -> None:
    """Programs in pods reach the endpoint, and neither another role nor the token of the pods; no judge starts.

    A pod is lost while it plays: another one replaces it, and its rollouts are played again. The reason of each reward
    names the secrets and addresses that the program found.
    """
    roles = {"rollout": 8000, "trainer": 6379}
    addresses = ",".join(f"agent-{role}:{port}" for role, port in roles.items())
    program = ["python", str(ROOT / "tests" / "support" / "agent_program.py"), "spy", addresses]
    agent = {"command": program, "image": images.BASE, "replicas": 2, "maxConcurrentEpisodes": 4, "correctFrom": 0.5}
    manifest = read_manifest(ROOT / "examples" / "agent.yaml")
    del manifest["spec"]["validation"]
    patched = ("trainer", "rollout", "agent")
    operated.apply([jobs.cluster_job(operated, namespace, manifest, roles=patched, agent=agent)])
    # On the node, not in a pod: `kubectl exec` would show the token of the pod to its programs.
    playing = ("pgrep", "--count", "--full", "^python .*/agent_program.py spy agent-rollout")
    deadline = time.monotonic() + SECONDS
    while (
        int(operated.run_on_node(*playing, check=False).stdout or 0) <= agent["maxConcurrentEpisodes"]
    ):  # then both pods have some
        assert jobs.phase(operated, namespace, "agent") not in jobs.FINAL, operated.describe(namespace)
        assert time.monotonic() < deadline, operated.describe(namespace)
        time.sleep(1)
    assert operated.get("pods", "-n", namespace, "-l", "rstar2.dev/role in (judge, executor, redis)")["items"] == []
    lost = running_agents(operated, namespace)[0]
    # Not --force: the NetworkPolicies would end with the pod's object, some moments before its programs.
    operated.kubectl("delete", "pod", lost, "-n", namespace, "--grace-period=1")
    until(lambda: len({*running_agents(operated, namespace)} - {lost}) == 2, "the lost pod is replaced", every=1)
    state = finish(operated, namespace, "agent")
    rows = trajectories(state, "rl")
    assert len(rows) == 2 * 4 * 8
    assert [row.error for row in rows if row.failed] == []
    assert {row.reason for row in rows} == {"isolated"}
    assert all(row.turns == 1 and row.response_tokens > 0 for row in rows)


@pytest.mark.slow
def test_environment_of_pypi_trains_on_cluster(operated: Cluster, namespace: str, tmp_path: Path) -> None:
    """The servers of an unmodified environment are a Deployment of the job; its rewards train the policy."""
    task = tmp_path / "task"
    openenv_package.write_task(task)
    let_pods_read(task)
    manifest = openenv_package.job(task, steps=2)
    manifest["spec"]["environments"][0]["image"] = images.BASE
    patched = ("trainer", "rollout", "environment")
    job = jobs.cluster_job(operated, namespace, manifest, roles=patched)
    mount(operated, namespace, job, {"task": task, "environment": openenv_package.venv()})
    operated.apply([job])
    state = finish(operated, namespace, "dipg")
    rows = trajectories(state, "rl")
    assert [row.error for row in rows if row.failed] == []
    assert {row.reward for row in rows if row.calls and row.calls[-1].status == "ok"} == {0.0, 1.0}
    servers = ("pods", "-n", namespace, "-l", "rstar2.dev/role=environment")
    until(lambda: operated.get(*servers)["items"] == [], "the pods of the environment are gone", every=1)


@pytest.mark.slow
def test_tool_files_reach_the_checker_on_cluster(operated: Cluster, namespace: str, tmp_path: Path) -> None:
    """A function tool from a claim returns a file from its executor's pod; the checker reads it."""
    task = tmp_path / "task"
    task.mkdir()
    (task / "tool.py").write_text(TOOL)
    (task / "checker.py").write_text(CHECKER)
    turns = [("system", "Tool: note"), ("user", "Write."), ("assistant", call_text("note", {"text": "heron"}))]
    turns += [("tool", "written\n[file note.txt: text/plain, 5 bytes]"), ("assistant", r"<answer>\boxed{1}</answer>")]
    talk = {"messages": [{"role": role, "content": content} for role, content in turns]}
    write_rows(task / "sft.jsonl", [talk] * 640)
    row = {"id": "a", "problem": "Write.", "answer": "-", "data": {"text": "heron"}}
    write_rows(task / "rows.jsonl", [row, {**row, "id": "b", "data": {"text": "another"}}])
    text = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in turns)
    write_policy(task / "base", texts=[text] * 20, seed=0)
    let_pods_read(task)
    manifest = openenv_package.job(task)
    manifest["metadata"]["name"] = "files"
    spec = manifest["spec"]
    del spec["environments"]
    for field, value in (("source", "pvc://task/base"), ("systemPrompt", "Tool: note")):
        spec["model"][field] = value
    spec["tools"] = [{"name": "note", "source": "pvc://task/tool.py"}]
    spec["rewards"] = [{"name": "file", "type": "Program", "source": "pvc://task/checker.py"}]
    spec["stages"][0]["sft"]["data"] = "pvc://task/sft.jsonl"
    sampling = {"temperature": 0.01, "maxResponseTokens": 100, "maxTurns": 3}
    evaluate = {"benchmarks": [{"name": "note", "data": "pvc://task/rows.jsonl"}], "samples": 2, "sampling": sampling}
    spec["stages"][1] = {"name": "eval", "type": "Evaluate", "evaluate": evaluate}
    job = jobs.cluster_job(operated, namespace, manifest)
    operated.apply(volumes.host_folder(namespace, "task", task))
    operated.apply([job])
    state = finish(operated, namespace, "files")
    report = JobReport.model_validate(json.loads(state.report_file.read_text()))
    assert report.stages[-1].pass_at_1 == 0.5, "one of two rows wants this file"
