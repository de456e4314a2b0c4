"""The pods of a job of all types of stages with a bucket alone: kill -9 and lost disks change no bit of its models."""

from __future__ import annotations

import copy
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from rstar2_train.api.contracts import ExitCode
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.sources import resolved_sources
from rstar2_train.api.state_dir import ENGINE_WEIGHTS, JobState
from rstar2_train.storage.job_state import fetch_newest
from rstar2_train.storage.source import open_store
from rstar2_train.utils.ports import free_ports
from tests.support.engine import Engine
from tests.support.processes import kill_processes_of, with_own_disk
from tests.support.s3_server import CREDENTIALS, S3Server, s3_server_or_skip
from tests.support.unsupervised_judge import UnsupervisedJudge

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
EXAMPLE = Path(__file__).parents[4] / "examples" / "smoke.yaml"
STAGES = ("sft", "rl-1", "hard", "eval")
ADDRESSES = ("127.0.0.2", "127.0.0.3")


def manifest(server: S3Server) -> dict[str, Any]:
    """Return a shorter smoke job, with deltas and their probe."""
    job: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    job["metadata"]["uid"] = "11111111-2222-3333-4444-555555555555"
    spec = job["spec"]
    spec["storage"] = {"url": f"s3://{server.bucket('team-runs')}/curricula", "endpointUrl": server.url}
    spec["trainer"]["replicas"] = 2
    spec["rollout"] |= {"weightTransport": "Delta", "weightProbe": True, "weightSnapshotEvery": 2}
    spec["validation"]["samples"] = 1
    spec["stages"] = [stage for stage in spec["stages"] if stage["name"] in STAGES]
    spec["stages"][0]["sft"]["epochs"] = 3
    return job


class Attempt:
    """The processes of the trainer pods of an attempt."""

    def __init__(self, pods: list[subprocess.Popen[bytes]], ray: Path) -> None:
        self.pods = pods
        self._ray = ray

    def wait(self) -> int:
        """Return the exit code of pod 0; the others end with it, as those of a Job do."""
        code = self.pods[0].wait()
        self.kill()
        return code

    def kill(self) -> None:
        for pod in self.pods:
            if pod.poll() is None:
                os.killpg(pod.pid, signal.SIGKILL)
                pod.wait()
        kill_processes_of(self._ray)


class Cluster:
    """The pods of one job as processes: disks of both trainer pods are empty at each start, the engine has its own."""

    def __init__(self, source: AgenticRLJob, folder: Path, judge: str, ray: Path) -> None:
        self.state, self._folder, self._judge = JobState(folder / "trainer" / "smoke"), folder, judge
        self._source, self._ray = source, ray
        (self._port,) = free_ports(1)
        job, _ = resolved_sources(source, str(self.state.root))
        for name, body in (("job.json", job), ("source.json", source)):
            (folder / name).write_text(body.model_dump_json(exclude_none=True))
        disk = folder / "engine" / "smoke"
        own, _ = resolved_sources(copy.deepcopy(source), str(disk))
        (folder / "engine").mkdir()
        self.engine = Engine(Path(own.spec.model.source), folder=folder / "engine", job=own, disk=disk)

    def start(self, program: str, *arguments: str, index: int = 0) -> subprocess.Popen[bytes]:
        """Start the program of a pod on an empty disk. The mount of a second pod's disk hides that of pod 0."""
        disk, log = self.state.root.parent, self._folder / "termination-log"
        if not index:
            shutil.rmtree(disk, ignore_errors=True)
            disk.mkdir()
            log.write_text("")
        command = [sys.executable, "-m", "rstar2_train.launch.pod", program, "--job", str(self._folder / "job.json")]
        command += ["--state", str(self.state.root), "--termination-log", str(log), "--bucket", *arguments]
        if index:
            command = with_own_disk(disk, command)
        env = os.environ | {"POD_IP": ADDRESSES[index], "HOSTNAME": f"pods-{index}", "JOB_COMPLETION_INDEX": str(index)}
        env |= {"RSTAR2_ENGINE_TOKEN": self.engine.token, "GLOO_SOCKET_IFNAME": "lo", "AUTOSCALER_METRIC_PORT": "0"}
        env |= {"RAY_TMPDIR": str(self._ray)}
        return subprocess.Popen(command, env=env, start_new_session=True)

    def attempt(self, stage: str, number: int = 1) -> Attempt:
        learns = stage in STAGES[:2]
        arguments = ["launch", "--stage", stage, "--attempt", str(number), "--nodes", "2" if learns else "1"]
        arguments += ["--subdomain", "pods", "--ray-port", str(self._port), "--head", ADDRESSES[0]]
        arguments += ["--engines", self.engine.url.removeprefix("http://"), "--judge", self._judge]
        pods = [self.start(*arguments, index=index) for index in range(2 if learns else 1)]
        return Attempt(pods, ray=self._ray)

    def kill_after_a_step(self, stage: str) -> None:
        """Kill an attempt after its first checkpoint, and the engine; delete the disks of both, replace the engine."""
        attempt = self.attempt(stage)
        while not list(self.state.stage(stage).checkpoints.glob("step-*")):
            assert attempt.pods[0].poll() is None
            time.sleep(0.1)
        attempt.kill()
        self.replace_engine()

    def replace_engine(self) -> None:
        assert self.engine.disk is not None
        self.engine.kill()
        shutil.rmtree(self.engine.disk, ignore_errors=True)
        self.engine.start()

    def digests(self) -> list[str]:
        """Return the digests of the models of both training stages in the bucket."""
        state = JobState(self._folder / "copy")
        state.root.mkdir()
        fetch_newest(open_store(self._source.spec.storage, "smoke", patience=60), state, checkpoints=False)
        models = [state.stage(name).model / "model.safetensors" for name in STAGES[:2]]
        return [hashlib.sha256(path.read_bytes()).hexdigest() for path in models]


def test_bucket_curriculum_survives_the_loss_of_every_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer and an engine that are killed in a GRPO stage, with their disks, change neither models nor stages."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    results = []
    for disturbed in (False, True):
        folder = tmp_path / str(disturbed)
        folder.mkdir()
        with (
            s3_server_or_skip(folder / "s3") as server,
            UnsupervisedJudge(folder / "judge", isolation="none") as judge,
            # It has Ray's sockets, and the path of a socket has at most 107 characters.
            tempfile.TemporaryDirectory(prefix="rstar2-pods-", dir="/tmp", ignore_cleanup_errors=True) as ray,
        ):
            cluster = Cluster(AgenticRLJob.model_validate(manifest(server)), folder, judge.url, Path(ray))
            try:
                assert cluster.start("prepare").wait() == ExitCode.DONE
                assert cluster.attempt("sft").wait() == ExitCode.DONE
                cluster.replace_engine()
                if disturbed:
                    cluster.kill_after_a_step("rl-1")
                for stage in STAGES[1:]:
                    assert cluster.attempt(stage, 2 if disturbed and stage == "rl-1" else 1).wait() == ExitCode.DONE
                assert cluster.start("report", "--ending", "completed").wait() == ExitCode.DONE
            finally:
                cluster.engine.kill()
            results.append(cluster.digests())
            weights = server.data / "team-runs/curricula/smoke" / ENGINE_WEIGHTS
            assert [path.name for path in weights.rglob("*") if path.is_file()] == ["index.json"]
    assert results[0] == results[1]
