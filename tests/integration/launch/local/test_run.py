"""`rstar2 run` of the smoke manifest with real parts: each part is killed, the run too, and the disk fills up."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from rstar2_train.api.contracts import ExitCode, Progress
from rstar2_train.api.loader import read_manifest
from rstar2_train.api.state_dir import JobState
from rstar2_train.cli.main import main
from rstar2_train.launch.local.preflight import LOW_BYTES
from tests.support.full_disk import small_disk
from tests.support.s3_server import CREDENTIALS, S3Server, s3_server_or_skip
from tests.support.state_assertions import assert_complete
from tests.support.waiting import until

ROOT = Path(__file__).parents[4]
SMOKE = ROOT / "examples" / "smoke.yaml"
pytestmark = pytest.mark.timeout(3000)
STAGES = ["sft", "rl-1", "rl-2", "hard", "rl-3", "eval"]
RUN_SECONDS = 1200
OBJECTIVE = """
import time
from pathlib import Path

from rstar2_train.api.state_dir import JobState
from rstar2_train.grpo_roc.tokens import Terms

def is_held():
    progress = JobState(Path({state!r})).progress()
    return Path({hold!r}).exists() and progress is not None and progress.stage == "rl-2" and progress.step > 0

def advantages(group, settings):
    while is_held():
        time.sleep(0.1)
    return [reward - 0.5 for reward in group.rewards]

def loss(tokens, settings):
    weight = tokens.ratio.detach().clamp(max=settings.objective.parameters["cap"])
    terms = weight * tokens.advantages * tokens.logprobs
    return Terms(terms, tokens.weights("TokenMean"), clipped=tokens.trained)
"""
"""Objective of rl-2. It waits after the first step while the file `hold` exists, so that the stage can't finish."""


@pytest.fixture(scope="module")
def start() -> Iterator[Callable[..., subprocess.Popen]]:
    """Start runs of the smoke manifest or another one; runs that a failed test left are killed."""
    started = []

    def start_one(state: Path, manifest: Path = SMOKE) -> subprocess.Popen:
        command = [sys.executable, "-m", "rstar2_train.cli", "run", str(manifest), "--state", str(state)]
        run = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env=os.environ | CREDENTIALS,
        )
        started.append(run)
        return run

    yield start_one
    for run in started:
        if run.poll() is None:
            run.kill()
            run.communicate()


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[S3Server]:
    """An S3 server for the states of runs; skip where it cannot be built."""
    with s3_server_or_skip(tmp_path_factory.mktemp("s3")) as running:
        yield running


def storage_in(server: S3Server, bucket: str) -> dict[str, Any]:
    """Return spec.storage for a new bucket."""
    return {"url": f"s3://{server.bucket(bucket)}/runs", "endpointUrl": server.url}


def finish(run: subprocess.Popen) -> tuple[int, str]:
    """Wait for the run; return its exit code and output. A run that hangs is stopped, and its output is printed."""
    try:
        output, _ = run.communicate(timeout=RUN_SECONDS)
    except subprocess.TimeoutExpired:
        run.send_signal(signal.SIGINT)
        output, _ = run.communicate(timeout=600)
        pytest.fail(f"the run did not exit within {RUN_SECONDS} s:\n{output}")
    return run.returncode, output


def children(state: JobState) -> dict[str, psutil.Process]:
    """Return the run's child processes by name."""
    entries = json.loads((state.root / "children.json").read_text())
    processes = {}
    for entry in entries:
        with contextlib.suppress(psutil.NoSuchProcess):
            processes[entry["name"]] = psutil.Process(entry["pid"])
    return processes


def kill_child(state: JobState, name: str) -> None:
    """Kill a child of the run, as soon as it runs: it may be restarting."""

    def killed() -> bool:
        with contextlib.suppress(KeyError, psutil.NoSuchProcess):
            children(state)[name].kill()
            return True
        return False

    until(killed, f"{name} runs")


def kill_sandbox(state: JobState) -> None:
    """Kill the newest sandbox of the judge worker, as soon as one runs."""

    def killed() -> bool:
        with contextlib.suppress(IndexError, psutil.NoSuchProcess):
            sandboxes(state)[-1].kill()
            return True
        return False

    until(killed, "the worker has a sandbox")


def sandboxes(state: JobState) -> list[psutil.Process]:
    """Return the processes of the judge worker's sandboxes."""
    try:
        worker = children(state)["judge-worker"]
        return [process for process in worker.children(recursive=True) if "runsc" in process.name()]
    except (KeyError, psutil.NoSuchProcess):  # it is being replaced
        return []


def wait_for(state: JobState, stage: str, step: int, run: subprocess.Popen, *, attempt: int = 1) -> Progress:
    """Wait until `attempt` of `stage`, or a later one, has finished `step` steps; return its progress."""
    deadline = time.monotonic() + RUN_SECONDS
    while time.monotonic() < deadline:
        if run.poll() is not None:
            pytest.fail(f"the run exited before {stage} reached step {step}:\n{run.communicate()[0]}")
        progress = state.progress()
        index = STAGES.index(progress.stage) if progress else -1
        reached = progress and (index, progress.step) >= (STAGES.index(stage), step) and progress.attempt >= attempt
        if reached and progress.phase != "Starting":
            return progress
        time.sleep(0.05)
    pytest.fail(f"{stage} did not reach step {step} in time")


def processes(state: JobState) -> list[list[str]]:
    """Return the command lines of processes that name the state folder."""
    return [
        process.info["cmdline"]
        for process in psutil.process_iter(["cmdline", "status"])
        if any(str(state.root) in part for part in process.info["cmdline"] or ())
        and process.info["status"] != psutil.STATUS_ZOMBIE
    ]


def assert_no_processes(state: JobState) -> None:
    assert processes(state) == []


def assert_report(state: JobState) -> dict:
    report = json.loads(state.report_file.read_text())
    assert [stage["name"] for stage in report["stages"]] == STAGES
    assert all(stage["outcome"] == "completed" for stage in report["stages"])
    for stage in report["stages"]:
        if stage["type"] != "Filter":
            assert stage["pass_at_1"] is not None
            assert stage["excluded"] == 0
    return report


def kill_every_part(state: JobState, run: subprocess.Popen) -> None:
    """Kill engine, Redis, judge worker, a sandbox and the orchestrator, each during a stage."""
    for step, target in ((0, "engine-0"), (1, "redis"), (2, "judge-worker")):
        wait_for(state, "rl-1", step, run)
        kill_child(state, target)
    wait_for(state, "rl-2", 0, run)
    kill_sandbox(state)  # of the restarted worker
    orchestrator = next(process for name, process in children(state).items() if name.startswith("orchestrator-rl-2"))
    wait_for(state, "rl-2", 1, run)
    orchestrator.kill()
    (state.root.parent / "hold").unlink()


@pytest.fixture(scope="module")
def manifest(tmp_path_factory, server) -> Path:
    """The smoke manifest with its state in a bucket, a file with an objective in rl-2, a served teacher in rl-3."""
    folder = tmp_path_factory.mktemp("manifest")
    hold = folder / "hold"
    hold.touch()
    (folder / "objective.py").write_text(OBJECTIVE.format(state=str(folder / "smoke"), hold=str(hold)))
    job = read_manifest(SMOKE)
    job["spec"]["storage"] = storage_in(server, "smoke")
    stages = {stage["name"]: stage for stage in job["spec"]["stages"]}
    custom = {"type": "Custom", "source": str(folder / "objective.py"), "parameters": {"cap": 2}}
    teacher = {"source": job["spec"]["model"]["source"]}
    stages["rl-2"]["grpo"]["objective"] = custom
    stages["rl-3"]["grpo"]["objective"] = {"type": "Distillation", "teacher": teacher, "rewardWeight": 0.5}
    job["spec"]["teacher"] = {"replicas": 1}
    path = folder / "smoke.yaml"
    path.write_text(json.dumps(job))  # which is YAML too
    return path


@pytest.fixture(scope="module")
def smoke(start, manifest) -> tuple[JobState, str]:
    """A complete run in which each part was killed once, and which was suspended once."""
    folder = manifest.parent
    state = JobState(folder / "smoke")
    run = start(folder, manifest)
    kill_every_part(state, run)
    wait_for(state, "hard", 0, run)
    run.send_signal(signal.SIGINT)
    code, output = finish(run)
    assert code == ExitCode.SUSPENDED, output
    assert "Suspended. Run the same command to resume." in output
    assert_no_processes(state)
    code, resumed = finish(start(folder, manifest))
    assert code == 0, resumed
    return state, output + resumed


def test_run_with_killed_parts_completes(smoke) -> None:
    """Only the stages whose orchestrator was killed or suspended have a second attempt; no process remains."""
    state, output = smoke
    report = assert_report(state)
    assert_complete(state)
    assert_no_processes(state)
    assert "report " in output and "mlflow ui" in output
    attempts = {stage["name"]: stage["attempts"] for stage in report["stages"]}
    later = sorted(attempts.pop(name) for name in ("hard", "rl-3", "eval"))
    assert later in ([1, 1, 1], [1, 1, 2]), output  # the signal may come between two stages, or in a later one
    assert attempts == {"sft": 1, "rl-1": 1, "rl-2": 2}, output


def test_run_sends_runs_and_metrics_to_mlflow(smoke) -> None:
    """One parent run, one run per stage with all its steps, and the artifacts."""
    from mlflow import MlflowClient

    state, _ = smoke
    client = MlflowClient(f"sqlite:///{state.mlflow_database}")
    experiment = client.get_experiment_by_name("rstar2")
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    parent = next(run for run in runs.values() if "mlflow.parentRunId" not in run.data.tags)
    nested = [run for run in runs.values() if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    assert len(nested) == len(STAGES)
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    rl = next(run for run in nested if "rl-1" in run.info.run_name)
    assert [point.step for point in client.get_metric_history(rl.info.run_id, "reward/mean")] == [1, 2, 3]
    # The file marks every token as clipped; the policy and its teacher differ since the SFT stage. A step in which
    # no group trains has no metric of the update.
    for stage, metric, low, high in (("rl-2", "clip_fraction", 1, 1), ("rl-3", "teacher_kl", 0.01, 20)):
        run = next(run for run in nested if stage in run.info.run_name)
        groups, values = (
            {point.step: point.value for point in client.get_metric_history(run.info.run_id, name)}
            for name in ("down_sampling/trained_group_num", f"trainer/{metric}")
        )
        assert set(values) == {step for step, count in groups.items() if count}, (stage, groups, values)
        assert all(low <= value <= high for value in values.values()), (stage, values)
    artifacts = {item.path for item in client.list_artifacts(parent.info.run_id)}
    assert {"manifest.yaml", "report.json"} <= artifacts


def test_run_complete_job_changes_nothing(smoke, manifest, capsys, monkeypatch) -> None:
    """The report is the same. The command runs in this process, because it starts no other one."""
    state, _ = smoke
    for name, value in {"PATH": os.environ["PATH"], **CREDENTIALS}.items():  # a run adds its tools to PATH
        monkeypatch.setenv(name, value)
    before = state.report_file.read_text()
    assert main(["run", str(manifest), "--state", str(state.root.parent)]) == 0
    assert "already complete" in capsys.readouterr().out
    assert json.loads(before)["stages"] == json.loads(state.report_file.read_text())["stages"]


def test_run_resumes_after_kill(tmp_path: Path, start, server) -> None:
    """kill -9 of `rstar2 run` during SFT, and a lost disk; it resumes from the bucket. No child is left."""
    job = read_manifest(SMOKE)
    job["spec"]["storage"] = storage_in(server, "lost-disk")
    manifest = tmp_path / "smoke.yaml"
    manifest.write_text(json.dumps(job))  # which is YAML too
    state = JobState(tmp_path / "smoke")
    run = start(tmp_path, manifest)
    wait_for(state, "sft", 20, run)
    os.kill(run.pid, signal.SIGKILL)
    run.communicate()
    until(lambda: not processes(state), "the children have stopped with the run")
    shutil.rmtree(state.root)
    run = start(tmp_path, manifest)
    progress = wait_for(state, "sft", 21, run, attempt=2)  # the first attempt may have reported step 21 too
    assert progress.checkpoint is not None
    run.send_signal(signal.SIGINT)
    code, output = finish(run)
    assert code == ExitCode.SUSPENDED, output
    assert "was restored from" in output
    assert state.stage("sft").outcome().checkpoint.step >= 20
    assert_no_processes(state)


def test_run_full_disk_suspends_with_a_checkpoint(tmp_path: Path, start) -> None:
    """The run fails with a message before a write fails."""
    job = read_manifest(SMOKE)
    job["spec"]["stages"] = job["spec"]["stages"][:1]  # needs no engine
    job["spec"]["stages"][0]["sft"]["epochs"] *= 20  # it must not end before the next check of the disk
    manifest = tmp_path / "sft.yaml"
    manifest.write_text(json.dumps(job))  # which is YAML too
    with small_disk(tmp_path / "small", mebibytes=640) as small:
        state = JobState(small / "smoke")
        run = start(small, manifest)
        wait_for(state, "sft", 3, run)
        free = shutil.disk_usage(small).free
        with (small / "filler").open("wb") as filler:
            os.posix_fallocate(filler.fileno(), 0, free - LOW_BYTES // 2)
        code, output = finish(run)
        assert code == 1
        assert "MiB are free" in output and "free some space, then run the same command again" in output
        outcome = state.stage("sft").outcome()
        assert outcome is not None and outcome.outcome == "suspended" and outcome.checkpoint is not None
        assert_no_processes(state)
