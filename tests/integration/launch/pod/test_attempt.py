"""The programs of a job's pods, in the order of the operator, with two pods in one Ray cluster.

Pods are processes here, each with its own loopback address; the API server is a small HTTPS server.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rstar2_train.api.contracts import AttemptRecord, ExitCode, Outcome, Progress
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.sources import resolved_sources
from rstar2_train.api.state_dir import JobState
from rstar2_train.utils.ports import free_ports
from tests.support.fake_configmap_server import FakeConfigMapServer
from tests.support.processes import kill_processes_of

pytestmark = pytest.mark.timeout(3000)
UID = "11111111-2222-3333-4444-555555555555"
WAIT_SECONDS = 900
WAITING = "waiting for the head at"
ADDRESSES = ("127.0.0.2", "127.0.0.3")
SFT = {
    "data": "generated://tiny-smoke/sft.jsonl", "epochs": 2, "batchSize": 8, "maxTokens": 256,
    "checkpointEverySteps": 500,
}  # fmt: skip


def source_job() -> AgenticRLJob:
    return AgenticRLJob.model_validate(
        {
            "metadata": {"name": "pods", "uid": UID},
            "spec": {
                "model": {"source": "generated://tiny-smoke/base", "systemPrompt": "s", "promptPrefix": ""},
                "accelerator": {"vendor": "None"},
                "trainer": {"replicas": 2, "gpusPerReplica": 0, "activationCheckpointing": "Never"},
                "stages": [{"name": "sft", "type": "SFT", "sft": SFT}],
            },
        }
    )


class Pods:
    """Starts the programs of one job."""

    def __init__(self, folder: Path, api: FakeConfigMapServer) -> None:
        self.state = JobState(folder / "state" / "pods")
        self.api = api
        self.termination_log = folder / "termination-log"
        self.termination_log.touch()
        self._folder = folder
        job, _ = resolved_sources(source_job(), str(self.state.root))
        (folder / "job.json").write_text(job.model_dump_json(exclude_none=True))
        (folder / "source.json").write_text(source_job().model_dump_json(exclude_none=True))
        self.started: list[subprocess.Popen[bytes]] = []
        (self._port,) = free_ports(1)

    def start(self, *arguments: str, index: int = 0) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "rstar2_train.launch.pod", *arguments, "--job", str(self._folder / "job.json")]
        command += ["--state", str(self.state.root), "--progress", "pods-progress"]
        command += ["--account", str(self.api.account), "--termination-log", str(self.termination_log)]
        env = os.environ | self.api.env
        env |= {"JOB_COMPLETION_INDEX": str(index), "POD_IP": ADDRESSES[index], "HOSTNAME": f"pods-sft-1-{index}"}
        env |= {"RSTAR2_ENGINE_TOKEN": "a-token-of-these-pods", "GLOO_SOCKET_IFNAME": "lo"}
        env |= {
            "RAY_TMPDIR": str(self._folder / "ray"),
            "AUTOSCALER_METRIC_PORT": "0",
            "HTTPS_PROXY": "http://unused.invalid",
        }
        with self.log.open("ab") as log:
            process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        self.started.append(process)
        return process

    def attempt(self, number: int) -> list[subprocess.Popen[bytes]]:
        """Start both pods of an attempt. Processes of an earlier one are killed first, as with containers."""
        kill_processes_of(self._folder)
        common = ["launch", "--stage", "sft", "--attempt", str(number), "--nodes", "2", "--subdomain", "pods-trainer"]
        common += ["--ray-port", str(self._port)]
        worker = self.start(*common, "--head", ADDRESSES[0], index=1)
        return [self.start(*common), worker]

    def run(self, *arguments: str) -> int:
        return self.wait(self.start(*arguments))

    def wait(self, process: subprocess.Popen[bytes]) -> int:
        try:
            return process.wait(WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            pytest.fail(f"{process.args} did not exit:\n{self.log.read_text()[-5000:]}")

    def until(self, reached: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not reached():
            assert time.monotonic() < deadline, self.log.read_text()[-5000:]
            time.sleep(0.1)

    def waiting_for_head(self) -> int:
        """Return how many workers have reported that they wait for the head."""
        return self.log.read_text().count(WAITING)

    def progress(self) -> Progress | None:
        text = self.api.data.get("progress.json")
        return Progress.model_validate_json(text) if text else None

    def outcome(self) -> Outcome:
        return Outcome.model_validate_json(self.api.data["outcome-sft.json"])

    @property
    def log(self) -> Path:
        return self._folder / "pods.log"


@pytest.fixture(scope="module")
def pods() -> Iterator[Pods]:
    with (
        # It contains Ray's sockets, and the path of a socket has at most 107 characters.
        tempfile.TemporaryDirectory(prefix="rstar2-pods-", dir="/tmp") as folder,
        FakeConfigMapServer(Path(folder), name="pods-progress") as api,
    ):
        pods = Pods(Path(folder), api)
        yield pods
        for process in pods.started:
            if process.poll() is None:
                process.kill()
                process.wait()
        kill_processes_of(Path(folder))


def test_prepare_creates_generated_data(pods: Pods) -> None:
    """The outcome is written to the ConfigMap, with retries while the API server rejects it."""
    pods.api.refusals = 2
    assert pods.run("prepare") == ExitCode.DONE
    outcome = Outcome.model_validate_json(pods.api.data["prepare.json"])
    assert (outcome.outcome, outcome.reason) == ("completed", "Completed")
    job, _ = resolved_sources(source_job(), str(pods.state.root))
    assert (Path(job.spec.model.source) / "config.json").exists()
    assert job.spec.stages[0].sft is not None and Path(job.spec.stages[0].sft.data).exists()
    assert "generated://tiny-smoke/base" in pods.state.manifest_file.read_text()


def test_launch_sigterm_to_one_pod_suspends_the_attempt(pods: Pods) -> None:
    """The orchestrator writes a checkpoint while the other pod keeps its ranks."""
    head, worker = pods.attempt(1)
    deadline = time.monotonic() + WAIT_SECONDS
    while (now := pods.state.progress()) is None or now.step < 2:
        assert head.poll() is None and worker.poll() is None, pods.log.read_text()[-5000:]
        assert time.monotonic() < deadline, pods.log.read_text()[-5000:]
        time.sleep(0.2)
    assert pods.state.stage("sft").attempt() == AttemptRecord(attempt=1, uid=UID)
    worker.send_signal(signal.SIGTERM)
    assert pods.wait(head) == ExitCode.SUSPENDED
    assert pods.wait(worker) == ExitCode.DONE
    outcome = pods.outcome()
    assert outcome == pods.state.stage("sft").outcome()
    assert (outcome.outcome, outcome.attempt) == ("suspended", 1)
    assert outcome.checkpoint is not None and outcome.checkpoint.step >= 2
    assert json.loads(pods.termination_log.read_text())["reason"] == "Suspended"
    writes = [data["progress.json"] for data in pods.api.writes if "progress.json" in data]
    last = Progress.model_validate_json(writes[-1])
    assert last.phase == "Finished" and last.checkpoint == outcome.checkpoint


def test_launch_next_attempt_resumes_and_completes(pods: Pods) -> None:
    """The success of index 0 ends the Job, which stops the other pods."""
    first = pods.state.stage("sft").outcome()
    assert first is not None and first.checkpoint is not None
    head, worker = pods.attempt(2)
    assert pods.wait(head) == ExitCode.DONE, pods.log.read_text()[-5000:]
    assert worker.poll() is None
    worker.terminate()
    assert pods.wait(worker) == ExitCode.DONE
    outcome = pods.outcome()
    assert (outcome.outcome, outcome.attempt) == ("completed", 2)
    assert outcome.checkpoint is not None and outcome.checkpoint.step > first.checkpoint.step
    assert f"stage sft resumes after step {first.checkpoint.step}" in pods.log.read_text()
    assert "2 of 2 nodes have joined: 127.0.0.2, 127.0.0.3" in pods.log.read_text()
    assert (pods.state.stage("sft").model / "model.safetensors").exists()
    progress = pods.progress()
    assert progress is not None and progress.mlflow_run_id


def test_launch_older_attempt_is_stale(pods: Pods) -> None:
    """It exits without a write to the storage or the ConfigMap."""
    before, waiting = pods.outcome(), pods.waiting_for_head()
    head, worker = pods.attempt(1)
    assert pods.wait(head) == ExitCode.RETRYABLE
    assert "attempt 1 is stale: the stage belongs to attempt 2" in pods.termination_log.read_text()
    assert pods.outcome() == before and pods.state.stage("sft").attempt() == AttemptRecord(attempt=2, uid=UID)
    pods.until(lambda: pods.waiting_for_head() > waiting)  # its second pod: the head does not start
    worker.terminate()
    assert pods.wait(worker) == ExitCode.DONE


def test_launch_recreated_job_uses_its_storage(pods: Pods) -> None:
    """A job with another UID in the same storage keeps finished stages."""
    job = json.loads((pods.log.parent / "job.json").read_text())
    job["metadata"]["uid"] = "another"
    (pods.log.parent / "job.json").write_text(json.dumps(job))
    pods.api.data.clear()
    waiting = pods.waiting_for_head()
    head, worker = pods.attempt(1)
    assert pods.wait(head) == ExitCode.DONE
    pods.until(lambda: pods.waiting_for_head() > waiting)  # it handles SIGTERM from then on
    worker.terminate()
    assert pods.wait(worker) == ExitCode.DONE
    assert (pods.outcome().outcome, pods.outcome().attempt) == ("completed", 1)
    assert pods.state.stage("sft").attempt() == AttemptRecord(attempt=1, uid="another")


def test_report_closes_the_mlflow_runs(pods: Pods) -> None:
    """All runs are finished, and the report has the outcome of the stage; the pod's log has its tables."""
    before = len(pods.log.read_text())
    assert pods.run("report", "--ending", "completed") == ExitCode.DONE
    report = json.loads(pods.state.report_file.read_text())
    assert report["stages"][0]["outcome"] == "completed" and report["seconds"] == round(pods.state.seconds(), 3) > 0
    assert "done" in pods.log.read_text()[before:].partition("outcome")[2]
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{pods.state.mlflow_database}")
    runs = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
    assert {run.info.status for run in runs} == {"FINISHED"} and len(runs) >= 2
